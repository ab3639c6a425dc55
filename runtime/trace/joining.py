"""Joining and splitting: NumPy's functions in, updates of slices of one new array out.

Splitting makes views; joining writes each part once, in one pass over the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar
from typing import cast as as_type

import numpy as np

from opkiln.ops import primitives as p
from opkiln.runtime.errors import CallError, NotYet, ShapeError, TraceError
from opkiln.runtime.graph import Node, host_const
from opkiln.runtime.infer import numel
from opkiln.runtime.trace import indexing, sizes, views
from opkiln.runtime.trace.promote import (
    BROADCAST,
    as_dtype,
    cast,
    may_cast,
    result_type,
    session_of,
)
from opkiln.runtime.trace.reductions import refuse_out
from opkiln.runtime.trace.session import ArrayValue, Session, failure, is_a
from opkiln.runtime.trace.sizes import ONE, ZERO
from opkiln.runtime.trace.tracer import Tracer

T = TypeVar("T")
RESHAPE = p.Reshape()
Piece = tuple[Node, Mapping[int, Node]]  # a value, and where it starts on the axes that are not 0


def assembled(session: Session, shape: Sequence[Node], pieces: Sequence[Piece]) -> Any:
    """One new array of pieces of its dtype that cover it, none of them twice."""
    rank = len(shape)
    op = p.UpdateSlices(pieces[0][0].dtype, ((1,) * rank,) * len(pieces), True)
    src = [*shape]
    for value, starts in pieces:
        src += [value, *(starts.get(axis, ZERO) for axis in range(rank))]
    return Tracer(session, session.make(op, *src))


def filled(session: Session, value: np.generic, shape: Sequence[Node]) -> Any:
    """An array of one value."""
    return Tracer(session, session.make(BROADCAST, session.make(p.Constant(value)), *shape))


# ---- joining ----


def _sequence(arrays: Any, what: str = "arrays") -> tuple[Any, ...]:
    """The arrays of a sequence, which may be one traced array of a known first extent."""
    if not is_a(arrays, list, tuple, np.ndarray) and not isinstance(arrays, ArrayValue):
        raise failure(
            TraceError,
            f"{what} to join must be passed as a tuple or list, got a {type(arrays).__name__}",
        )
    found = tuple(as_type("Any", arrays))
    if not found:
        raise failure(CallError, "need at least one array to concatenate")
    return found


def _joined_dtype(
    session: Session, arrays: Sequence[Any], dtype: Any, casting: str
) -> np.dtype[Any]:
    wanted = result_type(*arrays) if dtype is None else as_dtype(dtype)
    for array in arrays:
        if not may_cast(array.dtype, wanted, casting):
            raise failure(
                TraceError,
                f"Cannot cast array data from {array.dtype!r} to {wanted!r} according to the rule "
                f"{casting!r}",
            )
    return wanted


def concatenate(
    arrays: Any, /, axis: Any = 0, out: Any = None, *, dtype: Any = None,
    casting: str = "same_kind",
) -> Any:  # fmt: skip
    """np.concatenate."""
    refuse_out("concatenate", out)
    given = _sequence(arrays)
    session = session_of(given)
    parts = [views.as_array(session, a) for a in given]
    if axis is None:
        parts = [flat(part) for part in parts]
        axis = 0
    elif any(not part.ndim for part in parts):
        raise failure(
            ShapeError,
            "zero-dimensional arrays cannot be concatenated",
            fix="use np.stack, or x[None]",
        )
    rank = parts[0].ndim
    at = views.one_axis(axis, rank)
    for i, part in enumerate(parts):
        if part.ndim != rank:
            raise failure(
                ShapeError,
                "all the input arrays must have same number of dimensions, but the array at index "
                f"0 has {rank} dimension(s) and the array at index {i} has {part.ndim} "
                "dimension(s)",
            )
    wanted = _joined_dtype(session, parts, dtype, casting)
    return _joined(session, [cast(session, part.node, wanted) for part in parts], at)


def _joined(session: Session, nodes: Sequence[Node], axis: int) -> Any:
    """Arrays of one dtype and rank one behind the other."""
    if len(nodes) == 1:
        return Tracer(session, nodes[0])
    shape = list(nodes[0].shape)
    for i, node in enumerate(nodes):
        for other, n in enumerate(node.shape):
            if other != axis:
                have, want = sizes.known(shape[other]), sizes.known(n)
                shape[other] = sizes.same(
                    session, shape[other], n,
                    "all the input array dimensions except for the concatenation axis must match "
                    f"exactly, but along dimension {other}, the array at index 0 has size {have} "
                    f"and the array at index {i} has size {want}",
                )  # fmt: skip
    starts = [ZERO]
    for node in nodes:
        starts.append(sizes.total(starts[-1], node.shape[axis]))
    shape[axis] = starts.pop()
    pieces = [(node, {axis: start}) for node, start in zip(nodes, starts, strict=True)]
    return assembled(session, shape, pieces)


def flat(x: Any) -> Any:
    """All elements along one axis."""
    if x.ndim == 1:
        return x
    session: Session = x.session
    return Tracer(session, session.make(RESHAPE, x.node, numel(x.node.shape)))


def _made(name: str, shaped: Callable[[Any], Any], axis: int) -> Callable[..., Any]:
    """np.hstack and the like: each array shaped, then concatenated."""

    def rule(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
        given = _sequence(tup, name)
        session = session_of(given)
        parts = [shaped(views.as_array(session, a)) for a in given]
        along = axis if parts[0].ndim > axis else 0  # hstack joins vectors end to end
        return concatenate(parts, along, dtype=dtype, casting=casting)

    return rule


def _as_column(x: Any) -> Any:
    return views.expanded(views.at_least(1)(x), (1,)) if x.ndim < 2 else x


def stack(
    arrays: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind"
) -> Any:
    """np.stack."""
    refuse_out("stack", out)
    given = _sequence(arrays)
    session = session_of(given)
    parts = [views.as_array(session, a) for a in given]
    at = views.one_axis(axis, parts[0].ndim + 1)
    if any(part.ndim != parts[0].ndim for part in parts):
        raise failure(ShapeError, "all input arrays must have the same shape")
    return concatenate(
        [views.expanded(part, (at,)) for part in parts], at, dtype=dtype, casting=casting
    )


def append(arr: Any, values: Any, axis: Any = None) -> Any:
    """np.append."""
    return concatenate((arr, values), axis)


def block(arrays: Any) -> Any:
    """np.block."""
    depth, first = 0, arrays
    while is_a(first, list):
        if not first:
            raise failure(CallError, "List at arrays cannot be empty")
        depth, first = depth + 1, first[0]
    leaves: list[Any] = []
    _leaves(arrays, leaves)
    session = session_of(leaves)
    rank = max(depth, *(views.as_array(session, leaf).ndim for leaf in leaves))
    return _blocks(session, arrays, rank, depth)


def _leaves(value: Any, found: list[Any]) -> None:
    for item in value if is_a(value, list) else ():
        _leaves(item, found)
    if not is_a(value, list):
        found.append(value)


def _blocks(session: Session, value: Any, rank: int, depth: int) -> Any:
    if is_a(value, list) != bool(depth):
        raise failure(CallError, "List depths are mismatched: lists of blocks must be nested alike")
    if depth:
        inner = [_blocks(session, item, rank, depth - 1) for item in value]
        return concatenate(inner, rank - depth)
    x = views.as_array(session, value)
    return views.expanded(x, tuple(range(rank - x.ndim)))


# ---- splitting ----


def array_split(ary: Any, indices_or_sections: Any, axis: Any = 0) -> list[Any]:
    """np.array_split."""
    return _split(ary, indices_or_sections, axis, even=False)


def split(ary: Any, indices_or_sections: Any, axis: Any = 0) -> list[Any]:
    """np.split."""
    return _split(ary, indices_or_sections, axis, even=True)


def _split(x: Any, sections: Any, axis: Any, *, even: bool) -> list[Any]:
    at = views.one_axis(axis, x.ndim)
    if is_a(sections, list, tuple, np.ndarray):
        places = [None, *sections, None]
        return [indexing.slices(x, {at: slice(start, stop)}) for start, stop in pairwise(places)]
    count = views.whole(sections, "sections", "pass an int, or the places to split at")
    if count <= 0:
        raise failure(CallError, "number sections must be larger than 0.")
    n: Node = x.node.shape[at]
    if even:
        whole = numel((sizes.host("floordiv", n, host_const(count)), host_const(count)))
        n = sizes.same(x.session, n, whole, "array split does not result in an equal division")
        width = sizes.host("floordiv", n, host_const(count))
        cuts = [(numel((host_const(i), width)), width) for i in range(count)]
    else:
        cuts = _uneven(n, count)
    return [indexing.cut_view(x, {at: indexing.Cut(start, length)}) for start, length in cuts]


def _uneven(n: Node, count: int) -> list[tuple[Node, Node]]:
    """Start and length of each section: the first ones are longer by one."""
    base = sizes.host("floordiv", n, host_const(count))
    more = sizes.host("mod", n, host_const(count))
    found: list[tuple[Node, Node]] = []
    for i in range(count):
        start = sizes.total(numel((host_const(i), base)), sizes.clipped(more, i))
        length = sizes.host("floordiv", sizes.total(n, count - 1 - i), host_const(count))
        found.append((start, length))
    return found


def _splitting(name: str, axis: int, least: int) -> Callable[..., Any]:
    """np.hsplit and the like."""

    def rule(ary: Any, indices_or_sections: Any) -> list[Any]:
        if ary.ndim < least:
            raise failure(ShapeError, f"{name} only works on arrays of {least} or more dimensions")
        return split(ary, indices_or_sections, axis if ary.ndim > 1 else 0)

    return rule


def unstack(x: Any, /, *, axis: Any = 0) -> tuple[Any, ...]:
    """np.unstack, along an axis whose length is known while tracing."""
    if not x.ndim:
        raise failure(CallError, "Input array must be at least 1-d.")
    return tuple(views.moveaxis(x, axis, 0))


# ---- padding ----


def pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    """np.pad."""
    widths = _widths(pad_width, array.ndim)
    if any(n < 0 for pair in widths for n in pair):
        raise failure(CallError, "index can't contain negative values")
    if mode == "constant":
        values = kwargs.pop("constant_values", 0)
        padded = _padded(array, widths, values)
    else:
        piece = _EDGES.get(mode) if isinstance(mode, str) else None
        if piece is None:
            raise failure(
                NotYet,
                f"np.pad: mode {mode!r} is not supported yet; constant, {', '.join(_EDGES)} are",
                fix="join slices of the array with np.concatenate",
            )
        padded = array
        for axis, (before, after) in enumerate(widths):
            padded = _extended(padded, axis, before, after, piece)
    if kwargs:
        raise failure(
            NotYet,
            f"np.pad: {', '.join(kwargs)} with mode {mode!r} is not supported",
            fix="leave it out",
        )
    return Tracer(array.session, array.node) if padded is array else padded


def _pairs(given: Any, rank: int, what: str, leaf: Callable[[Any], T]) -> list[tuple[T, T]]:
    """A pair for each axis, given as a number, one pair for all, or a pair or number for each."""
    if is_a(given, np.ndarray):
        given = given.tolist()
    if not is_a(given, tuple, list):
        value = leaf(given)
        return [(value, value)] * rank
    flat_pair = not any(is_a(item, tuple, list) for item in given)
    rows = [[leaf(n) for n in views.items(item)] for item in ([given] if flat_pair else given)]
    rows = rows * rank if len(rows) == 1 else rows
    if len(rows) != rank or any(len(row) not in (1, 2) for row in rows):
        raise failure(
            CallError, f"{what}: expected a number, a pair, or a pair for each of {rank} axes"
        )
    return [(row[0], row[-1]) for row in rows]


def _widths(given: Any, rank: int) -> list[tuple[int, int]]:
    def leaf(value: Any) -> int:
        return views.whole(value, "pad_width", "pass ints")

    if not is_a(given, dict):
        return _pairs(given, rank, "pad_width", leaf)
    pairs = [(0, 0)] * rank
    for axis, value in given.items():
        pairs[views.one_axis(axis, rank)] = _pairs(value, 1, "pad_width", leaf)[0]
    return pairs


def _padded(x: Any, widths: list[tuple[int, int]], values: Any) -> Any:
    """Constants around: for each axis a slab before and one behind, then the array itself."""
    session: Session = session_of([x, *(v for v in views.items(values) if isinstance(v, Tracer))])
    node: Node = x.node
    shape = [sizes.total(n, a, b) for n, (a, b) in zip(node.shape, widths, strict=True)]
    pieces: list[Piece] = []
    constants = _pairs(
        values, node.rank, "constant_values",
        lambda value: indexing.assigned(session, value, node.dtype),
    )  # fmt: skip
    for axis, pair in enumerate(widths):
        starts = {i: host_const(widths[i][0]) for i in range(axis + 1, node.rank)}
        around = [*shape[:axis], *node.shape[axis:]]  # corners belong to the last axis
        for width, value, at in zip(
            pair, constants[axis], (ZERO, sizes.total(shape[axis], -pair[1])), strict=True
        ):
            if width:
                around[axis] = host_const(width)
                slab = session.make(BROADCAST, value, *around)
                pieces.append((slab, {**starts, axis: at}))
    if not pieces:
        return x
    middle = {axis: host_const(before) for axis, (before, _) in enumerate(widths)}
    return assembled(session, shape, [*pieces, (node, middle)])


Edge = Callable[[Session, Node, int, int, bool], Node]


def _extended(x: Any, axis: int, before: int, after: int, edge: Edge) -> Any:
    """More of an array around one axis."""
    session, node = x.session, x.node
    parts: list[Node] = [edge(session, node, axis, before, True)] if before else []
    parts.append(node)
    parts += [edge(session, node, axis, after, False)] if after else []
    return _joined(session, parts, axis) if len(parts) > 1 else x


def _required(session: Session, n: Node, least: int, axis: int) -> Node:
    """The number `least`, checked to be no more than the extent."""
    known = sizes.known(n)
    if known is not None and known < least:
        raise failure(
            ShapeError,
            f"np.pad: axis {axis} of length {known} is too short to be extended so far: expected "
            f"{least} or more",
            fix="pad in several steps, or use mode='constant'",
        )
    return sizes.same(session, host_const(least), sizes.clipped(n, least))


def _edge(session: Session, node: Node, axis: int, width: int, first: bool) -> Node:
    n = node.shape[axis]
    one = _required(session, n, 1, axis)
    at = sizes.total(one, -1) if first else sizes.difference(n, one)
    outermost = indexing.sliced(session, node, {axis: indexing.Cut(at, ONE)})
    shape = [host_const(width) if i == axis else d for i, d in enumerate(node.shape)]
    return session.make(BROADCAST, outermost, *shape)


def _mirror(skip: int) -> Edge:
    """The array reversed at its edge: without the outermost element (reflect) or with it."""

    def edge(session: Session, node: Node, axis: int, width: int, first: bool) -> Node:
        n = node.shape[axis]
        count = sizes.total(_required(session, n, width + skip, axis), -skip)
        at = host_const(width + skip - 1) if first else sizes.total(n, -1 - skip)
        return indexing.sliced(session, node, {axis: indexing.Cut(at, count, -1)})

    return edge


def _wrap(session: Session, node: Node, axis: int, width: int, first: bool) -> Node:
    count = _required(session, node.shape[axis], width, axis)
    at = sizes.total(node.shape[axis], -width) if first else ZERO
    return indexing.sliced(session, node, {axis: indexing.Cut(at, count)})


_EDGES: dict[str, Edge] = {
    "edge": _edge,
    "reflect": _mirror(1),
    "symmetric": _mirror(0),
    "wrap": _wrap,
}

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.concatenate: concatenate,
    np.stack: stack,
    np.hstack: _made("hstack", views.at_least(1), 1),
    np.vstack: _made("vstack", views.at_least(2), 0),
    np.dstack: _made("dstack", views.at_least(3), 2),
    np.column_stack: _made("column_stack", _as_column, 1),
    np.append: append,
    np.block: block,
    np.split: split,
    np.array_split: array_split,
    np.hsplit: _splitting("hsplit", 1, 1),
    np.vsplit: _splitting("vsplit", 0, 2),
    np.dsplit: _splitting("dsplit", 2, 3),
    np.unstack: unstack,
    np.pad: pad,
}
ANY_ARGUMENT = {
    np.concatenate, np.stack, np.hstack, np.vstack, np.dstack, np.column_stack, np.append, np.block,
}  # fmt: skip
