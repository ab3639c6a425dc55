"""Equal sizes: extents that broadcast together and are equal in this call, one symbol from here on.

Of `m * 0.9 + g` nobody knows whether m, g or neither is broadcast, so beside `v * g` it has a loop
nest of its own. That both are as long joins the trace key, the nests become one, and a call in
which it does not hold is traced anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce as fold

from opkiln.ops import primitives as p
from opkiln.ops.defs import OpDef
from opkiln.runtime.graph import Node, make, topological
from opkiln.runtime.infer import broadcast_dim, graph_input
from opkiln.runtime.trace.session import Place, Session

Axis = tuple[int, int]  # an input's number and one of its axes


def joined(session: Session, outputs: Iterable[Node]) -> dict[Node, Node]:
    """What becomes of the inputs whose extents equal those of others; the session notes which.

    Nothing, where there is a single loop nest: that one serves operands broadcast or not.
    """
    order = topological(outputs)
    nests = sum(isinstance(node.op, (p.Reduce, p.MatMul, p.CustomCall)) for node in order)
    nests += len({node for node in outputs if not node.is_host})
    if nests < 2:
        return {}
    leader = _leaders(session, order)
    if not leader:
        return {}
    inputs: dict[Node, Node] = {}
    for index, node in enumerate(session.inputs):
        op = _input(node)
        places = [leader.get((index, axis), (index, axis)) for axis in range(op.rank)]
        if any(at != index for at, _ in places):
            extents = tuple((_input(session.inputs[at]), axis) for at, axis in places)
            inputs[node] = graph_input(index, op.dtype, op.rank, extents)
    return inputs


def _input(node: Node) -> p.Input:
    assert isinstance(node.op, p.Input)
    return node.op


def remake(op: OpDef, *src: Node) -> Node:
    """The node of an op over other sources; what broadcasts equal extents is one of them."""
    if isinstance(op, p.HostOp) and op.fn == "bcast":
        return fold(broadcast_dim, src)
    if isinstance(op, p.HostOp) and op.fn == "same" and src[0] is src[1]:
        return src[0]
    return make(op, *src)


def _leaders(session: Session, order: list[Node]) -> dict[Axis, Axis]:
    """The extent that each one equals and gives way to."""
    parent: dict[Axis, Axis] = {}

    def root(at: Axis) -> Axis:
        while at in parent:
            at = parent[at]
        return at

    for node in order:
        for dim in node.shape:
            if not (isinstance(dim.op, p.HostOp) and dim.op.fn == "bcast"):
                continue
            members = {root(at) for s in dim.src if (at := _axis(s)) and _size(session, at) != 1}
            first, *others = sorted(members, key=lambda at: _rank(session, at)) or [(0, 0)]
            for other in others:
                if _size(session, other) == _size(session, first):  # else the call is refused
                    parent[other] = first
                    _note(session, other, first, session.places.get(node))
    return {at: root(at) for at in parent}


def _axis(dim: Node) -> Axis | None:
    return (_input(dim.src[0]).index, dim.op.axis) if isinstance(dim.op, p.Dim) else None


def _size(session: Session, at: Axis) -> int:
    return session.shapes[at[0]][at[1]]


def _rank(session: Session, at: Axis) -> tuple[bool, Axis]:
    """Captured arrays lead, since their sizes are known; then those of the first argument."""
    return at[0] < session.arguments, at


def _note(session: Session, at: Axis, leader: Axis, place: Place | None) -> None:
    if leader[0] < session.arguments:
        session.equal.setdefault(at, (leader, place))
    elif at[0] < session.arguments:  # beside a captured array it has that size, or another trace
        session.pins[at] = _size(session, at), place
