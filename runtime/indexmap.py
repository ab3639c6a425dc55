"""Index maps: a use of a node in an iteration space in, the uses of its sources out.

Slices, transpositions and the like are maps, nothing more: they compose here and leave no kernel.
Starts and steps are host nodes, so that one map serves every size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from opkiln.ops import primitives as p
from opkiln.ops.defs import OpDef
from opkiln.ops.record import record
from opkiln.runtime.graph import Names, Node, const_value, host_const, is_one, make, size_text

_LARGEST = 2**62  # no axis is as long, so that a longer step never leaves its first element


@record
class Stored(OpDef):
    """The operand as it is written to memory: what fusion makes of a value with a place of its own.

    Such nodes are not interned: each is one store.
    """


class Along(NamedTuple):
    """What the index along one axis of an array follows.

    It is `start + step * i` with i along the iteration axis `axis`, or the start alone (axis -1).
    Without a step the array has the iteration's extent, or 1 and is broadcast. No start is 0.
    """

    axis: int
    step: Node | None = None
    start: Node | None = None

    def text(self, names: Names) -> str:
        """As short as it can be: `-1` for what stays at 0, `i` for a whole axis."""
        moved = self.axis >= 0 and self.step is not None
        text = f"{size_text(self.step, names)}*{self.axis}" if moved and self.step else ""
        if self.start is None:
            return text or str(self.axis)
        start = size_text(self.start, names)
        return f"{start}+{text or self.axis}" if self.axis >= 0 else f"@{start}"


AxisMap = tuple[Along, ...]  # per axis of a node
Use = tuple[Node, AxisMap]
Space = tuple[Node, ...]

STILL = Along(-1)
_PLAIN = tuple(Along(axis) for axis in range(32))


def plain(*axes: int) -> AxisMap:
    """Each axis of a node follows a whole iteration axis, or none (-1)."""
    return tuple(_PLAIN[axis] if 0 <= axis < 32 else Along(axis) for axis in axes)


def normal(node: Node, axes: AxisMap) -> AxisMap:
    """The map with axes known to have length 1 marked as still: they follow nothing."""
    return tuple([STILL if is_one(d) else m for d, m in zip(node.shape, axes, strict=True)])


def covered(axes: AxisMap) -> frozenset[int]:
    """The iteration axes that the map follows."""
    return frozenset([m.axis for m in axes if m.axis >= 0])


def picks(use: Use) -> bool:
    """Whether the use evaluates one place of an axis alone, not all the node has."""
    node, axes = use
    return any(m.axis < 0 and not is_one(d) for d, m in zip(node.shape, axes, strict=True))


def sources(node: Node, axes: AxisMap, space: Space) -> Iterator[Use]:
    """What a use of `node` at `axes` reads: each source with its own map."""
    op = node.op
    match op:
        case p.Elementwise() | p.Cast() | p.Reinterpret() | Stored():
            for source in node.src:
                yield _aligned(source, axes, node.shape)
        case p.BroadcastTo():
            yield _aligned(node.src[0], axes, node.shape)
        case p.Transpose(perm):
            inner = list(axes)
            for position, along in zip(perm, axes, strict=True):
                inner[position] = along
            yield _to(node, inner)
        case p.ExpandDims(added):
            yield _to(node, [m for i, m in enumerate(axes) if i not in added])
        case p.Squeeze(dropped):
            kept = iter(axes)
            rank = node.src[0].rank
            yield _to(node, [STILL if i in dropped else next(kept) for i in range(rank)])
        case p.Diagonal(axis, other):
            inner = list(axes)
            inner.insert(other, axes[axis - (other < axis)])
            yield _to(node, inner)
        case p.Slice():
            yield _to(node, _sliced(node, axes, space))
        case _:  # leaves, and what lies in memory
            return


def _to(view: Node, axes: list[Along]) -> Use:
    return view.src[0], normal(view.src[0], tuple(axes))


def _aligned(source: Node, axes: AxisMap, shape: tuple[Node, ...]) -> Use:
    """Right-aligned, as broadcasting does; an extent that may be 1 stills what was sliced."""
    skipped = len(axes) - source.rank
    inner = axes[skipped:]
    if any(m.step is not None or m.start is not None for m in inner):
        dims = zip(inner, source.shape, shape[skipped:], strict=True)
        inner = tuple([m if have is want else _stilled(m, have) for m, have, want in dims])
    return source, normal(source, inner)


def _stilled(along: Along, extent: Node) -> Along:
    """The map if the extent is not 1, else the only place there is."""
    if const_value(extent) is not None or along == Along(along.axis):
        return along
    step = along.step and _product(along.step, _moves(extent))
    return Along(along.axis, step, along.start and _host("min", along.start, _last(extent)))


def _sliced(node: Node, axes: AxisMap, space: Space) -> list[Along]:
    """The map of a slice's operand."""
    op = node.op
    assert isinstance(op, p.Slice)
    inner = list(axes)
    for axis, start, step in zip(op.axes, node.src[1::2], op.steps, strict=True):
        m = axes[axis]
        if m.axis < 0:
            moved = None
        elif m.step is not None:
            moved = _product(host_const(step), m.step)
        elif node.shape[axis] is space[m.axis]:
            moved = host_const(step)
        else:  # the slice may be of one element and broadcast
            moved = _product(host_const(step), _moves(node.shape[axis]))
        at = _sum(start, m.start and _product(host_const(step), m.start))
        inner[axis] = Along(m.axis, moved, None if const_value(at) == 0 else at)
    return inner


# ---- arithmetic of starts and steps, on constants at once ----


def _host(fn: str, a: Node, b: Node) -> Node:
    return make(p.HostOp(fn), a, b)


def _last(extent: Node) -> Node:
    return _host("sub", extent, host_const(1))


def _moves(extent: Node) -> Node:
    """1, or 0 for an extent of 1."""
    known = const_value(extent)
    return _host("min", _last(extent), host_const(1)) if known is None else host_const(known != 1)


def _product(a: Node, b: Node) -> Node:
    x, y = const_value(a), const_value(b)
    if x is not None and y is not None:
        return host_const(max(-_LARGEST, min(x * y, _LARGEST)))
    if x == 1:
        return b
    return a if y == 1 else _host("mul", a, b)


def _sum(a: Node, b: Node | None) -> Node:
    x, y = const_value(a), const_value(b) if b is not None else 0
    if b is None or y == 0:
        return a
    if x is not None and y is not None:
        return host_const(x + y)
    return b if x == 0 else _host("add", a, b)
