"""Other shapes and orders of the same elements: NumPy's arguments in, index maps out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from opkiln.ops import primitives as p
from opkiln.runtime.errors import AxisError, CallError, NotYet, ShapeError
from opkiln.runtime.graph import Node, host_const
from opkiln.runtime.infer import factors, numel
from opkiln.runtime.trace import indexing, joining, reductions, sizes, views
from opkiln.runtime.trace.promote import BROADCAST, session_of
from opkiln.runtime.trace.session import ArrayValue, HostValue, Session, failure, is_a
from opkiln.runtime.trace.sizes import ONE, ZERO
from opkiln.runtime.trace.tracer import Tracer, as_view, call_row

# ---- reshape ----


def reshape(a: Any, /, shape: Any, order: Any = "C", *, copy: Any = None) -> Any:
    """np.reshape: the elements in C order, or for "F" the last axis first."""
    order = _order("reshape", order)
    found = _reshaped(a, shape, order)
    if copy is False:
        raise failure(
            NotYet,
            "reshape: copy=False asks for what the memory layout of a call decides",
            fix="leave copy= out",
        )
    return Tracer(a.session, found.node) if copy else found


def _reshaped(x: Any, shape: Any, order: str) -> Any:
    if order == "F" and x.ndim + len(views.items(shape)) > 1:
        target = tuple(reversed(views.items(shape)))
        return views.transpose(_reshaped(views.transpose(x), target, "C"))
    target = _target(x.session, x.node, shape)
    return _as(x, target)


def reshape_method(x: Any, *shape: Any, order: Any = "C", copy: Any = None) -> Any:
    """ndarray.reshape: extents as one tuple or as arguments."""
    return reshape(x, shape[0] if len(shape) == 1 else shape, order, copy=copy)


def _order(name: str, order: Any) -> str:
    known = {"C": "C", "F": "F", "c": "C", "f": "F"}.get(order)
    if known is None and order not in ("A", "K", "a", "k"):
        raise failure(CallError, f"order must be one of 'C', 'F', 'A', or 'K' (got {order!r})")
    if known is None:
        raise failure(
            NotYet,
            f"{name}: order={order!r} asks for the order in memory, which belongs to a call and "
            f"not to the function",
            fix='write order="C" or order="F"',
        )
    return known


def _target(session: Session, node: Node, shape: Any) -> tuple[Node, ...]:
    """A shape argument as extents; the one that is -1 follows from the others.

    Raises:
        ShapeError: the number of elements differs whatever the sizes are, or two are -1.
    """
    given = list(views.items(shape))
    unknown = [i for i, n in enumerate(given) if not isinstance(n, HostValue) and _literal(n) < 0]
    if len(unknown) > 1:
        raise failure(ShapeError, "can only specify one unknown dimension")
    for i in unknown:
        given[i] = 1
    target = list(views.extents(session, tuple(given)))
    total = numel(node.shape)
    for i in unknown:
        target[i] = _rest(total, tuple(target))
    have, want = sizes.known(total), sizes.known(numel(tuple(target)))
    if have is not None and want is not None and have != want:
        texts = ["newaxis" if i in unknown else str(sizes.known(n)) for i, n in enumerate(target)]
        text = ",".join(texts) + ("," if len(texts) == 1 else "")
        raise failure(ShapeError, f"cannot reshape array of size {have} into shape ({text})")
    return tuple(target)


def _literal(extent: Any) -> int:
    return views.whole(extent, "shape", "pass ints or sizes such as x.shape[0]", bools=False)


def _rest(total: Node, others: tuple[Node, ...]) -> Node:
    """The elements that each of the other extents' places has: equal factors cancel."""
    constant, symbols = factors((total,))
    by, divisors = factors(others)
    for divisor in list(divisors):
        if divisor in symbols:
            symbols.remove(divisor)
            divisors.remove(divisor)
    if not by:
        raise failure(
            ShapeError, "cannot reshape: one dimension is 0, so the unknown one can be anything"
        )
    if constant % by == 0:
        constant, by = constant // by, 1
    left = numel((host_const(constant), *symbols))
    if by == 1 and not divisors:
        return left
    below = numel((host_const(by), *divisors))
    if sizes.known(below) is None:  # where it is 0, the comparison of the numbers refuses it
        below = sizes.host("max", below, ONE)
    return sizes.host("floordiv", left, below)


def _as(x: Any, target: tuple[Node, ...]) -> Any:
    """The elements of an array in C order under other extents."""
    session: Session = x.session
    shape = x.node.shape
    if target == shape:
        return views.unchanged(x)
    if not x.owned:
        return as_view(x, lambda node: session.make(joining.RESHAPE, node, *target))
    if x.root is x and x.ndim == 1:  # a whole array of one axis is contiguous

        def put(_: Node, new: Node) -> Node:
            return session.make(joining.RESHAPE, new, *shape)

        return as_view(x, lambda node: session.make(joining.RESHAPE, node, *target), put)
    return _akin(Tracer(session, session.make(joining.RESHAPE, x.node, *target)), x)


def _akin(found: Any, source: Any) -> Any:
    """A new array that may share the memory of another, as that one's layout decides."""
    kin: list[Any] = source.root.kin or [source.root]
    kin.append(found)
    found.kin = source.root.kin = kin
    return found


def ravel(a: Any, order: Any = "C") -> Any:
    """np.ravel."""
    order = _order("ravel", order)
    if a.ndim == 1 and a.root is a:
        return views.unchanged(a)
    if order == "F":
        a = views.transpose(a)
    if a.ndim != 1:
        return _as(a, (numel(a.node.shape),))
    found = Tracer(a.session, a.node, owned=a.owned)  # a copy where the axis has strides
    return _akin(found, a) if a.owned else found


def flatten(x: Any, order: Any = "C") -> Any:
    """ndarray.flatten: a copy."""
    return Tracer(x.session, ravel(x, order).node)


def atleast(rank: int) -> Callable[..., Any]:
    """np.atleast_1d, np.atleast_2d and np.atleast_3d."""

    def rule(*arys: Any) -> Any:
        session = session_of(arys)
        found = [views.at_least(rank)(views.as_array(session, a)) for a in arys]
        return found[0] if len(found) == 1 else tuple(found)

    return rule


# ---- other orders ----


def rollaxis(a: Any, axis: Any, start: Any = 0) -> Any:
    """np.rollaxis."""
    rank = a.ndim
    at = views.one_axis(axis, rank)
    to = views.whole(start, "start", "pass an int")
    if not -rank <= to <= rank:
        raise failure(
            AxisError,
            f"'start' arg requires {-rank} <= start < {rank + 1}, but {to} was passed in",
        )
    to = to + rank if to < 0 else to
    order = [n for n in range(rank) if n != at]
    order.insert(to - (at < to), at)
    return views.permuted(a, tuple(order))


def flip(m: Any, axis: Any = None) -> Any:
    """np.flip."""
    axes = range(m.ndim) if axis is None else views.many_axes(axis, m.ndim)
    return indexing.slices(m, {a: slice(None, None, -1) for a in axes})


def _flipping(axis: int) -> Callable[[Any], Any]:
    def rule(m: Any) -> Any:
        if m.ndim <= axis:
            raise failure(ShapeError, f"Input must be >= {axis + 1}-d.")
        return flip(m, axis)

    return rule


def rot90(m: Any, k: Any = 1, axes: Any = (0, 1)) -> Any:
    """np.rot90."""
    if len(views.items(axes)) != 2:
        raise failure(CallError, "len(axes) must be 2.")
    first, second = views.many_axes(axes, m.ndim)
    turns = views.whole(k, "k", "pass an int") % 4
    if turns in (0, 2):
        return flip(m, (first, second)) if turns else views.unchanged(m)
    if turns == 1:
        return views.swapaxes(flip(m, second), first, second)
    return flip(views.swapaxes(m, first, second), second)


def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """np.roll."""
    if axis is None:
        by = sum(views.whole(s, "shift", "pass ints") for s in views.items(shift))
        return _as(_rolled(flatten(a), by, 0), a.node.shape)
    axes = views.items(axis)
    shifts = [views.whole(s, "shift", "pass ints") for s in views.items(shift)]
    if len(axes) != len(shifts) and 1 not in (len(axes), len(shifts)):
        raise failure(ShapeError, "'shift' and 'axis' should be scalars or 1D sequences")
    most = max(len(axes), len(shifts))
    result = a
    for at, by in zip(axes * (most // len(axes)), shifts * (most // len(shifts)), strict=True):
        result = _rolled(result, by, views.one_axis(at, a.ndim))
    return Tracer(a.session, a.node) if result is a else result


def _rolled(x: Any, by: int, axis: int) -> Any:
    """Along one axis: the end first, then the beginning."""
    session: Session = x.session
    node: Node = x.node
    n = node.shape[axis]
    behind = sizes.host("mod", host_const(by), sizes.host("max", n, ONE))  # elements that go first
    before = sizes.difference(n, behind)
    end = indexing.sliced(session, node, {axis: indexing.Cut(before, behind)})
    start = indexing.sliced(session, node, {axis: indexing.Cut(ZERO, before)})
    pieces: list[joining.Piece] = [(end, {}), (start, {axis: behind})]
    return joining.assembled(session, node.shape, pieces)


# ---- diagonals ----


def diagonal(a: Any, offset: Any = 0, axis1: Any = 0, axis2: Any = 1) -> Any:
    """np.diagonal: a read-only view, its axis the last."""
    if a.ndim < 2:
        raise failure(ShapeError, "diag requires an array of at least two dimensions")
    first, second = views.one_axis(axis1, a.ndim), views.one_axis(axis2, a.ndim)
    if first == second:
        raise failure(ShapeError, "axis1 and axis2 cannot be the same")
    by = views.whole(offset, "offset", "pass an int")
    session: Session = a.session
    shape = a.node.shape
    rows, columns = sizes.shrunk(shape[first], max(-by, 0)), sizes.shrunk(shape[second], max(by, 0))
    length = rows if rows is columns else sizes.host("min", rows, columns)
    cuts = {
        first: indexing.Cut(sizes.clipped(shape[first], -by), length),
        second: indexing.Cut(sizes.clipped(shape[second], by), length),
    }
    kept = [i for i in range(a.ndim) if i != second]
    last = p.Transpose((*(i for i in range(a.ndim - 1) if kept[i] != first), kept.index(first)))

    def view(node: Node) -> Node:
        square = indexing.sliced(session, node, cuts)
        found = session.make(p.Diagonal(first, second), square)
        return found if last.perm == tuple(range(found.rank)) else session.make(last, found)

    return as_view(a, view)


def trace(
    a: Any, offset: Any = 0, axis1: Any = 0, axis2: Any = 1, dtype: Any = None, out: Any = None
) -> Any:
    """np.trace."""
    return reductions.FUNCTIONS[np.sum](diagonal(a, offset, axis1, axis2), -1, dtype, out)


def _diagonal_of_matrices(x: Any, /, *, offset: Any = 0) -> Any:
    return diagonal(x, offset, -2, -1)


def _trace_of_matrices(x: Any, /, *, offset: Any = 0, dtype: Any = None) -> Any:
    return trace(x, offset, -2, -1, dtype)


def diag(v: Any, k: Any = 0) -> Any:
    """np.diag: of a matrix a view, of a vector a matrix."""
    if v.ndim == 2:
        return diagonal(v, k)
    if v.ndim != 1:
        raise failure(ShapeError, "Input must be 1- or 2-d.")
    by = views.whole(k, "k", "pass an int")
    session: Session = v.session
    (n,) = v.node.shape
    # Element i of the diagonal is element i * (side + 1) of a square: the first column of rows that
    # are one longer. The offset moves the square by rows or columns of zeros.
    zeros = joining.filled(session, v.dtype.type(0), (n, n))
    rows = joining.concatenate((views.expanded(v, (1,)), zeros), axis=1)
    flat = _as(rows, (numel(rows.node.shape),)).node
    square = numel((n, n))
    flat = indexing.sliced(session, flat, {0: indexing.Cut(ZERO, square)})
    found = Tracer(session, session.make(joining.RESHAPE, flat, n, n))
    return (
        joining.pad(found, ((max(-by, 0), max(by, 0)), (max(by, 0), max(-by, 0)))) if by else found
    )


def _triangle(name: str) -> Callable[..., Any]:
    lower = name == "tril"

    def rule(m: Any, k: Any = 0) -> Any:
        if m.ndim < 1:
            raise failure(ShapeError, f"{name}: expected an array of one axis or more, got a 0-d")
        by = views.whole(k, "k", "pass an int")
        rows, columns = (m.shape * 2)[-2:] if m.ndim == 1 else m.shape[-2:]
        mask = np.tri(int(rows), int(columns), by if lower else by - 1, dtype=bool)  # pins both
        zero = np.zeros((), m.dtype)[()]
        return call_row("where", mask, *((m, zero) if lower else (zero, m)))

    return rule


# ---- repetitions ----


def _times(session: Session, value: Any, name: str) -> Node:
    """A number of repetitions."""
    if isinstance(value, ArrayValue) or is_a(value, np.ndarray, list, tuple):
        raise failure(
            NotYet,
            f"{name}: a number of repetitions for each item is not supported",
            fix="pass one int, or call it outside the compiled function",
        )
    if not isinstance(value, HostValue) and views.whole(value, name, "pass an int") < 0:
        raise failure(ShapeError, "repeats may not contain negative values.")
    return views.extents(session, value)[0]


def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    """np.repeat: each item so many times."""
    times = _times(a.session, repeats, "repeats")
    if (axis is None and a.ndim != 1) or not a.ndim:
        a = _as(a, (numel(a.node.shape),))
    at = views.one_axis(0 if axis is None else axis, a.ndim)
    return _spread(a, {at: (1, times)})


def tile(A: Any, reps: Any) -> Any:
    """np.tile: the whole array so many times along each axis."""
    session: Session = A.session
    counts = [_times(session, n, "reps") for n in views.items(reps)]
    counts = [*(ONE,) * (A.ndim - len(counts)), *counts]
    x = views.expanded(A, tuple(range(len(counts) - A.ndim)))
    return _spread(x, {axis: (0, n) for axis, n in enumerate(counts) if n is not ONE})


def _spread(x: Any, times: dict[int, tuple[int, Node]]) -> Any:
    """Axes repeated: the repetitions before (0) or after (1) the items of an axis."""
    session: Session = x.session
    if not times:
        return Tracer(session, x.node)
    shape: list[Node] = []
    added: list[int] = []
    target: list[Node] = []
    for axis, n in enumerate(x.node.shape):
        after, count = times.get(axis, (0, ONE))
        pair = [n] if axis not in times else [n, count] if after else [count, n]
        added += [len(shape) + after] if axis in times else []
        shape += pair
        target.append(numel(tuple(pair)))
    node = session.make(p.ExpandDims(tuple(added)), x.node)
    node = session.make(BROADCAST, node, *shape)
    return Tracer(session, session.make(joining.RESHAPE, node, *target))


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.reshape: reshape,
    np.ravel: ravel,
    np.atleast_1d: atleast(1),
    np.atleast_2d: atleast(2),
    np.atleast_3d: atleast(3),
    np.rollaxis: rollaxis,
    np.flip: flip,
    np.fliplr: _flipping(1),
    np.flipud: _flipping(0),
    np.rot90: rot90,
    np.roll: roll,
    np.diagonal: diagonal,
    np.trace: trace,
    np.linalg.diagonal: _diagonal_of_matrices,
    np.linalg.trace: _trace_of_matrices,
    np.diag: diag,
    np.tril: _triangle("tril"),
    np.triu: _triangle("triu"),
    np.repeat: repeat,
    np.tile: tile,
}
METHODS: dict[str, Callable[..., Any]] = {
    "reshape": reshape_method,
    "ravel": ravel,
    "flatten": flatten,
    "diagonal": diagonal,
    "trace": trace,
    "repeat": repeat,
}
