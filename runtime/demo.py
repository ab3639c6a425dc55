"""The handwritten digits in, a checked result and a table of times out: `opkiln demo`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

import opkiln as ok

Array = npt.NDArray[Any]
DATA = Path(__file__).parent.parent / "examples" / "data" / "digits" / "digits.npz"
SECONDS_PER_CELL = 0.12  # per timed cell: enough samples for a median, the whole table in seconds
ROUNDS = 7


def standardise(x: Any) -> Any:
    """Each column to mean 0 and deviation 1; the sizes are run-time values."""
    mean = x.sum(0) / x.shape[0]
    centred = x - mean
    variance = (centred * centred).sum(0) / x.shape[0]
    return centred / np.sqrt(variance + 1e-6)


def activation(x: Any) -> Any:
    """The usual approximation of GELU: ten operations, one fused kernel."""
    return 0.5 * x * (1.0 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def softmax(x: Any) -> Any:
    """Rows to probabilities; the maximum is taken off so that exp cannot overflow."""
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class Step:
    title: str
    function: Callable[[Any], Any]
    argument: Array


@dataclass(frozen=True)
class Row:
    title: str
    numpy: float
    uncached: float
    cached: float
    out: float

    def cells(self) -> list[str]:
        ways = (self.uncached, self.cached, self.out)
        return [self.title, _time(self.numpy), *(f"{_time(t)} {self._ratio(t)}" for t in ways)]

    def _ratio(self, seconds: float) -> str:
        ratio = seconds / self.numpy
        return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x"


HEADER = ["call", "NumPy", "uncached", "cached", "with out="]


def load_digits() -> tuple[Array, Array]:
    """Images as rows of 64 float32 values, and the digit that each shows."""
    with np.load(DATA, allow_pickle=False) as data:
        return data["images"].reshape(-1, 64).astype(np.float32), data["labels"]


def steps(images: Array) -> list[Step]:
    few = standardise(images)[:4].copy()
    scaled = standardise(images)
    return [
        Step("standardise 1797x64", standardise, images),
        Step("activation 1797x64", activation, scaled),
        Step("softmax 1797x64", softmax, scaled),
        Step("activation 4x64", activation, few),
    ]


def _time(seconds: float) -> str:
    for unit, scale in (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.2f} s"


def _loops(call: Callable[[], object], budget: float) -> int:
    start = time.perf_counter()
    call()
    once = max(time.perf_counter() - start, 1e-7)
    return max(1, min(20_000, int(budget / ROUNDS / once)))


def time_together(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Median seconds of each call, in turns, so that a slow moment of the machine hits all."""
    loops = [_loops(call, SECONDS_PER_CELL) for call in calls]
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, n, taken in zip(calls, loops, samples, strict=True):
            start = time.perf_counter()
            for _ in range(n):
                call()
            taken.append((time.perf_counter() - start) / n)
    return [median(taken) for taken in samples]


def measure(step: Step, compiled: Callable[..., Any]) -> Row:
    x, out = step.argument, np.empty_like(step.function(step.argument))

    def uncached() -> object:
        # A new compiled object and no programs in memory: it traces, lowers, prints and loads
        # again. The library on disk is there already, so no compiler runs.
        ok.clear_cache()
        return ok.compile(step.function)(x)

    ways = time_together(
        [lambda: step.function(x), uncached, lambda: compiled(x), lambda: compiled(x, out=out)]
    )
    return Row(step.title, *ways)


def check(step: Step, compiled: Callable[..., Any]) -> str:
    """Runs the step once and compares with NumPy; raises if the result is worse than NumPy's."""
    start = time.perf_counter()
    got = compiled(step.argument)
    seconds = time.perf_counter() - start
    exact = step.function(step.argument.astype(np.float64))

    def error(result: Array) -> float:
        return float(np.abs(result - exact).max() / np.abs(exact).max())

    ours, numpys = error(got), error(step.function(step.argument))
    if got.dtype != np.float32 or not ours <= max(1e-6, 2 * numpys):
        raise AssertionError(f"{step.title}: error {ours:.1e} ({got.dtype}), NumPy's {numpys:.1e}")
    return (
        f"{step.title:<20} largest error {ours:.1e} (NumPy {numpys:.1e}), "
        f"first call {_time(seconds)}"
    )


def table(rows: Sequence[Sequence[str]], plain: bool) -> None:
    if not plain and sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
        except ImportError:
            pass
        else:
            pretty = Table(*rows[0][:1])
            for name in rows[0][1:]:
                pretty.add_column(name, justify="right")
            for row in rows[1:]:
                pretty.add_row(*row)
            Console().print(pretty)
            return
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        first = row[0].ljust(widths[0])
        print("  ".join([first, *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]))


def _progress(text: str) -> None:
    if sys.stdout.isatty():
        print(f"\r\x1b[K{text}", end="", flush=True)


def run(plain: bool = False) -> int:
    images, labels = load_digits()
    print(f"{len(labels)} handwritten digits of 8 x 8 pixels, float32")
    print("\nChecked: largest error relative to the same NumPy code in float64")
    todo = steps(images)
    functions = {step.function: ok.compile(step.function) for step in todo}
    for step in todo:
        _progress(f"compiling {step.title} ...")
        line = check(step, functions[step.function])
        _progress("")
        print(f"  {line}")
    rows = [HEADER]
    for step in todo:
        _progress(f"timing {step.title} ...")
        rows.append(measure(step, functions[step.function]).cells())
    _progress("")
    print("\nMedian time of one call, and the ratio to NumPy (below 1 is faster):")
    table(rows, plain)
    print("\nuncached: trace, lower, print and load again; the library comes from the disk cache")
    for function, compiled in functions.items():
        info = compiled.info()
        print(
            f"{function.__name__}: {info.calls:,} calls, {info.traces} trace(s), "
            f"{info.builds} build(s), {info.executors} executor(s)"
        )
    return 0
