"""Stores: the outputs of a graph in, the values that ops need in memory and how they get there out.

Reshapes read memory, updates are written piece by piece. Each store beside the plain one, of a
value as the whole of its own array, is a `Stored` node.
"""

from __future__ import annotations

from typing import NamedTuple

from opkiln.ops import primitives as p
from opkiln.ops.defs import OpDef
from opkiln.runtime.graph import Node, make, topological
from opkiln.runtime.indexmap import Stored

_AS_BEFORE = (*p.VIEWS, p.Reinterpret)  # ops whose elements lie where the operand's lie
IN_MEMORY: tuple[type[OpDef], ...] = (p.Input, p.Reshape, p.UpdateSlices)


class Target(NamedTuple):
    """Where a store goes: into the array of `owner`, from `starts` on by `steps`; or all of it."""

    owner: Node
    starts: tuple[Node, ...] = ()
    steps: tuple[int, ...] = ()


class Stores:
    """All nodes in topological order, stores among them, and what is said of them."""

    def __init__(self, outputs: tuple[Node, ...]) -> None:
        self.order: list[Node] = []
        self.needed: set[Node] = set()  # values that must be stored
        self.dense: set[Node] = set()  # those in C order, whatever the kernel would choose
        self.target: dict[Node, Target] = {}
        self.pieces: dict[Node, list[Node]] = {}  # of an update
        self.before: dict[Node, Node] = {}  # the store that must be done before this one
        self.copies: dict[Node, Node] = {}  # reshape -> the copy for strides that allow no view
        self.calls: dict[Node, tuple[Node, ...]] = {}  # result of a custom op -> all of that call's
        for node in topological(outputs):
            if node in self.calls:
                continue  # came with the call's first result
            if isinstance(node.op, p.CustomCall):
                self._call(node, outputs)
                continue
            if isinstance(node.op, p.UpdateSlices):
                self._update(node)
            elif isinstance(node.op, p.Reshape):
                self._reshape(node, outputs)
            if not node.is_host:
                self.order.append(node)
            if isinstance(node.op, p.Reshape) and node in outputs:
                self._store(node, Target(node))

    def _store(self, value: Node, target: Target) -> Node:
        node = Node(Stored(), (value,), value.dtype, tuple([_checked(d) for d in value.shape]))
        self.target[node] = target
        self.order.append(node)
        return node

    def _call(self, node: Node, outputs: tuple[Node, ...]) -> None:
        """All results of a call, whether read or not: it writes each of them."""
        assert isinstance(node.op, p.CustomCall)
        for tensor in node.op.split(node.src)[0]:
            if not isinstance(tensor.op, IN_MEMORY) and tensor not in outputs:
                self.dense.add(tensor)  # counts if it is stored: most custom ops want it so
        results = tuple(make(op, *node.src) for op in node.op.results())
        self.calls.update(dict.fromkeys(results, results))
        self.needed.update(results)
        self.order += results

    def _update(self, node: Node) -> None:
        op = node.op
        assert isinstance(op, p.UpdateSlices)
        pieces = [self._store(v, Target(node, at, by)) for v, at, by in op.parts(node.src)]
        self.pieces[node] = pieces
        if not op.disjoint:
            self.before.update(zip(pieces[1:], pieces[:-1], strict=True))

    def _reshape(self, node: Node, outputs: tuple[Node, ...]) -> None:
        """What is computed is stored so that a reshape can read it; all else may need a copy."""
        value = place = node.src[0]
        while isinstance(place.op, _AS_BEFORE) and place not in outputs:
            place = place.src[0]
        if isinstance(place.op, IN_MEMORY) or place in outputs:
            self.copies[node] = self._store(value, Target(node))
        else:
            self.needed.add(value)
            self.dense.add(value)


def _checked(extent: Node) -> Node:
    """The extent that a guard says it equals, so that equal values share a loop nest."""
    while isinstance(extent.op, p.HostOp) and extent.op.fn == "same":
        extent = extent.src[0]
    return extent
