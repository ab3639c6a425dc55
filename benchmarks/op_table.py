"""How fast is each row of the op table from 1e3 to 1e6 elements, against NumPy's own function?

One thread, by its own CPU time, which other processes spoil least. Both write into the same array
(`out=`) where NumPy's function has one, else both make a new one. The rows that seem worst, and all
that seem to miss their goal, are timed again, longer and in several places of the memory, and it is
these figures that are printed: a place alone decides over a tenth where a cache is nearly full.

Run: python benchmarks/op_table.py
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
from _common import Way, banner, goals, in_turns, table

import opkiln as ok
from opkiln.ops.defs import OpRow
from opkiln.ops.dtypes import DTYPES
from opkiln.ops.table import ELEMENTWISE, resolved
from opkiln.runtime.cli.console import Console
from opkiln.runtime.errors import OpkilnError

SIZES = (10**3, 10**4, 10**5, 10**6)
MAIN = ("float32", "float64", "int32", "int64", "uint8", "bool")
GOALS = {"exact": 1.1, "transcendental": 1.3}
WORST = 10
SHORT, LONG = (1, 7, 0.001), (5, 15, 0.004)  # places, rounds in each, and seconds of a sample


@dataclass
class Case:
    """A row on one dtype: NumPy's function, ours, and their operands."""

    row: OpRow
    dtype: np.dtype[Any]
    result: np.dtype[Any]
    compiled: Callable[..., Any]

    @property
    def group(self) -> str:
        """Integer results of a row that rounds are exact."""
        is_exact = self.row.exactness == "exact" or self.result.kind not in "fc"
        return "exact" if is_exact else "transcendental"

    @property
    def title(self) -> str:
        return f"{self.row.name} {self.dtype.name}"

    def ways(self, n: int) -> list[Way]:
        names = {f"x{i}": x for i, x in enumerate(operands(self.row, self.dtype, n))}
        into = ""
        if isinstance(self.row.numpy, np.ufunc):
            into, names["o"] = ", out=o", np.empty(n, self.result)
        call = f"f({', '.join(name for name in names if name != 'o')}{into})"
        return [
            Way("NumPy", call, {**names, "f": self.row.numpy}),
            Way("opkiln", call, {**names, "f": self.compiled}),
        ]

    def ratio(self, n: int, places: int, rounds: int, seconds: float) -> float:
        """Time of opkiln by NumPy's: the median of the ratios of each round, then of the places."""
        found: list[float] = []
        held = [self.ways(n) for _ in range(places)]  # at once, or all would lie in one place
        for ways in held:
            timings = in_turns(ways, rounds, seconds, clock=time.thread_time)
            found.append(timings["opkiln"].ratio(timings["NumPy"]))
        return median(found)


def operands(row: OpRow, dtype: np.dtype[Any], n: int) -> list[Any]:
    """Ordinary values: no special ones, and small right operands of integers."""
    rng = np.random.default_rng(0)
    if dtype.kind == "b":
        return [rng.random(n) < 0.5 for _ in range(row.arity)]
    if dtype.kind in "iu":
        high = min(10_000, np.iinfo(dtype).max)
        low = -high if dtype.kind == "i" else 0
        first = rng.integers(low, high, n).astype(dtype)
        return [first, *(rng.integers(1, 8, n).astype(dtype) for _ in range(row.arity - 1))]
    low, high = max(row.domain[0], -1e4), min(row.domain[1], 1e4)
    return [rng.uniform(low, high, n).astype(dtype) for _ in range(row.arity)]


def has_numpy(row: OpRow) -> bool:
    return isinstance(row.numpy, np.ufunc) or hasattr(np, row.name)


def case_of(row: OpRow, dtype: np.dtype[Any]) -> Case | None:
    """The case, or None where NumPy has no function for the dtype."""
    signature = resolved(row, *(dtype,) * row.arity)
    if signature is None or not has_numpy(row):
        return None
    return Case(row, dtype, signature[1], ok.compile(getattr(ok.ops, row.name)))


def prepared(cases: Sequence[Case], now: Callable[[str], None]) -> list[Case]:
    """The cases that opkiln answers as NumPy does, built and checked; the others are told."""
    built: list[Case] = []
    calls: list[Any] = []
    for case in cases:
        specs = [ok.TensorSpec((None,), case.dtype) for _ in range(case.row.arity)]
        calls.append((case.compiled, *specs))
    with contextlib.suppress(OpkilnError):  # told of below, case by case
        ok.warmup(*calls)
    for case in cases:
        now(f"checking {case.title}")
        args = operands(case.row, case.dtype, 1000)
        with np.errstate(all="ignore"):
            want = case.row.numpy(*args)
        try:
            got = case.compiled(*args)
        except OpkilnError as error:
            print(f"not timed: {case.title}: {str(error).splitlines()[0]}")
            continue
        if case.group == "exact":
            np.testing.assert_array_equal(got, want, err_msg=case.title)
        else:
            np.testing.assert_allclose(got, want, rtol=3e-6, err_msg=case.title)
        built.append(case)
    return built


def measured(
    cases: Sequence[Case], sizes: Sequence[int], console: Console
) -> dict[str, list[float]]:
    """Ratios by title, one per size."""
    with console.progress(len(cases)) as now, np.errstate(all="ignore"):
        ratios: dict[str, list[float]] = {}
        for case in cases:
            now(case.title)
            ratios[case.title] = [case.ratio(n, *SHORT) for n in sizes]
    for group, goal in GOALS.items():
        own = [case for case in cases if case.group == group]
        ranked = sorted(own, key=lambda case: -max(ratios[case.title]))
        missed = sum(max(ratios[case.title]) > goal for case in own)
        worst = ranked[: max(WORST + 5, missed)]
        with console.progress(len(worst)) as now, np.errstate(all="ignore"):
            for case in worst:
                now(f"again: {case.title}")
                ratios[case.title] = [case.ratio(n, *LONG) for n in sizes]
    return ratios


def report(cases: Sequence[Case], sizes: Sequence[int], ratios: dict[str, list[float]]) -> None:
    """The worst of each group, the means, and whether the goals hold."""
    lines: list[tuple[str, float, float, str]] = []
    header = ["op", *(f"n = {n:,}" for n in sizes)]
    for group, goal in GOALS.items():
        own = [case.title for case in cases if case.group == group]
        if not own:
            continue
        own.sort(key=lambda title: -max(ratios[title]))
        print(f"\n{group} rows, time by NumPy's: the {WORST} worst of {len(own)}")
        means = [geometric_mean(ratios[title][i] for title in own) for i in range(len(sizes))]
        shown = [[title, *(f"{r:.2f}" for r in ratios[title])] for title in own[:WORST]]
        table(header, [*shown, ["geometric mean of all", *(f"{m:.2f}" for m in means)]])
        lines.append((f"worst {group} row / NumPy", max(ratios[own[0]]), goal, "<="))
    print()
    goals(lines)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", nargs="*", help="names of rows; default: all")
    parser.add_argument("--dtypes", nargs="*", default=MAIN, choices=DTYPES, metavar="DTYPE",
                        help=f"default: {' '.join(MAIN)}")  # fmt: skip
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES, choices=SIZES, metavar="N",
                        help="elements; default: 1000 to 1000000")  # fmt: skip
    parser.add_argument("--all", action="store_true", help="print every ratio, not the worst alone")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every ratio")
    options = parser.parse_args()
    unknown = [name for name in options.rows if name not in ELEMENTWISE]
    if unknown:
        parser.error(f"no row of that name: {', '.join(unknown)}")
    return options


def main() -> None:
    options = parsed()
    banner("The op table: warm calls, one thread; time by NumPy's (below 1 is faster)")
    chosen = options.rows or ELEMENTWISE
    dtypes = [DTYPES[name].numpy for name in options.dtypes]
    rows = [ELEMENTWISE[name] for name in chosen]
    found = [case for row in rows for dtype in dtypes if (case := case_of(row, dtype))]
    lacking = [row.name for row in rows if not has_numpy(row)]
    if lacking:
        print(f"no function of NumPy to compare with: {', '.join(lacking)}")
    console = Console(plain=not sys.stderr.isatty())
    with console.progress(len(found)) as now:
        cases = prepared(found, now)
    ratios = measured(cases, options.sizes, console)
    if options.all:
        header = ["op", *(f"n = {n:,}" for n in options.sizes)]
        table(header, [[title, *(f"{r:.2f}" for r in own)] for title, own in ratios.items()])
    report(cases, options.sizes, ratios)
    if options.json:
        document = {"sizes": list(options.sizes), "ratios": ratios}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
