"""How fast are matrix products, against NumPy's `@`?

Both with results written to out=, in turns; the ratio is NumPy's time over ours. Large products go
to the BLAS that NumPy uses, with its threads; set OPENBLAS_NUM_THREADS=1 for one thread, as kernels
have. A table puts the batch of small products beside np.add of the same arrays, the time of their
memory: its ratio is the most that any code could have. The last table is what the limit between
kernels and the BLAS (runtime/blas.py) was chosen by.

Run: python benchmarks/matmul.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
from _common import Timing, Way, arguments, banner, duration, goals, in_turns, table

import opkiln as ok
from opkiln.runtime import blas

Array = np.ndarray[Any, np.dtype[Any]]
SECONDS = 0.002  # a sample is short, so that the least of many finds the machine undisturbed
PLACES = 5  # in memory, all of them taken at once
Shape = tuple[int, ...]


def product(a, b):
    return a @ b


def least(timing: Timing) -> float:
    """Seconds of the fastest sample: other work on the machine only ever adds to one."""
    return min(timing.samples)


def operands(left: Shape, right: Shape, dtype: str) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=left).astype(dtype), rng.normal(size=right).astype(dtype)
    return a, b


def measured(a: Array, b: Array, rounds: int) -> tuple[float, float]:
    """Seconds of NumPy and of opkiln, after a comparison of the values; of all places the middle.

    Where arrays begin within a cache line decides over a tenth.
    """
    ours, want = ok.compile(product), a @ b
    held = [(a.copy(), b.copy(), np.empty_like(want)) for _ in range(PLACES)]
    found: list[tuple[float, float, float]] = []
    for x, y, out in held:
        np.testing.assert_allclose(ours(x, y, out=out), want, rtol=1e-3, atol=1e-3)
        names = {"f": np.matmul, "g": ours, "a": x, "b": y, "o": out}
        ways = [Way("NumPy", "f(a, b, out=o)", names), Way("opkiln", "g(a, b, out=o)", names)]
        timings = in_turns(ways, rounds, SECONDS)
        numpy, mine = least(timings["NumPy"]), least(timings["opkiln"])
        found.append((numpy / mine, numpy, mine))
    _, numpy, mine = sorted(found)[PLACES // 2]
    return numpy, mine


CASES: list[tuple[str, Shape, Shape]] = [
    ("8 x 8, batch of 10,000", (10_000, 8, 8), (10_000, 8, 8)),
    ("8 x 8, batch of 100", (100, 8, 8), (100, 8, 8)),
    ("16 x 16", (16, 16), (16, 16)),
    ("64 x 64", (64, 64), (64, 64)),
    ("256 x 256", (256, 256), (256, 256)),
    ("1024 x 1024", (1024, 1024), (1024, 1024)),
    ("layer of 32 x 64 by 64 x 32", (32, 64), (64, 32)),
    ("layer of 256 x 64 by 64 x 32", (256, 64), (64, 32)),
    ("layer of 256 x 32 by 32 x 10", (256, 32), (32, 10)),
    ("matrix 1000 x 1000 by vector", (1000, 1000), (1000,)),
    ("vector by matrix 1000 x 1000", (1000,), (1000, 1000)),
    ("matrix 5000 x 64 by vector", (5000, 64), (64,)),
    ("matrix 64 x 64 by vector", (64, 64), (64,)),
]


def floor(rounds: int) -> None:
    """The batch of small products against what no code can beat: the memory that it touches."""
    rows: list[list[str]] = []
    for dtype in ("f4", "f8"):
        a, b = operands((10_000, 8, 8), (10_000, 8, 8), dtype)
        ours, out = ok.compile(product), np.empty_like(a)
        ours(a, b, out=out)
        names = {"f": np.add, "m": np.matmul, "g": ours, "a": a, "b": b, "o": out}
        ways = [Way(c, f"{c}(a, b, out=o)", names) for c in ("f", "m", "g")]
        timings = in_turns(ways, rounds, SECONDS)
        add, numpy, mine = (least(timings[way.name]) for way in ways)
        rows.append([dtype, *map(duration, (add, numpy, mine)), f"{numpy / add:.2f}"])
    header = ["8 x 8, 10,000", "np.add", "np.matmul", "opkiln", "np.matmul / np.add"]
    table(header, rows)


def limits(rounds: int) -> None:
    """Kernel and BLAS by size."""
    found, rows = blas.ready(), []
    for n in (32, 64, 96, 128, 160, 192, 256):
        for dtype in ("f4", "f8"):
            a, b = operands((n, n), (n, n), dtype)
            ways: list[Way] = []
            for name, from_size in (("kernel", 2**62), ("BLAS", 1)):
                blas.use(found, least=from_size)
                ours, out = ok.compile(product), np.empty((n, n), dtype)
                ours(a, b, out=out)
                names = {"g": ours, "a": a, "b": b, "o": out}
                ways.append(Way(name, "g(a, b, out=o)", names))
            timings = in_turns(ways, rounds, SECONDS)
            kernel, library = (least(timings[w.name]) for w in ways)
            rows.append(
                [str(n), dtype, duration(kernel), duration(library), f"{library / kernel:.2f}"]
            )
    blas.use(found)
    table(["n", "dtype", "kernel", "BLAS", "BLAS / kernel"], rows)


def main() -> None:
    given = arguments(__doc__)
    banner("NumPy's time over opkiln's")
    found = blas.ready()
    print(f"BLAS: {found.library.path if found else 'none'}")
    rows: list[list[str]] = []
    ratios: dict[tuple[str, str], float] = {}
    for name, left, right in CASES:
        for dtype in ("f4", "f8"):
            a, b = operands(left, right, dtype)
            numpy, ours = measured(a, b, given.rounds)
            ratios[name, dtype] = numpy / ours
            rows.append([name, dtype, duration(numpy), duration(ours), f"{numpy / ours:.2f}"])
    table(["product", "dtype", "NumPy", "opkiln", "ratio"], rows)
    print()
    goals(
        [(f"1024 x 1024, {d}", ratios["1024 x 1024", d], 0.95, ">=") for d in ("f4", "f8")]
        + [("8 x 8, batch of 10,000", ratios["8 x 8, batch of 10,000", "f4"], 5.0, ">=")]
    )
    print()
    floor(given.rounds)
    print()
    limits(given.rounds)


if __name__ == "__main__":
    main()
