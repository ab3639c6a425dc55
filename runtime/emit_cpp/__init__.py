"""Emission: kernels and their operand classes in, one C++ translation unit out. Pure and deterministic.

The text includes nothing: op bodies are pasted from native/include/opkiln/bodies.h, only those used. All
elements, the last ones of a row too, go through the same vector statements (a short rest is padded to a
whole vector), so cut, stride and length cannot change a bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from opkiln.runtime import kernel as k
from opkiln.runtime.emit_cpp.columns import ColumnPrinter
from opkiln.runtime.emit_cpp.panel import PanelPrinter
from opkiln.runtime.emit_cpp.text import Job, closure, combiner, expression, lanes, sections

__all__ = ["Job", "emit"]

_ARGS = """struct ok_args {
  char *const *ptr;
  const i64 *row, *col;
  const u64 *scalar;
  i64 cols;
};
"""


def emit(jobs: Sequence[Job]) -> str:
    """The translation unit of these kernels."""
    width = min(lanes(job.kernel) for job in jobs)
    iota = ", ".join(map(str, range(width)))
    used = [expression(job.kernel, s) for job in jobs for s in job.kernel.statements()]
    parts = [
        "// opkiln generated kernel, ABI 1\n",
        f"#define OK_N {width}\n#define OK_IOTA {iota}\n",
    ]
    parts += [sections()[name][1] for name in closure(used)]
    parts.append(_ARGS)
    nest = sections("nest.h")
    parts.append(nest["rest"][1])
    if any(job.by_rows for job in jobs):
        parts.append(nest["part"][1])
    folds = [s.row for job in jobs for s in job.kernel.statements() if isinstance(s, k.Accumulate)]
    if folds:
        parts.append(nest["fold"][1])
        parts += [combiner(row) for row in dict.fromkeys(folds)]
    for job in jobs:
        printer = PanelPrinter if job.by_rows else ColumnPrinter
        parts.append(printer(job, width).text())
    return "\n".join(part.strip("\n") for part in parts) + "\n"
