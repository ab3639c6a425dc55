"""How fast do fused loops run from 1e3 to 1e7 elements, against NumPy and loops written by hand?

float32, one thread each. NumPy gets out= too where its expression needs no further buffer. The
loops by hand are native/reference.cpp (its flags stand at its head).

Run: python benchmarks/throughput.py
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from _common import (
    FLAGS,
    Way,
    arguments,
    banner,
    compiler,
    duration,
    folder,
    goals,
    in_turns,
    reference,
    table,
)

import opkiln as ok

SIZES = [10**3, 10**4, 10**5, 10**6, 10**7]


def multiply_add(x, y, z):
    return x * y + z


def mixed(x, y, z):
    return np.tanh(x * y + z) * np.exp(-x) + np.sqrt(y)


def numpy_multiply_add(x, y, z, out):
    np.multiply(x, y, out=out)
    np.add(out, z, out=out)


@dataclass(frozen=True)
class Case:
    title: str
    function: Callable[..., Any]
    symbol: str


CASES = [
    Case("a*b + c", multiply_add, "ref_multiply_add"),
    Case("tanh(x*y+z)*exp(-x) + sqrt(y)", mixed, "ref_mixed"),
]


def ways_of(case: Case, n: int, library: ctypes.CDLL) -> list[Way]:
    rng = np.random.default_rng(n)
    x, y, z = (rng.uniform(0.1, 1.0, n).astype(np.float32) for _ in range(3))
    out, by_hand = np.empty_like(x), np.empty_like(x)
    compiled = ok.compile(case.function)
    for edge in (0, 1, 2, 1_000):  # what serves these must serve large arrays at full speed
        compiled(x[:edge], y[:edge], z[:edge])
    times = max(1, 20_000 // n)
    call = getattr(library, case.symbol)
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (x, y, z, by_hand)]
    arguments_of_call = (*pointers, ctypes.c_int64(n), ctypes.c_int64(times))

    want = case.function(*(a.astype(np.float64) for a in (x, y, z)))
    compiled(x, y, z, out=out)
    call(*arguments_of_call)
    info = compiled.info()
    assert info.traces == 1, info
    assert info.builds + info.disk_hits <= 1, info  # none where an earlier size built it
    np.testing.assert_allclose(out, want, rtol=3e-6)
    np.testing.assert_allclose(by_hand, want, rtol=3e-6)

    names = {"x": x, "y": y, "z": z, "o": out, "f": case.function, "g": compiled}
    kept = {"arrays": (x, y, z, by_hand)}  # the reference has addresses only
    into = {"f": numpy_multiply_add} if case.function is multiply_add else {"f": case.function}
    plain = "f(x, y, z, o)" if case.function is multiply_add else "f(x, y, z)"
    return [
        Way("reference", "f(*a)", {**kept, "f": call, "a": arguments_of_call, "times": times}),
        Way("NumPy", plain, {**names, **into}),
        Way("opkiln", "g(x, y, z)", names),
        Way("opkiln out=", "g(x, y, z, out=o)", names),
    ]


def measure(case: Case, n: int, library: ctypes.CDLL, rounds: int) -> tuple[list[str], float]:
    ways = ways_of(case, n, library)
    timings = in_turns(ways, rounds)
    times = ways[0].names["times"]
    base = timings["reference"]
    row = [f"{n:,}", duration(base.seconds / times)]
    for name in ("NumPy", "opkiln", "opkiln out="):
        speed = 1 / timings[name].ratio(base) / times
        row.append(f"{duration(timings[name].seconds)} ({speed:.2f}x)")
    best = timings["opkiln out="]
    row.append(f"{16 * n / best.seconds / 1e9:.1f}")
    row.append(f"{timings['NumPy'].ratio(best):.2f}x")
    return row, 1 / best.ratio(base) / times


def main() -> None:
    options = arguments(__doc__, quick="n up to 1e6 only")
    banner("Throughput: float32, out=, one thread; (speed as a multiple of the reference loop's)")
    print(f"reference: {compiler()} {FLAGS} -lmvec")
    header = ["n", "reference", "NumPy", "opkiln", "opkiln out=", "GB/s", "NumPy / opkiln"]
    checks = []
    with folder() as work:
        library = reference(work)
        for case in CASES:
            rows = []
            for n in SIZES[:-1] if options.quick else SIZES:
                row, speed = measure(case, n, library, options.rounds)
                rows.append(row)
                if n == 10**6:
                    checks.append((f"{case.title} at 1e6 / reference speed", speed, 0.9, ">="))
            print(f"\n{case.title}")
            table(header, rows)
    print()
    goals(checks)


if __name__ == "__main__":
    main()
