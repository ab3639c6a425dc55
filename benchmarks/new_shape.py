"""What does the first call with a new shape cost, for graphs of 3, 10 and 100 nodes?

The layout class is known, so nothing is traced or built. Run: python benchmarks/new_shape.py
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from itertools import product
from statistics import median
from typing import Any

import numpy as np
from _common import arguments, banner, duration, goals, table

import opkiln as ok

SHAPES = 1_000


def chain(nodes: int) -> Callable[..., Any]:
    """A function of `nodes` operations on three arrays."""

    def f(x: Any, y: Any, z: Any) -> Any:
        operands = (y, z, x)
        value = x
        for i in range(nodes):
            value = value * operands[i % 3] if i % 2 else value + operands[i % 3]
        return value

    return f


def arrays(shape: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(len(shape))
    return [rng.uniform(0.5, 1.0, shape).astype(np.float32) for _ in range(3)]


def nanoseconds(f: Callable[..., Any], inputs: list[np.ndarray]) -> int:
    x, y, z = inputs
    start = time.perf_counter_ns()
    f(x, y, z)
    return time.perf_counter_ns() - start


def warm_nanoseconds(f: Callable[..., Any], inputs: list[np.ndarray]) -> float:
    """One call in a tight loop over the same arrays, as warm_call.py times it."""
    x, y, z = inputs
    timer = timeit.Timer("f(x, y, z)", globals={"f": f, "x": x, "y": y, "z": z})
    return min(timer.repeat(3, 5_000)) / 5_000 * 1e9


def clock_cost() -> int:
    """What reading the clock twice adds to `nanoseconds`."""

    def nothing(x: Any, y: Any, z: Any) -> None: ...

    call = median(nanoseconds(nothing, [None] * 3) for _ in range(2_000))  # type: ignore[list-item]
    start = time.perf_counter_ns()
    for _ in range(20_000):
        nothing(None, None, None)
    return max(0, round(call - (time.perf_counter_ns() - start) / 20_000))


def one_graph(nodes: int, sizes: range) -> tuple[float, float, list[float], Any]:
    """Median seconds of a first and of a warm call, their ratio per 100 sizes, and info()."""
    plain = chain(nodes)
    f = ok.compile(plain)
    np.testing.assert_allclose(f(*arrays((7,))), plain(*arrays((7,))), rtol=1e-6)
    clock = clock_cost()
    new_all, warm_all, ratios = [], [], []
    for block in range(0, len(sizes), 100):
        inputs = [arrays((n,)) for n in sizes[block : block + 100]]
        new = median(nanoseconds(f, group) - clock for group in inputs)
        warm = warm_nanoseconds(f, inputs[len(inputs) // 2])
        new_all.append(new)
        warm_all.append(warm)
        ratios.append(new / warm)
    return median(new_all) * 1e-9, median(warm_all) * 1e-9, ratios, f.info()


def edge_sizes() -> tuple[int, int, int]:
    """All pairs of edge sizes: how many shapes, traces and builds that takes."""
    plain = chain(3)
    f = ok.compile(plain)
    shapes = list(product((0, 1, 2, 1_000), repeat=2))
    for shape in shapes:
        np.testing.assert_allclose(f(*arrays(shape)), plain(*arrays(shape)), rtol=1e-6)
    info = f.info()
    return len(shapes), info.traces, info.builds + info.disk_hits


def main() -> None:
    arguments(__doc__)
    banner(f"New shape of a known layout class: {SHAPES} sizes from 16 up, float32, one axis")
    rows, checks = [], []
    for nodes in (3, 10, 100):
        new, warm, ratios, info = one_graph(nodes, range(16, 16 + SHAPES))
        loads = info.builds + info.disk_hits
        ratio = median(ratios)
        rows.append(
            [
                str(nodes),
                duration(new),
                duration(warm),
                f"{ratio:.1f}x",
                str(info.traces),
                str(loads),
            ]
        )
        checks.append((f"new / warm, {nodes} nodes", ratio, 10, "<="))
        checks.append((f"traces + builds, {nodes} nodes", info.traces + loads, 2, "<="))
    table(["nodes", "first call", "warm call", "ratio", "traces", "builds or loads"], rows)
    count, traces, loads = edge_sizes()
    print(f"sizes 0, 1, 2, 1000 on each of two axes: {count} shapes, {traces} trace, {loads} build")
    goals([*checks, ("traces + builds, edge sizes", traces + loads, 2, "<=")])


if __name__ == "__main__":
    main()
