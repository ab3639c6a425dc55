"""What does `ok.load` cost: cold against the bare compiler, from disk, again, and in parallel?

Cold samples are fresh processes that know the compiler and have no artifact; next to each the bare
compiler builds the same file. Run: python benchmarks/load.py
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from _common import (
    Timing,
    arguments,
    banner,
    compiler,
    duration,
    folder,
    fresh_process,
    goals,
    seconds_of,
    table,
)

TEXT = """#include <cmath>
#include <vector>
extern "C" double answer{0}(double x) {{
  std::vector<double> v(10, x);
  double sum = {0};
  for (double y : v) sum += std::sqrt(y);
  return sum;
}}
"""
LOAD = """
import os, sys, time
import opkiln as ok
import opkiln.native
started = []
watched = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec", "os.system")
sys.addaudithook(lambda event, args: started.append(event) if event in watched else None)
if sys.argv[1] == "cold":  # who the compiler is, is asked once per machine
    from opkiln.runtime import jit
    jit.compiler()
given = dict(functions=["double answer0(double x)"])
start = time.perf_counter()
ext = ok.load("answer", sys.argv[2:], **given)
first = time.perf_counter()
assert ext.answer0(1.0) == 10.0
again = min(
    -time.perf_counter() + (ok.load("answer", sys.argv[2:], **given), time.perf_counter())[1]
    for _ in range(50)
)
print(first - start, again, ext.hit, len(started))
"""
MANY = 4


def main() -> None:
    options = arguments(__doc__)
    banner("ok.load: one file with <vector> and <cmath>")
    bare_words = [*shlex.split(compiler()), "-O2", "-std=c++17", "-fPIC", "-shared"]
    bare, cold, disk, again, one, several = [], [], [], [], [], []
    with folder() as work:
        sources = [work / f"file{i}.cpp" for i in range(MANY)]
        for number, path in enumerate(sources):
            path.write_text(TEXT.format(number))
        known = work / "known"
        fresh_process(LOAD, known, "cold", str(sources[0]))  # writes byte code, asks the compiler
        spawned = 0
        for number in range(options.rounds):
            bare.append(seconds_of([*bare_words, str(sources[0]), "-o", str(work / "out.so")]))
            cache = fresh_cache(work / f"cache{number}", known)
            taken, _, hit, _ = fresh_process(LOAD, cache, "cold", str(sources[0])).split()
            assert hit == "built"
            cold.append(float(taken))
            taken, memory, hit, count = fresh_process(LOAD, cache, "", str(sources[0])).split()
            assert hit == "disk"
            spawned = max(spawned, int(count))
            disk.append(float(taken))
            again.append(float(memory))
            for jobs, samples in (("1", one), ("", several)):
                os.environ["OPKILN_MAX_JOBS"] = jobs
                cache = fresh_cache(work / f"many{number}-{jobs}", known)
                got = fresh_process(LOAD, cache, "cold", *map(str, sources)).split()
                samples.append(float(got[0]))
            del os.environ["OPKILN_MAX_JOBS"]
    base = Timing(tuple(bare))
    rows = [
        (f"bare compiler: {' '.join(bare_words)}", bare),
        ("ok.load, cold", cold),
        ("ok.load in a new process, from disk", disk),
        ("ok.load again", again),
        (f"ok.load of {MANY} such files, OPKILN_MAX_JOBS=1", one),
        (f"ok.load of {MANY} such files", several),
    ]
    timed = [(name, Timing(tuple(samples))) for name, samples in rows]
    table(
        ["way", "time", "ratio"],
        [[name, duration(t.seconds), f"{t.ratio(base):.2f}x"] for name, t in timed],
    )
    ways = [timing for _, timing in timed]
    print(f"parallel: {ways[5].ratio(ways[4]):.2f} of the time of one at a time")
    goals(
        [
            ("cold / bare compiler", ways[1].ratio(base), 1.2, "<="),
            ("from disk, ms", ways[2].seconds * 1e3, 10, "<="),
            ("again, ms", ways[3].seconds * 1e3, 2, "<="),
            ("processes started from disk", spawned, 0, "<="),
        ]
    )


def fresh_cache(path: Path, known: Path) -> Path:
    """A cache directory that knows the compiler and nothing else."""
    path.mkdir(mode=0o700)
    shutil.copytree(known / "compilers", path / "compilers")
    return path


if __name__ == "__main__":
    main()
