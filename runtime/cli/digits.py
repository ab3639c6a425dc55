"""The handwritten digits in, checked results and a table of times out: for `opkiln demo`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import opkiln as ok
from opkiln.runtime.cli.console import Console
from opkiln.runtime.cli.peers import require_kernels, uncached
from opkiln.runtime.cli.timing import Way, duration, in_turns, times

Array = npt.NDArray[Any]
DATA = Path(__file__).parents[2] / "examples" / "data" / "digits" / "digits.npz"
ROUNDS, SECONDS = 7, 0.017  # of each timed cell: the whole table takes some seconds


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


def measure(step: Step, compiled: Callable[..., Any]) -> list[str]:
    x, out = step.argument, np.empty_like(step.function(step.argument))

    names = {
        "f": step.function,
        "g": compiled,
        "fresh": uncached(step.function),
        "x": x,
        "out": out,
    }
    statements = ("f(x)", "fresh(x)", "g(x)", "g(x, out=out)")
    ways = [Way(text, text, names) for text in statements]
    timings = list(in_turns(ways, ROUNDS, SECONDS).values())
    numpy = timings[0]
    ratios = [f"{duration(t.seconds)} {times(t.ratio(numpy))}" for t in timings[1:]]
    return [step.title, duration(numpy.seconds), *ratios]


def check(step: Step, compiled: ok.Compiled[..., Any]) -> str:
    """Runs the step once and compares with NumPy; raises if the result is worse than NumPy's."""
    start = time.perf_counter()
    got = compiled(step.argument)
    seconds = time.perf_counter() - start
    require_kernels(compiled)
    exact = step.function(step.argument.astype(np.float64))

    def error(result: Array) -> float:
        return float(np.abs(result - exact).max() / np.abs(exact).max())

    ours, numpys = error(got), error(step.function(step.argument))
    if got.dtype != np.float32 or not ours <= max(1e-6, 2 * numpys):
        raise AssertionError(f"{step.title}: error {ours:.1e} ({got.dtype}), NumPy's {numpys:.1e}")
    return (
        f"{step.title:<20} largest error {ours:.1e} (NumPy {numpys:.1e}), "
        f"first call {duration(seconds)}"
    )


def show(console: Console) -> int:
    images, labels = load_digits()
    console.line(f"{len(labels)} handwritten digits of 8 x 8 pixels, float32")
    todo = steps(images)
    functions = {step.function: ok.compile(step.function) for step in todo}
    checks: list[str] = []
    rows: list[list[str]] = []
    with console.progress(2 * len(todo)) as now:
        for step in todo:
            now(f"compiling {step.title}")
            checks.append(check(step, functions[step.function]))
        for step in todo:
            now(f"timing {step.title}")
            rows.append(measure(step, functions[step.function]))
    console.title("Checked: largest error relative to the same NumPy code in float64")
    for line in checks:
        console.line(f"  {line}")
    console.title("Median time of one call, and the ratio to NumPy (below 1 is faster)")
    console.table(HEADER, rows)
    console.line("uncached: trace, lower, print and load again; the library comes from the cache")
    console.line()
    for function, compiled in functions.items():
        info = compiled.info()
        console.line(
            f"{function.__name__}: {info.calls:,} calls, {info.traces} trace(s), "
            f"{info.builds} build(s), {info.executors} executor(s)"
        )
    console.line()
    console.line("next: decorate a function of your own with @ok.compile, and see what it becomes:")
    console.line("  opkiln show FILE.py:FUNC --shapes 'float32[64,1024]'")
    return 0
