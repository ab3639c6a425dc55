"""Views of traced arrays: NumPy's arguments in, index-map nodes that move no data out."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opkiln.ops import primitives as p
from opkiln.runtime.errors import AxisError, OpkilnError, ShapeError, TraceError
from opkiln.runtime.graph import Node, const_value, host_const
from opkiln.runtime.trace.promote import BROADCAST, elementwise_operand, session_of
from opkiln.runtime.trace.session import ArrayValue, HostValue, Session, failure, is_a
from opkiln.runtime.trace.tracer import Tracer, as_view

Axes = int | Sequence[int] | None


def as_array(session: Session, value: Any) -> Any:
    """Any operand as a traced array; weak numbers become strong, as np.asarray makes them."""
    if isinstance(value, ArrayValue):
        return value
    return Tracer(session, elementwise_operand(session, value), owned=False)


def items(value: Any) -> tuple[Any, ...]:
    """A tuple or list as a tuple, anything else as a tuple of one."""
    return tuple(value) if is_a(value, tuple, list) else (value,)


def whole(value: Any, what: str, fix: str, *, bools: bool = True) -> int:
    """An argument that must be an integer; `bools` says whether NumPy takes True for one here.

    Raises:
        TraceError: it is none, or a scalar argument, whose value is not fixed.
    """
    if is_a(value, bool, np.bool_) and not bools:
        raise failure(TraceError, f"{what}: an integer is required, got {value}", fix=fix)
    try:
        return operator.index(value)
    except OpkilnError:  # it says already what to do
        raise
    except TypeError as error:
        raise failure(TraceError, f"{what}: {error}", fix=fix) from None


def one_axis(axis: Any, rank: int, *, bools: bool = True) -> int:
    """A non-negative axis.

    Raises:
        AxisError: out of bounds. TraceError: not an integer.
    """
    index = whole(axis, "axis", "pass an int or a tuple of ints", bools=bools)
    if not -rank <= index < rank:
        raise failure(AxisError, f"axis {index} is out of bounds for array of dimension {rank}")
    return index % rank


def many_axes(axes: Any, rank: int, *, bools: bool = True, lists: bool = True) -> tuple[int, ...]:
    """Non-negative axes in the order given.

    Raises:
        AxisError: out of bounds or repeated. TraceError: not integers, or in a list if not `lists`.
    """
    given = items(axes) if lists or not is_a(axes, list) else (axes,)
    found = tuple(one_axis(a, rank, bools=bools) for a in given)
    if len(set(found)) != len(found):
        raise failure(AxisError, "duplicate value in 'axis'")
    return found


def transpose(x: Any, axes: Any = None) -> Any:
    """np.transpose."""
    rank = x.ndim
    if axes is None:
        perm = tuple(reversed(range(rank)))
    else:
        perm = many_axes(axes, rank, bools=False)
        if len(perm) != rank:
            raise failure(ShapeError, f"axes {tuple(axes)} don't match an array of rank {rank}")
    return permuted(x, perm)


def permuted(x: Any, perm: tuple[int, ...]) -> Any:
    """Axes in another order."""
    if perm == tuple(range(x.ndim)):
        return unchanged(x)
    back = p.Transpose(tuple(sorted(range(x.ndim), key=perm.__getitem__)))
    return as_view(x, _by(x.session, p.Transpose(perm)), _writing(x.session, back))


def itself(value: Any) -> Any:
    """The view that changes nothing."""
    return value


def unchanged(x: Any) -> Any:
    """A view of all of an array as it is."""
    if x.parent is not None:  # beside it, so that chains stay short
        return as_view(x.parent, x.mapping, x.put)
    return as_view(x, itself, _newest)


def _newest(old: Node, new: Node) -> Node:
    del old
    return new


def _by(session: Session, op: Any, *host: Node) -> Callable[[Node], Node]:
    return lambda node: session.make(op, node, *host)


def _writing(session: Session, inverse: Any) -> Callable[[Node, Node], Node]:
    """How a view of every element is written through: the op that undoes it."""
    return lambda _, new: session.make(inverse, new)


def transpose_method(x: Any, *axes: Any) -> Any:
    """ndarray.transpose: axes as one tuple or as arguments."""
    if not axes or axes == (None,):
        return transpose(x)
    return transpose(x, axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes)


def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    """np.swapaxes."""
    perm = list(range(a.ndim))
    i, j = one_axis(axis1, a.ndim), one_axis(axis2, a.ndim)
    perm[i], perm[j] = perm[j], perm[i]
    return permuted(a, tuple(perm))


def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    """np.moveaxis."""
    src, dst = many_axes(source, a.ndim), many_axes(destination, a.ndim)
    if len(src) != len(dst):
        raise failure(
            ShapeError, "`source` and `destination` must have the same number of elements"
        )
    order = [n for n in range(a.ndim) if n not in src]
    for to, axis in sorted(zip(dst, src, strict=True)):
        order.insert(to, axis)
    return permuted(a, tuple(order))


def expand_dims(a: Any, axis: Any) -> Any:
    """np.expand_dims."""
    given = items(axis)
    return expanded(a, tuple(sorted(many_axes(given, a.ndim + len(given)))))


def expanded(x: Any, axes: tuple[int, ...]) -> Any:
    """Axes of length 1 at these positions of the result."""
    if not axes:
        return unchanged(x)
    session: Session = x.session
    return as_view(x, _by(session, p.ExpandDims(axes)), lambda _, new: without(session, new, axes))


def squeeze(a: Any, axis: Any = None) -> Any:
    """np.squeeze. Without axes, which extents are 1 joins the trace key."""
    if axis is not None:
        axes = many_axes(axis, a.ndim, bools=False, lists=False)
        return squeezed(a, tuple(sorted(axes)))
    ones = [a.session.is_one(extent) for extent in a.node.shape]
    if None in ones:
        raise failure(
            TraceError,
            "squeeze without axis: which axes it drops depends on sizes that are not known here",
            fix="pass axis=",
        )
    return squeezed(a, tuple(i for i, one in enumerate(ones) if one))


def squeezed(x: Any, axes: tuple[int, ...]) -> Any:
    """Without these axes, each of length 1."""
    if not axes:
        return unchanged(x)
    session: Session = x.session
    return as_view(
        x, lambda node: without(session, node, axes), _writing(session, p.ExpandDims(axes))
    )


def without(session: Session, node: Node, axes: tuple[int, ...]) -> Node:
    """The node without these axes of length 1, as what it was before they were made."""
    op = node.op
    if isinstance(op, p.ExpandDims) and set(axes) <= set(op.axes):
        left = [a for a in op.axes if a not in axes]
        moved = tuple(a - sum(gone < a for gone in axes) for a in left)
        return session.make(p.ExpandDims(moved), node.src[0]) if left else node.src[0]
    if isinstance(op, p.Reduce) and op.keepdims and axes == op.axes:
        return session.make(p.Reduce(op.row, op.axes, False, op.dtype, op.seeded), *node.src)
    return session.make(p.Squeeze(axes), node)


def at_least(rank: int) -> Callable[[Any], Any]:
    """np.atleast_1d, np.atleast_2d and np.atleast_3d of one array."""

    def rule(x: Any) -> Any:
        missing = rank - x.ndim
        if missing <= 0:
            return x
        after = 1 if rank == 3 and x.ndim else 0  # NumPy puts one of three behind
        return expanded(x, (*range(missing - after), *range(rank - after, rank)))

    return rule


def extents(session: Session, shape: Any) -> tuple[Node, ...]:
    """A shape argument as host nodes."""
    given = items(shape)
    result: list[Node] = []
    for extent in given:
        if isinstance(extent, HostValue):
            session_of((extent,))
            if extent.node.dtype is float:
                raise failure(
                    TraceError, "a size must be an integer, got a float", fix="use // instead of /"
                )
            result.append(extent.node)
            continue
        value = whole(extent, "shape", "pass ints or sizes such as x.shape[0]", bools=False)
        if value < 0:
            raise failure(ShapeError, "all elements of broadcast shape must be non-negative")
        result.append(host_const(value))
    return tuple(result)


def broadcast_to(array: Any, shape: Any) -> Any:
    """np.broadcast_to."""
    session = session_of((array, *items(shape)))
    array = as_array(session, array)
    target = extents(session, shape)
    check_fits(array.node, target)
    if target == array.node.shape:
        return as_view(array, itself)  # read-only, as the other
    return as_view(array, _by(session, BROADCAST, *target))


def check_fits(node: Node, target: tuple[Node, ...]) -> None:
    """Refuse a broadcast that cannot hold whatever the run-time sizes are.

    Raises:
        ShapeError: the rank is larger, or a known extent is neither 1 nor the target's.
    """
    texts = [str(const_value(d) if const_value(d) is not None else "?") for d in node.shape]
    if node.rank > len(target):
        raise failure(
            ShapeError, f"broadcast_to: rank {node.rank} does not fit into rank {len(target)}"
        )
    for have, want in zip(node.shape[::-1], target[::-1], strict=False):
        a, b = const_value(have), const_value(want)
        if a is not None and b is not None and a not in (1, b):
            raise failure(
                ShapeError, f"broadcast_to: ({', '.join(texts)}) does not fit: {a} into {b}"
            )


def broadcast_arrays(*arrays: Any, subok: bool = False) -> tuple[Any, ...]:
    """np.broadcast_arrays."""
    del subok
    from opkiln.runtime.infer import broadcast_shapes

    session = session_of(arrays)
    values = [as_array(session, a) for a in arrays]
    try:
        shape = broadcast_shapes(*(v.node.shape for v in values))
    except ShapeError as error:
        raise failure(ShapeError, str(error)) from None
    return tuple(
        as_view(v, itself) if v.node.shape == shape else as_view(v, _by(session, BROADCAST, *shape))
        for v in values
    )
