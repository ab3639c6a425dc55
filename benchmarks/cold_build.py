"""What does the first call cost with an empty cache, against g++ on the same text?

Each sample is a fresh process with an empty cache directory; next to it
`g++ -O3 -march=native -shared` builds the text that opkiln wrote.

Run: python benchmarks/cold_build.py
"""

from __future__ import annotations

import shlex
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

FIRST_CALL = """
import sys, time
import numpy as np
import opkiln as ok
x, y, z = (np.random.default_rng(i).random(16, dtype=np.float32) for i in range(3))
def f(x, y, z):
    return np.tanh(x * y + z) * x - y
compiled = ok.compile(f)
start = time.perf_counter()
got = compiled(x, y, z)
taken = time.perf_counter() - start
np.testing.assert_allclose(got, f(x, y, z), rtol=2e-6, atol=1e-6)
assert compiled.info().builds == int(sys.argv[2]), compiled.info()
if sys.argv[1]:
    open(sys.argv[1], "w").write(compiled.lower(x, y, z).source)
print(taken)
"""


def main() -> None:
    options = arguments(__doc__)
    banner("Cold build: tanh(x * y + z) * x - y at n = 16, float32")
    command = shlex.split(compiler())
    cold, second, text_build, empty = [], [], [], []
    with folder() as work:
        nothing = work / "nothing.cpp"
        nothing.write_text('extern "C" void nothing() {}\n')
        text = work / "text.cpp"
        flags = ["-O3", "-march=native", "-shared", "-fPIC", "-o", str(work / "out.so")]
        fresh_process(FIRST_CALL, work / "first", str(text), "1")  # also warms the page cache
        for number in range(options.rounds):
            cache = work / f"cache{number}"
            cold.append(float(fresh_process(FIRST_CALL, cache, "", "1")))
            text_build.append(seconds_of([*command, *flags, str(text)]))
            empty.append(seconds_of([*command, *flags, str(nothing)]))
            second.append(float(fresh_process(FIRST_CALL, cache, "", "0")))
        size = len(Path(text).read_text())
    base = Timing(tuple(text_build))
    rows = []
    for name, samples in (
        ("g++ -O3 -march=native -shared on the emitted text", text_build),
        ("the same on an empty function", empty),
        ("opkiln, first call, empty cache", cold),
        ("opkiln, first call, disk cache warm", second),
    ):
        timing = Timing(tuple(samples))
        rows.append([name, duration(timing.seconds), f"{timing.ratio(base):.2f}x"])
    table(["way", "time", "ratio"], rows)
    print(f"the emitted text has {size} bytes")
    goals([("cold first call / g++", Timing(tuple(cold)).ratio(base), 2.0, "<=")])


if __name__ == "__main__":
    main()
