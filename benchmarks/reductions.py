"""How fast are reductions and row programs, against NumPy, loops by hand and the read bandwidth?

float32, one thread, results written to out=. The loops by hand are native/reference.cpp (its flags
stand at its head). The read bandwidth is that of its loop `ref_read_all` over the same bytes in the
order of memory; a row that reads its operand twice (var) is compared with twice the bytes.

Run: python benchmarks/reductions.py
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from _common import (
    FLAGS,
    Timing,
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

Array = np.ndarray[Any, np.dtype[Any]]
SECONDS = 0.001  # a sample is short, so that the least of many finds the machine undisturbed


def squared_distance(x, y):
    return ((x - y) ** 2).sum()


def softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def layer_norm(x, gain, bias):
    count = x.shape[-1]
    centred = x - x.sum(axis=-1, keepdims=True) / count
    variance = (centred * centred).sum(axis=-1, keepdims=True) / count
    return centred * (1 / np.sqrt(variance + 1e-5)) * gain + bias


def least(timing: Timing) -> float:
    """Seconds of the fastest sample: other work on the machine only ever adds to one."""
    return min(timing.samples)


def pointer(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def measured(
    fn: Callable[..., Any], operands: list[Array], by_hand: Way, rounds: int
) -> list[float]:
    """Seconds of the loop by hand, NumPy and opkiln, after a comparison of the values."""
    want = fn(*(a.astype(np.float64) for a in operands))
    out = np.empty(np.shape(want), np.float32)
    compiled = ok.compile(fn)
    compiled(*operands, out=out)
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-4)
    names = {"f": fn, "g": compiled, "a": operands, "o": out}
    # NumPy's temporaries drive the operands out of the cache: someone else brings them back.
    again = Way("again", by_hand.statement, by_hand.names)
    numpy, ours = Way("NumPy", "f(*a)", names), Way("opkiln", "g(*a, out=o)", names)
    ways = [numpy, again, by_hand, ours]
    timings = in_turns(ways, rounds, SECONDS)
    return [least(timings[way.name]) for way in (by_hand, numpy, ours)]


def programs(library: ctypes.CDLL, rounds: int) -> list[tuple[str, float, float, str]]:
    """Whole programs against the same loops by hand."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(10**7).astype(np.float32) for _ in range(2))
    square = x[: 4096 * 1024].reshape(4096, 1024)
    gain, bias = (rng.standard_normal(1024).astype(np.float32) for _ in range(2))
    out = np.empty_like(square)
    sizes = [ctypes.c_int64(n) for n in (4096, 1024, 1)]
    cases = [
        (
            "sum((x-y)**2), n = 1e7",
            squared_distance,
            [x, y],
            library.ref_squared_distance,
            [pointer(x), pointer(y), pointer(out), ctypes.c_int64(x.size), ctypes.c_int64(1)],
            0.9,
        ),
        (
            "softmax, 4096 x 1024",
            lambda x: softmax(x, -1),
            [square],
            library.ref_softmax,
            [pointer(square), pointer(out), *sizes],
            0.8,
        ),
        (
            "layer norm, 4096 x 1024",
            layer_norm,
            [square, gain, bias],
            library.ref_layer_norm,
            [pointer(square), pointer(gain), pointer(bias), pointer(out), *sizes],
            0.8,
        ),
    ]
    rows, checks = [], []
    for title, fn, operands, loop, values, goal in cases:
        way = Way("reference", "f(*a)", {"f": loop, "a": values})
        hand, numpy, ours = measured(fn, operands, way, rounds)
        rows.append([title, *map(duration, (hand, numpy, ours)), f"{hand / ours:.2f}x"])
        checks.append((f"{title} / reference speed", hand / ours, goal, ">="))
    print("\nprograms, against the same loops by hand")
    table(["", "reference", "NumPy", "opkiln", "speed / reference"], rows)
    return checks


@dataclass(frozen=True)
class Case:
    """A reduction and what is expected of it: a part of the read bandwidth, or to beat NumPy."""

    title: str
    fn: Callable[..., Any]
    operand: Array
    reads: int = 1
    bandwidth: float | None = None
    numpy: bool = True


def cases() -> list[Case]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((4096, 1024)).astype(np.float32)
    cube = x.reshape(64, 64, 1024)
    short = {n: rng.standard_normal((10**5, n)).astype(np.float32) for n in (3, 8, 23, 31)}
    return [
        Case("sum, axis 0 of 4096 x 1024", lambda x: x.sum(axis=0), x, bandwidth=0.7, numpy=False),
        Case("max, axis 0", lambda x: x.max(axis=0), x, bandwidth=0.7),
        Case("mean, axis 0", lambda x: x.mean(axis=0), x, bandwidth=0.7, numpy=False),
        Case("var, axis 0 (reads twice)", lambda x: x.var(axis=0), x, reads=2, bandwidth=0.7),
        Case("sum, axis 1", lambda x: x.sum(axis=1), x),
        Case("max, axis 1", lambda x: x.max(axis=1), x),
        Case("sum of all", lambda x: x.sum(), x),
        Case("sum, axis 1 of 64 x 64 x 1024", lambda x: x.sum(axis=1), cube, numpy=False),
        Case("max, axis 1", lambda x: x.max(axis=1), cube),
        Case("sum, axes 0 and 2", lambda x: x.sum(axis=(0, 2)), cube),
        Case("max, axes 0 and 2", lambda x: x.max(axis=(0, 2)), cube, numpy=False),
        Case("sum, axis 1 of 1024 x 512 x 8", lambda x: x.sum(axis=1), x.reshape(1024, 512, 8)),
        Case("softmax, axis 0 of 4096 x 1024", lambda x: softmax(x, 0), x, reads=2),
        *(
            Case(f"sum, axis 1 of 1e5 x {n}", lambda x: x.sum(axis=1), operand)
            for n, operand in short.items()
        ),
    ]


def reductions(library: ctypes.CDLL, rounds: int) -> list[tuple[str, float, float, str]]:
    """Reductions against the read bandwidth and NumPy."""
    rows, checks = [], []
    for case in cases():
        x, sink = case.operand, np.empty((), np.float32)
        values = [pointer(x), pointer(sink), ctypes.c_int64(x.size), ctypes.c_int64(case.reads)]
        way = Way("read", "f(*a)", {"f": library.ref_read_all, "a": values})
        read, numpy, ours = measured(case.fn, [x], way, rounds)
        rate = f"{case.reads * x.nbytes / ours / 1e9:.1f}"
        times = list(map(duration, (read, numpy, ours)))
        rows.append([case.title, *times, rate, f"{read / ours:.2f}", f"{numpy / ours:.2f}x"])
        if case.bandwidth is not None:
            checks.append((f"{case.title} / read bandwidth", read / ours, case.bandwidth, ">="))
        if case.numpy:
            checks.append((f"{case.title}: NumPy / opkiln", numpy / ours, 1.0, ">="))
    print("\nreductions, against reading the operand once")
    table(["", "read", "NumPy", "opkiln", "GB/s", "/ bandwidth", "NumPy / opkiln"], rows)
    return checks


def main() -> None:
    options = arguments(__doc__)
    banner("Reductions: float32, out=, one thread; least time of many short samples")
    print(f"reference: {compiler()} {FLAGS} -lmvec")
    rounds = 10 * options.rounds
    with folder() as work:
        library = reference(work)
        checks = programs(library, rounds) + reductions(library, rounds)
    print()
    goals(checks)


if __name__ == "__main__":
    main()
