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
    kernels = _texts(jobs, width)
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


def _texts(jobs: Sequence[Job], width: int) -> list[str]:
    """The text of each job: of one that would repeat another's, a second name for that function.

    A loop that is unrolled by tracing gives the same kernel again and again; the compiler's time is
    that of one.
    """
    first: dict[str, str] = {}  # text without the symbol -> symbol that has it
    texts: list[str] = []
    for job in jobs:
        text = _text(job, width)
        found = first.setdefault(text.replace(job.symbol, ""), job.symbol)
        texts.append(text if found == job.symbol else _alias(job, found))
    return texts


def _alias(job: Job, symbol: str) -> str:
    place = f'__attribute__((alias("{symbol}"), visibility("default")))'
    entry = f'extern "C" u64 {job.symbol}(const ok_args *, i64, i64) {place};'
    return f"// {job.symbol} {job.classes}: as {symbol}\n{entry}"


def _text(job: Job, width: int) -> str:
    if job.kernel.product:
        return product_text(job)
    return (PanelPrinter if job.by_rows else ColumnPrinter)(job, width).text()
