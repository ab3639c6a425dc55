"""Outcomes of `opkiln bench` in, a PNG of their ratios out."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from opkiln.runtime.cli.cases import BASE, Outcome
from opkiln.runtime.cli.timing import times
from opkiln.runtime.errors import UsageError

# Ours are filled and strong; the others differ by shape as well as by colour.
LOOKS = {
    "opkiln": ("o", "#c2410c"),
    "opkiln out=": ("D", "#f59e0b"),
    "numexpr": ("s", "#64748b"),
    "numba": ("^", "#2563eb"),
    "jax": ("v", "#0f766e"),
    "torch": ("P", "#9333ea"),
}


def require_matplotlib() -> None:
    """Refuse early.

    Raises:
        UsageError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise UsageError(
            "--png draws with matplotlib, which is not installed",
            fix="pip install 'opkiln[bench]' (or pip install matplotlib), or use --json",
        )


def chart(outcomes: Sequence[Outcome], facts: dict[str, Any]) -> bytes:
    """Left: every way relative to NumPy. Right: how much longer an uncached call takes."""
    figures: Any = import_module("matplotlib.figure")

    rows = len(outcomes)
    figure = figures.Figure(figsize=(12, 1.9 + 0.62 * rows), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2.6, 1), sharey=True)
    _ratios(left, outcomes)
    _savings(right, outcomes)
    left.set_yticks(range(rows), [_label(o) for o in outcomes])
    left.set_ylim(rows - 0.5, -0.5)
    for axes in (left, right):
        axes.grid(axis="x", color="#e2e8f0", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(which="both", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    figure.suptitle("opkiln bench: float32, one thread", fontweight="bold", x=0.01, ha="left")
    names = ("opkiln", "numpy", *(n for n in LOOKS if n in facts and n != "opkiln"))
    told = ", ".join(f"{name} {facts[name]}" for name in names)
    load = " to ".join(f"{value:g}" for value in facts["load"])
    where = f"{facts['machine']}, {facts['cpus']} CPU(s), load {load}"
    figure.supxlabel(f"{told}; Python {facts['python']}; {where}", fontsize=8, color="#64748b")
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return data.getvalue()


def _label(outcome: Outcome) -> str:
    return f"{outcome.case.name}\nfloat32[{outcome.case.size}]"


def _ratios(axes: Any, outcomes: Sequence[Outcome]) -> None:
    axes.set_xscale("log")
    axes.axvline(1, color="#0f172a", linewidth=1.2)
    for name, (marker, colour) in LOOKS.items():
        points = [(r, i) for i, o in enumerate(outcomes) if (r := o.ratio(name)) is not None]
        if points:
            ours = name.startswith("opkiln")
            axes.scatter(
                *zip(*points, strict=True),
                marker=marker,
                color=colour,
                s=90 if ours else 48,
                alpha=1 if ours else 0.8,
                zorder=4 if name == "opkiln" else 3 if ours else 2,
                label=name,
            )
    for i, outcome in enumerate(outcomes):
        ratio = outcome.ratio("opkiln")
        if ratio is not None:
            axes.annotate(
                times(ratio),
                (ratio, i),
                xytext=(0, 9),
                textcoords="offset points",
                ha="center",
                fontsize=9,
                fontweight="bold",
                color=LOOKS["opkiln"][1],
            )
    axes.xaxis.set_major_formatter("{x:g}x")
    axes.xaxis.set_minor_formatter("")
    axes.set_title(f"Time of a call relative to {BASE} (left of the line is faster)", fontsize=10)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.09), ncols=6, frameon=False)


def _savings(axes: Any, outcomes: Sequence[Outcome]) -> None:
    axes.set_xscale("log")
    axes.set_title("Uncached call / cached call", fontsize=10)
    saved = [(i, o.ratio("opkiln uncached", "opkiln")) for i, o in enumerate(outcomes)]
    known = [(i, ratio) for i, ratio in saved if ratio is not None]
    axes.barh([i for i, _ in known], [r for _, r in known], height=0.45, color="#fdba74")
    for i, ratio in known:
        axes.annotate(
            f" {ratio:,.0f}x" if ratio >= 9.5 else f" {ratio:.1f}x",
            (ratio, i),
            va="center",
            fontsize=9,
            fontweight="bold",
        )
    if known:
        axes.set_xlim(1, max(ratio for _, ratio in known) * 20)
    axes.xaxis.set_major_formatter("")  # the numbers stand at the bars
    axes.xaxis.set_minor_formatter("")
