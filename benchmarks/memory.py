"""Does memory stay flat over 100,000 calls with 50 keys on 8 threads, and how big is an executor?

Run: python benchmarks/memory.py
"""

from __future__ import annotations

import gc
import threading

import numpy as np
from _common import arguments, banner, goals, resident, table

import opkiln as ok

CALLS, KEYS, THREADS, STEPS = 100_000, 50, 8, 8


def plain(x, y, z):
    return np.tanh(x * y + z) * x - y


f = ok.compile(plain)


def main() -> None:
    arguments(__doc__)
    banner(f"Memory: {CALLS:,} calls, {KEYS} keys, {THREADS} threads, counted in {STEPS} steps")
    inputs = [tuple(np.full(16 + k, 0.5, np.float32) for _ in range(3)) for k in range(KEYS)]
    for group in inputs:
        np.testing.assert_allclose(f(*group), plain(*group), rtol=2e-6)
    # The threads live through all steps, so that their tables do; the main thread reads between.
    start, done = threading.Barrier(THREADS + 1), threading.Barrier(THREADS + 1)
    per_step = -(-CALLS // THREADS // STEPS)

    def body() -> None:
        for step in range(STEPS):
            start.wait()
            for i in range(per_step):
                f(*inputs[(i + step) % KEYS])
            done.wait()

    threads = [threading.Thread(target=body) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    rows, sizes, each = [], [], 0.0
    for step in range(STEPS):
        start.wait()
        done.wait()
        gc.collect()
        info = f.info()
        each = max(each, info.bytes / info.executors)
        sizes.append(resident())
        rows.append(
            [f"{(step + 1) * per_step * THREADS:,}", f"{sizes[-1] / 1e6:.2f}", str(info.executors)]
        )
    for thread in threads:
        thread.join()
    table(["calls", "resident MB", "executors"], rows)
    print(f"{f.info()}")
    growth = (sizes[-1] - sizes[0]) / 1e6
    goals(
        [
            ("growth after the first step, MB", growth, 0.5, "<="),
            ("bytes of an executor beside its workspace", each, 4096, "<="),
        ]
    )


if __name__ == "__main__":
    main()
