"""Emission of matrix products: native/include/opkiln/product.h for one dtype."""

from __future__ import annotations

from opkiln.ops.dtypes import part_of
from opkiln.runtime.bodies import scalar
from opkiln.runtime.emit_cpp.text import Job


def product_text(job: Job) -> str:
    """The function that the runtime calls."""
    dtype = job.kernel.operands[-1].dtype
    part = part_of(dtype)
    product = f"ok_product<{scalar(part)}, {dtype.itemsize // part.itemsize}>"
    return "\n".join(
        [
            f"// {job.symbol} product of {dtype.name}",
            f'extern "C" __attribute__((visibility("default"))) u64 {job.symbol}('
            "const ok_args *a, i64 row_begin, i64 row_end) {",
            f"  if (!a) return {product}::scratch;",
            f"  {product}::run(a, row_begin, row_end);",
            "  return ok_leave(0);",
            "}",
        ]
    )
