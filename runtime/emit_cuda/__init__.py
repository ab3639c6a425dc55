"""Emission for NVIDIA devices: kernels in, one CUDA translation unit out.

Pure and deterministic; the text includes nothing. It holds the very bodies that the C++ emitter
pastes, over a vector of one lane, with the sections of native/include/opkiln/cuda/ in the place of
those that name vector registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from opkiln.runtime import kernel as k
from opkiln.runtime.bodies import closure, sections
from opkiln.runtime.emit_cuda.text import Job, Printer, is_scratch
from opkiln.runtime.folds import combiner

__all__ = ["CUDA_ABI", "Job", "emit", "is_scratch"]

CUDA_ABI = "1"  # of ok_args in native/include/opkiln/cuda/launch.h


def emit(jobs: Sequence[Job]) -> str:
    """The translation unit of these kernels."""
    kernels = [Printer(job).text() for job in jobs]
    statements = [s for job in jobs for s in job.kernel.statements()]
    folds = dict.fromkeys(s.row for s in statements if isinstance(s, k.Accumulate))
    frame = [combiner(row) for row in folds]
    if folds:
        frame.append(sections("nest.h")["pairs"][1])
    parts = [
        f"// opkiln generated kernel, CUDA ABI {CUDA_ABI}\n",
        *(sections("cuda")[name][1] for name in closure([*frame, *kernels], "cuda")),
        *frame,
        *kernels,
    ]
    return "\n".join(part.strip("\n") for part in parts) + "\n"
