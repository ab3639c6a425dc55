"""NumPy's functions that are written over slices, joins and products of traced arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from opkiln.runtime.errors import CallError, NotYetFunction, ShapeError, TraceError
from opkiln.runtime.graph import Node, host_const
from opkiln.runtime.infer import numel
from opkiln.runtime.trace import indexing, joining, sizes, views
from opkiln.runtime.trace.promote import BROADCAST, session_of
from opkiln.runtime.trace.reductions import NO_VALUE
from opkiln.runtime.trace.session import ArrayValue, failure
from opkiln.runtime.trace.tracer import Tracer, update_in_place

# ---- differences ----


def diff(
    a: Any, n: Any = 1, axis: Any = -1, prepend: Any = NO_VALUE, append: Any = NO_VALUE
) -> Any:
    """np.diff."""
    order = views.whole(n, "n", "pass an int")
    if not order:
        return a
    if order < 0:
        raise failure(CallError, f"order must be non-negative but got {order}")
    session = session_of([v for v in (a, prepend, append) if v is not NO_VALUE])
    x = views.as_array(session, a)
    if not x.ndim:
        raise failure(ShapeError, "diff requires input that is at least one dimensional")
    at = views.one_axis(axis, x.ndim)
    ends = [None if v is NO_VALUE else _end(session, v, x, at) for v in (prepend, append)]
    parts = [part for part in (ends[0], x, ends[1]) if part is not None]
    x = joining.concatenate(parts, at) if len(parts) > 1 else x
    for _ in range(order):
        later = indexing.slices(x, {at: slice(1, None)})
        earlier = indexing.slices(x, {at: slice(None, -1)})
        x = later != earlier if x.dtype == np.bool_ else later - earlier
    return x


def _end(session: Any, value: Any, x: Any, axis: int) -> Any:
    """prepend= or append=: a number stands for one item."""
    end = views.as_array(session, value)
    if end.ndim:
        return end
    shape: list[Any] = list(x.node.shape)
    shape[axis] = sizes.ONE
    return Tracer(session, session.make(BROADCAST, end.node, *shape))


def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """np.ediff1d."""
    session = session_of([v for v in (ary, to_end, to_begin) if v is not None])
    x = joining.flat(views.as_array(session, ary))
    inner = diff(x)
    parts = [inner]
    for value, first in ((to_begin, True), (to_end, False)):
        if value is None:
            continue
        end = joining.flat(views.as_array(session, value))
        if not np.can_cast(end.dtype, x.dtype, "same_kind"):
            name = "to_begin" if first else "to_end"
            raise failure(
                TraceError,
                f"dtype of `{name}` must be compatible with input `ary` under the `same_kind` rule",
            )
        end = end.astype(inner.dtype)
        parts = [end, *parts] if first else [*parts, end]
    return joining.concatenate(parts)


# ---- products ----


def outer(a: Any, b: Any, out: Any = None) -> Any:
    """np.outer."""
    session = session_of((a, b))
    x, y = (joining.flat(views.as_array(session, v)) for v in (a, b))
    if out is not None:
        return update_in_place(out, "multiply", lambda: outer(a, b))
    return views.expanded(x, (1,)) * views.expanded(y, (0,))


def kron(a: Any, b: Any) -> Any:
    """np.kron."""
    session = session_of((a, b))
    x, y = (views.as_array(session, v) for v in (a, b))
    rank = max(x.ndim, y.ndim)
    x, y = (views.expanded(v, tuple(range(rank - v.ndim))) for v in (x, y))
    target = tuple(numel(pair) for pair in zip(x.node.shape, y.node.shape, strict=True))
    product = views.expanded(x, tuple(range(1, 2 * rank, 2))) * views.expanded(
        y, tuple(range(0, 2 * rank, 2))
    )
    return Tracer(session, session.make(joining.RESHAPE, product.node, *target))


def cross(
    a: Any, b: Any, axisa: Any = -1, axisb: Any = -1, axisc: Any = -1, axis: Any = None
) -> Any:
    """np.cross of vectors of three components."""
    if axis is not None:
        axisa = axisb = axisc = axis
    session = session_of((a, b))
    x = _components(session, a, axisa)
    y = _components(session, b, axisb)
    parts = [x[i] * y[j] - x[j] * y[i] for i, j in ((1, 2), (2, 0), (0, 1))]
    rank = parts[0].ndim + 1
    return joining.stack(parts, views.one_axis(axisc, rank))


def _components(session: Any, value: Any, axis: Any) -> list[Any]:
    """The three components, with their number checked."""
    x = views.as_array(session, value)
    if not x.ndim:
        raise failure(ShapeError, "At least one array has zero dimension")
    at = views.one_axis(axis, x.ndim)
    n: Node = x.node.shape[at]
    three = sizes.same(
        session, host_const(3), n,
        "Both input arrays must be (arrays of) 3-dimensional vectors, but they are "
        f"{sizes.known(n)}-dimensional instead.",
    )  # fmt: skip
    whole = indexing.cut_view(x, {at: indexing.Cut(sizes.total(three, -3), host_const(3))})
    return joining.unstack(whole, axis=at)  # type: ignore[return-value]


def meshgrid(*xi: Any, copy: Any = True, sparse: Any = False, indexing: Any = "xy") -> Any:
    """np.meshgrid."""
    if indexing not in ("xy", "ij"):
        raise failure(CallError, "Valid values for `indexing` are 'xy' and 'ij'.")
    session = session_of(xi)
    rank = len(xi)
    order = [1, 0, *range(2, rank)] if indexing == "xy" and rank > 1 else [*range(rank)]
    found = [
        views.expanded(
            joining.flat(views.as_array(session, x)), tuple(i for i in range(rank) if i != at)
        )
        for x, at in zip(xi, order, strict=True)
    ]
    if not sparse:
        found = list(views.broadcast_arrays(*found))
    return tuple(Tracer(session, x.node) if copy else x for x in found)


def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    """np.copyto."""
    if not isinstance(dst, ArrayValue):
        raise failure(
            NotYetFunction,
            "np.copyto: traced values cannot be written into a real array",
            fix="write np.full_like(x, value) for np.full, or np.where(mask, new, x)",
        )
    session = session_of((dst, src, where))
    update_in_place(dst, "copyto", lambda: views.as_array(session, src), where, casting)


def _outer_of_vectors(x1: Any, x2: Any, /) -> Any:
    session = session_of((x1, x2))
    ranks = [views.as_array(session, x).ndim for x in (x1, x2)]
    if ranks != [1, 1]:
        raise failure(
            ShapeError,
            "Input arrays must be one-dimensional, but they are "
            f"x1.ndim={ranks[0]} and x2.ndim={ranks[1]}.",
        )
    return outer(x1, x2)


def _cross_of_vectors(x1: Any, x2: Any, /, *, axis: Any = -1) -> Any:
    return cross(x1, x2, axis=axis)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.diff: diff,
    np.linalg.outer: _outer_of_vectors,
    np.linalg.cross: _cross_of_vectors,
    np.ediff1d: ediff1d,
    np.outer: outer,
    np.kron: kron,
    np.cross: cross,
    np.meshgrid: meshgrid,
    np.copyto: copyto,
}
ANY_ARGUMENT = {*FUNCTIONS}
