"""What does a new process pay: import, and the first call with a warm disk cache?

Also counts the processes that such a start creates. Run: python benchmarks/warm_start.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

from _common import Timing, arguments, banner, duration, folder, fresh_process, goals, table

START = """
import os, sys, time
children = []
watched = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.system")
t0 = time.perf_counter()
import numpy as np
t1 = time.perf_counter()
from opkiln import *  # the names are loaded when they are asked for
t2 = time.perf_counter()
sys.addaudithook(lambda event, args: children.append(event) if event in watched else None)
x, y, z = (np.linspace(0.1, i, 16, dtype=np.float32) for i in (1, 2, 3))
@compile
def f(x, y, z):
    return np.tanh(x * y + z) * x - y
t3 = time.perf_counter()
f(x, y, z)
t4 = time.perf_counter()
f(x, y, z)
t5 = time.perf_counter()
print(t1 - t0, t2 - t1, t4 - t3, t5 - t4, f.info().builds, len(children))
"""


def spawned(cache: Path, work: Path) -> str:
    """Processes that a warm start creates, as the kernel sees it (needs strace)."""
    if shutil.which("strace") is None:
        return "not counted (no strace)"
    log = work / "strace.txt"
    calls = "trace=execve,execveat,fork,vfork,clone,clone3"
    fresh_process(START, cache, prefix=["strace", "-f", "-qq", "-e", calls, "-o", str(log)])
    lines = log.read_text().splitlines()
    processes = [s for s in lines if "CLONE_THREAD" not in s and "resumed" not in s]
    return str(len(processes) - 1)  # less the interpreter's own execve


def main() -> None:
    options = arguments(__doc__)
    banner("Warm start: a new process, the kernel is in the disk cache")
    with folder() as work:
        cache = work / "cache"
        first = fresh_process(START, cache).split()
        runs = [fresh_process(START, cache).split() for _ in range(options.rounds)]
        count = spawned(cache, work)
    numpy_import, our_import, call, second = (
        Timing(tuple(float(run[i]) for run in runs)) for i in range(4)
    )
    table(
        ["step", "time", "ratio to import numpy"],
        [
            [name, duration(t.seconds), f"{t.ratio(numpy_import):.3f}x"]
            for name, t in (
                ("import numpy", numpy_import),
                ("import opkiln, after numpy", our_import),
                ("first call, disk cache warm", call),
                ("second call", second),
            )
        ],
    )
    print(f"builds: {first[4]} in the first process, {max(int(r[4]) for r in runs)} in the others")
    print(f"processes started: {max(int(r[5]) for r in runs)} by Python; seen by strace: {count}")
    goals(
        [
            ("first call, ms", call.seconds * 1e3, 5, "<="),
            ("import opkiln / import numpy", our_import.ratio(numpy_import), 0.3, "<="),
            ("builds in a warm process", max(int(run[4]) for run in runs), 0, "<="),
        ]
    )


if __name__ == "__main__":
    main()
