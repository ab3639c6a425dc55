"""The formulas of `opkiln bench` in, checked and timed results out."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opkiln.runtime.cli.peers import (
    NUMPY,
    PEERS,
    Array,
    Formula,
    error,
    numpy_way,
    opkiln_ways,
)
from opkiln.runtime.cli.timing import Timing, Way, in_turns
from opkiln.runtime.config import config

BASE = "NumPy"


@dataclass(frozen=True)
class Case:
    """A formula, the shape of its operands, and the error that its result may have."""

    name: str
    formula: Formula
    shape: tuple[int, ...]
    tolerance: float = 3e-6

    @property
    def size(self) -> str:
        """Extents of the operands."""
        return ", ".join(map(str, self.shape))

    @property
    def title(self) -> str:
        """Name and size."""
        return f"{self.name} [{self.size}]"

    def arrays(self) -> list[Array]:
        """The same operands on every machine."""
        rng = np.random.default_rng(0)
        return [
            rng.uniform(0.1, 1.0, self.shape).astype(np.float32)
            for _ in range(self.formula.operands)
        ]


ADD = Formula(("x + y",), 2)
CHAIN = Formula(("tanh(x * y + z) * x - y",), 3)
MIXED = Formula(("tanh(x * y + z) * exp(-x) + sqrt(y)",), 3)
DISTANCE = Formula(("sum((x - y) ** 2)",), 2)
SOFTMAX = Formula(("e = exp(x - rowmax(x))", "e / rowsum(e)"), 1)
CASES = (
    Case("x + y", ADD, (16,)),
    Case("tanh(x*y + z)*x - y", CHAIN, (16,)),
    Case("x + y", ADD, (1_000_000,)),
    Case("tanh(x*y + z)*exp(-x) + sqrt(y)", MIXED, (1_000_000,)),
    Case("sum((x - y)**2)", DISTANCE, (1_000_000,), 1e-3),
    Case("softmax of each row", SOFTMAX, (1024, 256)),
)


@dataclass(frozen=True)
class Result:
    """One way of one case: its error against float64, its times; no times if it was wrong."""

    name: str
    error: float
    timing: Timing | None
    note: str = ""


@dataclass(frozen=True)
class Outcome:
    """All ways of one case."""

    case: Case
    results: tuple[Result, ...]

    def get(self, name: str) -> Result | None:
        """The result of one way, if it took part."""
        return next((r for r in self.results if r.name == name), None)

    def ratio(self, name: str, base: str = BASE) -> float | None:
        """Time relative to that of another way; below 1 is faster."""
        own, other = self.get(name), self.get(base)
        if own is None or other is None or own.timing is None or other.timing is None:
            return None
        return own.timing.ratio(other.timing)


@config.scope(num_threads=1)  # as the peers
def measure(
    case: Case,
    peers: Sequence[str],
    rounds: int,
    seconds: float,
    now: Callable[[str], None],
) -> Outcome:
    """Checks every way of the case, then times those that are right, in turns."""
    arrays = case.arrays()
    exact = np.asarray(case.formula.function(NUMPY)(*(a.astype(np.float64) for a in arrays)))
    ways = [numpy_way(case.formula, arrays), *opkiln_ways(case.formula, arrays)]
    results: dict[str, Result] = {}
    for name in peers:
        now(f"{case.title}: preparing {name}")
        try:
            with contextlib.redirect_stdout(sys.stderr):  # the answer is ours alone
                way = PEERS[name](case.formula, arrays)
                if way is not None:
                    error(way, exact)  # compiles
                    ways.append(way)
        except (Exception, SystemExit) as problem:
            # A peer that does not work here is not our failure, and must not stop the others.
            results[name] = Result(name, 0.0, None, _short(problem))
    right: list[Way] = []
    for way in ways:
        off = error(way, exact)
        note = "" if off <= case.tolerance else f"wrong by {off:.1e}"
        results[way.name] = Result(way.name, off, None, note)
        if not note:
            right.append(way)
    timings = in_turns(right, rounds, seconds, lambda: now(f"{case.title}: timing"))
    for name, timing in timings.items():
        results[name] = Result(name, results[name].error, timing)
    return Outcome(case, tuple(results.values()))


def _short(problem: BaseException) -> str:
    text = (str(problem) or type(problem).__name__).splitlines()[0]
    return f"{type(problem).__name__}: {text[:80]}"


def steps(cases: Sequence[Case], peers: Sequence[str], rounds: int) -> int:
    """How many times `measure` says what it does now, for all cases."""
    return len(cases) * (len(peers) + rounds)


def machine() -> dict[str, Any]:
    """Where this was measured."""
    import importlib.metadata
    import os
    import platform

    from opkiln.runtime.cli.peers import installed

    def version(name: str) -> str:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # a source tree on the path
            return "of unknown version"

    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "machine": platform.machine(),
        "cpus": cpus,
        "python": platform.python_version(),
        "numpy": np.__version__,
        **{name: version(name) for name in ("opkiln", *installed())},
    }
