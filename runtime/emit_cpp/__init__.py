"""Emission: kernels and their operand classes in, one C++ translation unit out.

Pure and deterministic. The text includes nothing: op bodies are pasted from
native/include/opkiln/bodies/, only those used. All elements, the last ones of a row too, go
through the same vector statements (a short rest is padded to a whole vector), so cut, stride and
length cannot change a bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from opkiln.ops.table import REDUCTIONS
from opkiln.runtime import kernel as k
from opkiln.runtime.bodies import closure, head, sections
from opkiln.runtime.emit_cpp.columns import ColumnPrinter
from opkiln.runtime.emit_cpp.panel import PanelPrinter
from opkiln.runtime.emit_cpp.product import product_text
from opkiln.runtime.emit_cpp.text import Job, lanes
from opkiln.runtime.folds import combiner
from opkiln.runtime.jit import KERNEL_ABI

__all__ = ["Job", "emit", "lanes"]

_ARGS = """struct ok_args {
  char *const *ptr;
  const i64 *row, *col;
  const u64 *scalar;
  i64 cols, run;
  const i64 *far;
  char *scratch;
};
"""


def emit(jobs: Sequence[Job], *, vector_bytes: int = 64) -> str:
    """The translation unit of these kernels, in vectors of `vector_bytes`, which change no bit."""
    width = min(lanes(job.kernel, vector_bytes) for job in jobs)
    kernels = [_text(job, width) for job in jobs]
    folds = [s.row for j in jobs for s in j.kernel.statements() if isinstance(s, k.Accumulate)]
    frame = sections("nest.h")
    nest = [_ARGS, frame["rest"][1]]
    if any(job.by_rows for job in jobs):
        nest.append(frame["part"][1])
    if any(job.kernel.product for job in jobs):
        nest += [f"#define OK_WIDE {vector_bytes}\n", sections("product.h")["product"][1]]
    if any(job.kernel.reduced and not job.kernel.product for job in jobs):
        nest += [frame["pairs"][1], frame["fold"][1]]
        if any(REDUCTIONS[row].finds for row in folds):
            nest.append(frame["find"][1])
        nest += [combiner(row) for row in dict.fromkeys(folds)]
    parts = [
        f"// opkiln generated kernel, ABI {KERNEL_ABI}\n",
        head(width),
        *(sections("bodies")[name][1] for name in closure([*nest, *kernels])),
        *nest,
        *kernels,
    ]
    return "\n".join(part.strip("\n") for part in parts) + "\n"


def _text(job: Job, width: int) -> str:
    if job.kernel.product:
        return product_text(job)
    return (PanelPrinter if job.by_rows else ColumnPrinter)(job, width).text()
