"""Do minutes of mixed calls from many threads leave anything behind? What would the seed's pool?

Each thread calls one function with 64 layouts: inline, into out=, on an asynchronous stream of its
own, and now and then with arguments that are refused. Memory, executors and events are read at ten
moments. Then the pool and a model of the one that it replaces (SEED-SYSTEMS C23 to C25, K13) take
the same calls on a device whose work ends three calls later.

Run: python benchmarks/soak.py [--minutes 5] [--threads 16] [--keys 64] [--plot FILE.png]
Ends with status 1 if a line says MISSED.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from _common import banner, goals, have, resident, table

import opkiln as ok
from opkiln import native

INTERVALS, WARM = 10, 3  # read so often; the first three are not judged
LAG, CALLS = 3, 16  # of the comparison: K13


def plain(x, y, z):
    return np.tanh(x * y + z) * x - y


# ---- the soak ----


@dataclass
class Caller:
    """One thread's calls; the main thread reads its counts."""

    f: ok.Compiled
    arrays: list[list[np.ndarray]]
    wanted: list[np.ndarray]  # the results, to the bit
    seed: int
    calls: int = 0
    refused: int = 0
    failure: BaseException | None = None
    stop: bool = False
    queued: deque = field(default_factory=deque)

    def body(self) -> None:
        try:
            with ok.Stream.inline():
                self.work(random.Random(self.seed), ok.Stream("cpu"))
        except BaseException as error:
            self.failure = error

    def work(self, rng: random.Random, stream: ok.Stream) -> None:
        outs = [np.empty_like(group[0]) for group in self.arrays]
        while not self.stop:
            k = rng.randrange(len(self.arrays))
            way = rng.random()
            if way < 0.6:
                self.f(*self.arrays[k])
            elif way < 0.8:
                self.f(*self.arrays[k], out=outs[k])
            elif way < 0.99:
                with stream:
                    self.queued.append((k, self.f(*self.arrays[k])))
            else:
                self.refuse(k)
            self.calls += 1
            if len(self.queued) >= 8:
                self.collect(rng)
        while self.queued:
            self.collect(rng)
        stream.close()

    def collect(self, rng: random.Random) -> None:
        """Wait for the oldest queued call, look at its result, or drop it unseen."""
        k, future = self.queued.popleft()
        if rng.random() < 0.5:
            np.testing.assert_array_equal(future.result(), self.wanted[k], strict=True)

    def refuse(self, k: int) -> None:
        try:
            self.f(*self.arrays[k][:2], np.empty(len(self.arrays[k][0]) + 1, np.float32))
        except ok.errors.ShapeError:
            self.refused += 1


def soak(minutes: float, threads: int, keys: int) -> list[tuple[str, float, float, str]]:
    f = ok.compile(plain)
    rng = np.random.default_rng(1)
    arrays = [
        [rng.uniform(0.5, 1, 16 + 40 * k).astype(np.float32) for _ in range(3)] for k in range(keys)
    ]
    wanted = [f(*group) for group in arrays]
    for group, result in zip(arrays, wanted, strict=True):
        np.testing.assert_allclose(result, plain(*group), rtol=0, atol=4e-7)
    before = ok.runtime_info()
    callers = [Caller(f, arrays, wanted, seed) for seed in range(threads)]
    running = [threading.Thread(target=caller.body) for caller in callers]
    for thread in running:
        thread.start()
    rows, sizes, alive, done = [], [], [], 0
    start = time.perf_counter()
    for step in range(1, INTERVALS + 1):
        time.sleep(max(0.0, start + step * minutes * 60 / INTERVALS - time.perf_counter()))
        if sys.stderr.isatty():
            print(f"\r{step}/{INTERVALS}", end="" if step < INTERVALS else "\r", file=sys.stderr)
        info, calls = ok.runtime_info(), sum(caller.calls for caller in callers)
        sizes.append(resident())
        alive.append(info.totals.executors)
        seconds = minutes * 60 / INTERVALS
        row = [f"{step * seconds:.0f} s", f"{calls:,}", f"{(calls - done) / seconds:,.0f}"]
        row += [f"{sizes[-1] / 1e6:.1f}", f"{alive[-1]:,}", str(info.totals.in_flight)]
        rows.append([*row, str(info.totals.waits), str(info.events_outstanding)])
        done = calls
    for caller in callers:
        caller.stop = True
    for thread in running:
        thread.join()
    head = ["time", "calls", "calls/s", "resident MB", "executors", "in flight", "waits", "events"]
    table(head, rows)
    failures = [caller.failure for caller in callers if caller.failure is not None]
    for failure in failures:
        print(f"failed: {failure!r}")
    gc.collect()
    after = ok.runtime_info()
    print(f"{sum(caller.refused for caller in callers):,} calls refused as they should be")
    judged = sizes[WARM:]
    return [
        ("threads that failed", len(failures), 0, "<="),
        ("leaked events", after.events_outstanding - before.events_outstanding, 0, "<="),
        ("leaked executors", after.totals.executors - before.totals.executors, 0, "<="),
        ("in flight at the end", after.totals.in_flight + after.leaked_executors, 0, "<="),
        ("streams at the end", after.streams, 0, "<="),
        ("memory, most / least after the warm-up", max(judged) / min(judged), 1.02, "<="),
        ("executors of a thread and layout", max(alive) / threads / keys, 10, "<="),
    ]


# ---- the pool that it replaces ----


class SeedPool:
    """C23 to C25: looks at the front alone, and doubles with spares that look busy."""

    def __init__(self, *, queue_limited: bool) -> None:
        self.queue_limited = queue_limited
        self.due: deque[int | None] = deque()  # None: never recorded, which looks unfinished
        self.waits = 0

    def call(self, now: int) -> None:
        """Take an executor, or make some, and put it to the back with its work queued."""
        front = self.due[0] if self.due else None
        if front is not None and front <= now:
            self.due.popleft()
        elif self.queue_limited or len(self.due) <= 10:
            self.due.extendleft([None] * (max(len(self.due), 1) - 1))
        else:
            self.due.popleft()
            self.waits += 1
        self.due.append(now + LAG)


def compared() -> dict[str, list[int]]:
    """Executors alive after each call: ours, from the native pool, and the seed's."""
    ours = native.PoolProbe([LAG], timeout_s=60)
    seeds = {"seed, CPU": SeedPool(queue_limited=False), "seed, CUDA": SeedPool(queue_limited=True)}
    alive: dict[str, list[int]] = {"ours": [], **{name: [] for name in seeds}}
    for now in range(CALLS):
        executor = ours.acquire(0, 0)
        ours.run(executor)
        ours.release(executor)
        idle, leased, in_flight = ours.state(0)
        alive["ours"].append(len(idle) + leased + len(in_flight))
        ours.advance(0, 1)
        for name, pool in seeds.items():
            pool.call(now)
            alive[name].append(len(pool.due))
    return alive


def plot(alive: dict[str, list[int]], path: str) -> None:
    if not have("matplotlib"):
        print("no picture: matplotlib is not installed (pip install 'opkiln[bench]')")
        return
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for name, counts in alive.items():
        axes.plot(range(1, CALLS + 1), counts, marker="o", markersize=3, label=name)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("call")
    axes.set_ylabel("executors alive")
    axes.set_title(f"One layout; work ends {LAG} calls later")
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)
    print(f"picture: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--keys", type=int, default=64)
    parser.add_argument("--plot", metavar="FILE", help="draw executors alive over calls")
    options = parser.parse_args()
    what = f"{options.keys} layouts, {options.threads} threads, {options.minutes:g} minutes"
    banner(f"Soak: {what}")
    rows = soak(options.minutes, options.threads, options.keys)
    alive = compared()
    print(f"\nExecutors alive after each of {CALLS} calls, work ends {LAG} calls later")
    shown = range(0, CALLS, 3)
    table(
        ["pool", *(f"call {i + 1}" for i in shown)],
        [[name, *(f"{counts[i]:,}" for i in shown)] for name, counts in alive.items()],
    )
    if options.plot:
        plot(alive, options.plot)
    print()
    rows.append(("executors of ours at a lag of 3", max(alive["ours"]), LAG + 1, "<="))
    goals(rows)
    if any(measured > goal for _, measured, goal, _ in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
