"""Products of traced arrays: NumPy's arguments in, matrix products and sums of products out.

Matrices are multiplied by the primitive `MatMul`. A product with a vector is an elementwise product
and its sum, which fuse with what is around them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.dtypes import is_half
from opkiln.ops.table import ELEMENTWISE, REDUCTIONS
from opkiln.runtime.errors import ShapeError, TraceError
from opkiln.runtime.graph import Node, const_value
from opkiln.runtime.trace import reductions
from opkiln.runtime.trace.promote import (
    BOOL,
    BROADCAST,
    FLOAT32,
    cast,
    elementwise,
    elementwise_operand,
    session_of,
)
from opkiln.runtime.trace.session import Session, failure
from opkiln.runtime.trace.tracer import Tracer

DT = np.dtype[Any]
_MATMUL = p.MatMul()
_SIGNATURE = "with gufunc signature (n?,k),(k,m?)->(n?,m?)"


# ---- one product of nodes ----


def _wide(dtype: DT) -> DT:
    """What products of this dtype are computed in: halves and bools in float32, rounded once."""
    return FLOAT32 if dtype == BOOL or is_half(dtype) else dtype


def _narrow(session: Session, value: Node, dtype: DT) -> Node:
    if dtype == BOOL:  # a sum of products that are 0 or 1 is 0 only if all are
        return elementwise(session, ELEMENTWISE["not_equal"], (value, 0))
    return cast(session, value, dtype)


def product(session: Session, a: Node, b: Node, dtype: DT) -> Node:
    """Matrices in the last two axes of both, multiplied in `dtype`."""
    wide = _wide(dtype)
    value = session.make(_MATMUL, cast(session, a, wide), cast(session, b, wide))
    return _narrow(session, value, dtype)


def sum_of_products(session: Session, a: Node, b: Node, axes: tuple[int, ...], dtype: DT) -> Node:
    """The elementwise product in `dtype`, summed over axes of the result."""
    wide = _wide(dtype)
    both = cast(session, a, wide), cast(session, b, wide)
    value = Tracer(session, elementwise(session, ELEMENTWISE["multiply"], both))
    if axes:
        value = reductions.reduce(REDUCTIONS["sum"], value, axes, False, wide)
    return _narrow(session, value.node, dtype)


def equal_extents(session: Session, b: Node, axis: int, extent: Node) -> Node:
    """`b` whose extent along `axis` a run checks to be another's, which broadcasting would not."""
    have = b.shape[axis]
    if have is extent:
        return b
    same = session.make(p.HostOp("same"), extent, have)
    return session.make(BROADCAST, b, *(same if i == axis else d for i, d in enumerate(b.shape)))


# ---- matmul ----


def loop_dtype(ufunc: np.ufunc, *operands: Node) -> DT:
    """The dtype that NumPy's ufunc computes in.

    Raises:
        TraceError: it has no loop for these dtypes.
    """
    dtypes = [n.dtype for n in operands]
    if any(d.kind == "V" for d in dtypes):
        found: DT = np.result_type(*dtypes)
        return found
    try:
        return ufunc.resolve_dtypes((*dtypes, None))[0]
    except TypeError as error:
        raise failure(
            TraceError, f"np.{ufunc.__name__}: {error}", fix="cast the operands first"
        ) from None


def matmul(x1: Any, x2: Any) -> Any:
    """np.matmul and @."""
    session = session_of((x1, x2))
    a, b = (elementwise_operand(session, x) for x in (x1, x2))
    for i, x in enumerate((a, b)):
        if not x.rank:
            raise failure(
                ShapeError,
                f"matmul: Input operand {i} does not have enough dimensions (has 0, gufunc core "
                f"{_SIGNATURE.removeprefix('with gufunc ')} requires 1)",
                fix="write a * b to multiply by a number",
            )
    dtype = loop_dtype(np.matmul, a, b)
    if a.rank > 1 and b.rank > 1:
        return Tracer(session, product(session, a, b, dtype))
    k, axis = a.shape[-1], max(b.rank - 2, 0)
    sizes = const_value(k), const_value(b.shape[axis])
    if None not in sizes and sizes[0] != sizes[1]:
        raise failure(
            ShapeError,
            f"matmul: Input operand 1 has a mismatch in its core dimension 0, {_SIGNATURE} "
            f"(size {sizes[1]} is different from {sizes[0]})",
        )
    b = equal_extents(session, b, axis, k)
    if b.rank > 1:  # a row from the left
        a = session.make(p.ExpandDims((1,)), a)
    rank = max(a.rank, b.rank)
    return Tracer(session, sum_of_products(session, a, b, (rank - min(b.rank, 2),), dtype))
