"""Indexing of traced arrays: NumPy's x[...] in, index maps that move no data out; item assignment.

An assignment is a functional update: it makes a new value, which every alias of the array sees.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import numpy as np

from opkiln.ops import primitives as p
from opkiln.runtime import interop
from opkiln.runtime.errors import (
    AxisError,
    BoundsError,
    CallError,
    HostRangeError,
    NotYet,
    OpkilnError,
    ShapeError,
    TraceError,
)
from opkiln.runtime.graph import Node, host_const
from opkiln.runtime.trace import sizes, views
from opkiln.runtime.trace.promote import (
    BROADCAST,
    cast,
    constant,
    elementwise_operand,
    operand,
    session_of,
)
from opkiln.runtime.trace.session import ArrayValue, HostValue, Session, failure, is_a
from opkiln.runtime.trace.sizes import BEYOND, ONE, ZERO
from opkiln.runtime.trace.tracer import Tracer, as_view, call_row

_KINDS = (
    "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean "
    "arrays are valid indices"
)
TAKE = (
    "write x[i] for each literal index and np.stack them, or index with the array outside the "
    "compiled function"
)
_MASK = (
    "write np.where(mask, x, 0) and the like, which keep the shape; a reduction takes where=mask; "
    "x[mask] = number is an assignment that can be traced"
)


class Cut(NamedTuple):
    """Elements start + step * i, i < length, of one axis."""

    start: Node
    length: Node
    step: int = 1


# ---- slices as nodes ----


def cut_of(session: Session, n: Node, start: Any, stop: Any, step: Any = None) -> Cut:
    """The slice start:stop:step of an axis of `n` elements."""
    stride = 1 if step is None else views.whole(step, "slice step", "pass an int")
    if not stride:
        raise failure(CallError, "slice step cannot be zero")
    stride = max(-BEYOND, min(stride, BEYOND))  # no axis has a second element for it
    bounds = [None if b is None else _bound(session, b) for b in (start, stop)]
    return Cut(*sizes.slice_of(bounds[0], bounds[1], stride, n), stride)


def _bound(session: Session, value: Any) -> Node:
    if isinstance(value, HostValue):
        return _size(session, value, "a bound of a slice needs the value of")
    literal = views.whole(value, "slice bound", "pass an int, a size such as x.shape[0], or None")
    return host_const(max(-BEYOND, min(literal, BEYOND)))


def _size(session: Session, value: HostValue, what: str) -> Node:
    session_of((value,))
    if value.node.dtype is float:
        raise failure(BoundsError, f"{_KINDS}; got a float", fix="use // instead of /")
    if session.scalars(value.node):
        raise session.scalar_failure(value.node, what)
    return value.node


def sliced(session: Session, node: Node, cuts: dict[int, Cut]) -> Node:
    """The node's elements at these cuts of its axes."""
    cuts = {axis: cut for axis, cut in sorted(cuts.items()) if not _is_whole(cut, node.shape[axis])}
    if not cuts:
        return node
    written = _last_written(node, cuts)
    if written is not None:
        return written
    bounds = [bound for cut in cuts.values() for bound in (cut.start, cut.length)]
    op = p.Slice(tuple(cuts), tuple(cut.step for cut in cuts.values()))
    return session.make(op, node, *bounds)


def _is_whole(cut: Cut, n: Node) -> bool:
    return cut.step == 1 and cut.start is ZERO and cut.length is n


def _last_written(node: Node, cuts: dict[int, Cut]) -> Node | None:
    """What an update has just written into exactly these cuts, so that nobody reads it back."""
    if not isinstance(node.op, p.UpdateSlices):
        return None
    value, starts, steps = node.op.parts(node.src)[-1]
    every = [cuts.get(axis, Cut(ZERO, n)) for axis, n in enumerate(node.shape)]
    place = [Cut(*cut) for cut in zip(starts, value.shape, steps, strict=True)]
    return value if place == every else None


def overwritten(session: Session, old: Node, value: Node, cuts: dict[int, Cut]) -> Node:
    """The old value with another one at these cuts of its axes."""
    every = [cuts.get(axis, Cut(ZERO, n)) for axis, n in enumerate(old.shape)]
    if all(_is_whole(cut, n) for cut, n in zip(every, old.shape, strict=True)):
        return value
    op = p.UpdateSlices(old.dtype, ((1,) * old.rank, tuple(cut.step for cut in every)), False)
    starts = [cut.start for cut in every]
    return session.make(op, *old.shape, old, *(ZERO,) * old.rank, value, *starts)


def cut_view(x: Any, cuts: dict[int, Cut]) -> Any:
    """A view of an array at these cuts."""
    session: Session = x.session
    if all(_is_whole(cut, x.node.shape[axis]) for axis, cut in cuts.items()):
        return views.unchanged(x)

    def put(old: Node, new: Node) -> Node:
        return overwritten(session, old, new, cuts)

    return as_view(x, lambda node: sliced(session, node, cuts), put)


def slices(x: Any, parts: dict[int, slice]) -> Any:
    """A view of an array at one slice per axis that is named."""
    shape = x.node.shape
    return cut_view(
        x,
        {a: cut_of(x.session, shape[a], s.start, s.stop, s.step) for a, s in parts.items()},
    )


# ---- keys ----


def _parts(x: Any, key: Any) -> list[Any]:
    """The items of a key, with full slices in place of the ellipsis and at the end.

    Raises:
        AxisError: more items than axes. NotYet: masks and arrays.
    """
    given: list[Any] = [*key] if is_a(key, tuple) else [key]
    parts = [_item(x, part) for part in given]
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    if sum(part is Ellipsis for part in parts) > 1:
        raise failure(AxisError, "an index can only have a single ellipsis ('...')")
    if taken > x.ndim:
        raise failure(
            AxisError,
            f"too many indices for array: array is {x.ndim}-dimensional, but {taken} were indexed",
        )
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    return [*parts[:at], *[slice(None)] * (x.ndim - taken), *parts[at + 1 :]]


def _item(x: Any, part: Any) -> Any:
    """One item of a key, checked: None, Ellipsis, a slice, an int or the node of a size."""
    if part is None or part is Ellipsis or is_a(part, slice):
        return part
    if isinstance(part, HostValue):
        return _size(x.session, part, "an index needs the value of")
    if isinstance(part, ArrayValue):
        raise _array_failure(part.node.dtype, part.node.rank, "a traced array")
    if is_a(part, bool, np.bool_):
        raise _array_failure(np.dtype(bool), 0, repr(part))
    if is_a(part, list, tuple):
        array = np.asarray(part)
        raise _array_failure(array.dtype, array.ndim, f"a {type(part).__name__}")
    if is_a(part, np.ndarray) and (part.ndim or part.dtype.kind not in "iu"):
        raise _array_failure(part.dtype, part.ndim, "an array")
    if interop.offers_memory(part) and not is_a(part, np.generic, np.ndarray):
        raise _array_failure(np.dtype(int), 1, "an array")
    try:
        return operator.index(part)
    except OpkilnError:
        raise
    except TypeError:
        raise failure(BoundsError, f"{_KINDS}; got {part!r:.40}") from None


def _array_failure(dtype: np.dtype[Any], rank: int, what: str) -> OpkilnError:
    if dtype.kind == "b":
        return failure(
            NotYet,
            f"indexing with {what} of bools is not supported: the size of the result depends on "
            f"the data",
            fix=_MASK,
        )
    if dtype.kind not in "iu":
        return failure(BoundsError, f"{_KINDS}; got {what} of {dtype.name}")
    kind = "integers" if rank else "an integer that only a run knows"
    return failure(NotYet, f"indexing with {what} of {kind} is not supported yet", fix=TAKE)


def _select(x: Any, key: Any) -> Any:
    """The view at a key."""
    cuts: dict[int, Cut] = {}
    dropped: list[int] = []
    added: list[int] = []
    axis = position = 0
    for part in _parts(x, key):
        if part is None:
            added.append(position)
            position += 1
            continue
        n = x.node.shape[axis]
        if is_a(part, slice):
            cuts[axis] = cut_of(x.session, n, part.start, part.stop, part.step)
            position += 1
        else:
            cuts[axis] = Cut(sizes.element(x.session, part, n, axis), ONE)
            dropped.append(axis)
        axis += 1
    view = cut_view(x, cuts)
    if dropped:
        view = views.squeezed(view, tuple(dropped))
    return views.expanded(view, tuple(added)) if added else view


def getitem(x: Any, key: Any) -> Any:
    """x[key]: a view, or for an index of every axis the element's value."""
    view = _select(x, key)
    elliptic = any(part is Ellipsis for part in (key if is_a(key, tuple) else (key,)))
    return view if view.ndim or elliptic else Tracer(x.session, view.node)


# ---- assignment ----


def setitem(x: Any, key: Any, value: Any) -> None:
    """x[key] = value."""
    session = session_of((x, value))
    if not x.owned:
        what = "an argument" if x.root is x else "a view of an argument"
        raise failure(
            TraceError,
            f"item assignment into {what}",
            fix="write x = x.copy() first, and return the new value",
        )
    if not x.root.node.rank:
        raise failure(TraceError, f"'{x.dtype.name}' scalar does not support item assignment")
    if is_mask(key):
        x.update(_masked(session, x, key, value))
        return
    view = _select(x, key)
    node = _content(session, value, view.node)
    if node is not view.node:
        view.update(node)


def is_mask(key: Any) -> bool:
    """Whether a key is an array of truth values."""
    if isinstance(key, ArrayValue):
        return bool(key.node.dtype == np.bool_)
    return is_a(key, np.ndarray) and key.ndim > 0 and key.dtype.kind == "b"


def _masked(session: Session, x: Any, mask: Any, value: Any) -> Node:
    """The array with a value where the mask is true."""
    old: Node = x.node
    flags = elementwise_operand(session, mask)
    if flags.rank > old.rank:
        raise failure(
            AxisError,
            f"too many indices for array: array is {old.rank}-dimensional, but {flags.rank} were "
            f"indexed",
        )
    new = _content(session, value, old) if _rank(session, value) == 0 else None
    if new is None:
        raise failure(
            NotYet,
            "assigning an array to the items that a mask chooses is not supported: how many there "
            "are depends on the data",
            fix="write x = np.where(mask, value, x) with a value for every item",
        )
    shape = [
        sizes.same(
            session, have, want,
            f"boolean index did not match indexed array along axis {axis}; size of axis is "
            f"{sizes.known(have)} but size of corresponding boolean axis is {sizes.known(want)}",
        )
        for axis, (have, want) in enumerate(zip(old.shape, flags.shape, strict=False))
    ]  # fmt: skip
    shape += old.shape[flags.rank :]
    if flags.rank < old.rank:
        flags = session.make(p.ExpandDims(tuple(range(flags.rank, old.rank))), flags)
    if flags.shape != tuple(shape):
        flags = session.make(BROADCAST, flags, *shape)
    chosen: Node = call_row("where", Tracer(session, flags), Tracer(session, new), x).node
    return chosen


def _rank(session: Session, value: Any) -> int:
    known = operand(session, value)
    return known.rank if isinstance(known, Node) else 0


def _content(session: Session, value: Any, into: Node) -> Node:
    """A value cast and broadcast to what is assigned to, as NumPy does it."""
    node = assigned(session, value, into.dtype)
    extra = node.rank - into.rank
    sizes_of = [[sizes.known(d) for d in n.shape] for n in (node, into)]
    pairs = zip(sizes_of[0][::-1], sizes_of[1][::-1], strict=False)
    if any(n not in (1, None) for n in sizes_of[0][: max(extra, 0)]) or any(
        a is not None and b is not None and a not in (1, b) for a, b in pairs
    ):
        shapes = [_shape_text(s) for s in sizes_of]
        raise failure(
            ShapeError,
            f"could not broadcast input array from shape {shapes[0]} into shape {shapes[1]}",
        )
    if extra > 0:
        node = session.make(p.Squeeze(tuple(range(extra))), node)
    return node if node.shape == into.shape else session.make(BROADCAST, node, *into.shape)


def _shape_text(shape: list[int | None]) -> str:
    """A shape as NumPy writes it, with ? for what only a run knows."""
    text = ",".join("?" if n is None else str(n) for n in shape)
    return f"({text},)" if len(shape) == 1 else f"({text})"


def assigned(session: Session, value: Any, dtype: np.dtype[Any]) -> Node:
    """A value cast as NumPy casts what it writes into an array of `dtype`."""
    known = operand(session, value)
    if isinstance(known, complex) and dtype.kind not in "bc":
        raise failure(
            TraceError, f"a complex number cannot be assigned to {dtype.name}", fix="assign z.real"
        )
    if isinstance(known, float) and dtype.kind in "iu":
        if not math.isfinite(known):
            error = CallError if math.isnan(known) else HostRangeError
            raise failure(error, f"cannot convert float {known} to {dtype.name}")
        return constant(session, int(known), dtype)
    return cast(session, known, dtype)
