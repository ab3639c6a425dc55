"""What do threads gain: several that call at once, and several that work on one call?

Three questions, float32: how much more do two Python threads (and as many as there are CPUs) call
in a second than one, each call on its own thread; how much faster is one call cut for two threads
(and for all CPUs); and what does the readiness to cut cost calls that are too small for it. Times
are the least of all rounds, taken in turns, since a busy CPU can only add to them.

Run: python benchmarks/threads.py
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from _common import arguments, banner, duration, goals, table

import opkiln as ok
from opkiln import native

SMALL = (100, 1_000, 10_000, 30_000, 100_000)
LARGE = (10**5, 10**6, 10**7)
SECONDS = 0.003  # of a sample: short enough to fall between what else the machine does


def chain(x, y):
    return (x * y + x) * 2.0 - y


def mixed(x, y):
    return np.tanh(x * y) * np.exp(-x)


def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def operands(n: int) -> tuple[Any, ...]:
    return tuple(np.random.default_rng(n).uniform(0.1, 1.0, (2, n)).astype(np.float32))


def loops_of(call: Callable[[], object]) -> int:
    call()
    start = time.perf_counter()
    for _ in range(10):
        call()
    return max(1, round(10 * SECONDS / (time.perf_counter() - start)))


def seconds(call: Callable[[], object], loops: int) -> float:
    """Of one call."""
    start = time.perf_counter()
    for _ in range(loops):
        call()
    return (time.perf_counter() - start) / loops


def together(calls: Sequence[Callable[[], object]], loops: int) -> float:
    """The time for as many calls of each, at the same time, on a thread of its own; per call."""
    begin = threading.Barrier(len(calls))
    spans: list[tuple[float, float]] = []

    def body(call: Callable[[], object]) -> None:
        with ok.config.scope(num_threads=1):
            call()  # this thread's executor
            begin.wait()
            start = time.perf_counter()
            for _ in range(loops):
                call()
            spans.append((start, time.perf_counter()))

    threads = [threading.Thread(target=body, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (max(end for _, end in spans) - min(start for start, _ in spans)) / loops


def least(ways: Sequence[Callable[[], float]], rounds: int) -> list[float]:
    """Of each way, taken in turns."""
    samples = [[way() for way in ways] for _ in range(rounds)]
    return [min(column) for column in zip(*samples, strict=True)]


def with_count(count: int, call: Callable[[], object], loops: int) -> float:
    with ok.config.scope(num_threads=count):
        return seconds(call, loops)


def callers(counts: Sequence[int], rounds: int) -> list[tuple[str, float, float, str]]:
    f = ok.compile(chain)
    rows, checks = [], []
    for n in LARGE[:2]:
        sets = [(*operands(n), np.empty(n, np.float32)) for _ in range(max(counts))]
        for x, y, out in sets:
            np.testing.assert_allclose(f(x, y, out=out), chain(x, y), rtol=1e-5)
        calls = [partial(f, x, y, out=out) for x, y, out in sets]
        loops = 4 * loops_of(calls[0])  # threads do not leave a barrier at quite the same time
        times = least([partial(together, calls[:c], loops) for c in (1, *counts)], rounds)
        gains = [c * times[0] / t for c, t in zip(counts, times[1:], strict=True)]
        rows.append([f"{n:,}", duration(times[0]), *(f"{gain:.2f}x" for gain in gains)])
        if n == 10**5:
            checks.append(("calls of two threads / of one, chain at 1e5", gains[0], 1.85, ">="))
    print("\nPython threads that call at once: (x*y + x)*2 - y with out=, one thread each")
    table(["n", "one thread", *(f"{c} threads" for c in counts)], rows)
    return checks


def cut(counts: Sequence[int], rounds: int) -> list[tuple[str, float, float, str]]:
    rows, checks = [], []
    for function in (chain, mixed, softmax):
        f = ok.compile(function)
        for n in LARGE:
            x, y = operands(n)
            args = (x.reshape(-1, 100),) if function is softmax else (x, y)
            out = np.empty_like(args[0])
            with ok.config.scope(num_threads=1):
                want = f(*args)
            for count in counts:
                with ok.config.scope(num_threads=count):
                    np.testing.assert_array_equal(f(*args, out=out), want)
            call = partial(f, *args, out=out)
            loops = loops_of(call)
            times = least([partial(with_count, c, call, loops) for c in (1, *counts)], rounds)
            gains = [times[0] / t for t in times[1:]]
            rows.append(
                [function.__name__, f"{n:,}", duration(times[0]), *(f"{g:.2f}x" for g in gains)]
            )
            if function is mixed and n == 10**6:
                checks.append(("one call on two threads, tanh/exp mix at 1e6", gains[0], 1.7, ">="))
    print("\nOne call, cut")
    table(["function", "n", "one thread", *(f"{c} threads" for c in counts)], rows)
    return checks


def small(rounds: int) -> list[tuple[str, float, float, str]]:
    rows, worst = [], 0.0
    for function in (chain, mixed):
        f = ok.compile(function)
        for n in SMALL:
            x, y = operands(n)
            out = np.empty_like(x)
            call = partial(f, x, y, out=out)
            loops = loops_of(call)
            one, two = least([partial(with_count, c, call, loops) for c in (1, 2)], rounds)
            worst = max(worst, two / one)
            rows.append([function.__name__, f"{n:,}", duration(one), duration(two)])
    print("\nSmall calls, with one thread allowed and with two")
    table(["function", "n", "one", "two"], rows)
    return [("slowest small call with two threads / with one", worst, 1.05, "<=")]


def main() -> None:
    rounds = 15 * arguments(__doc__).rounds
    cpus = native.usable_cpus()
    counts = [2] if cpus <= 2 else [2, cpus]
    banner("Threads: callers at once, and one call cut for several")
    checks = [*callers(counts, rounds), *cut(counts, rounds), *small(rounds)]
    print(f"\nworkers: {native.worker_stats()}\n")
    goals(checks)


if __name__ == "__main__":
    main()
