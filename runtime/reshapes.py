"""Reshapes of computed values: a graph in, one that reshapes what the computation reads out.

`(x + y).reshape(-1) * 2` becomes `(x.reshape(-1) + y.reshape(-1)) * 2`: one kernel where the layout
of a call allows the views, not a value that is written to memory to be read under other extents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from opkiln.ops import primitives as p
from opkiln.runtime.graph import Graph, Node, make, topological
from opkiln.runtime.infer import guards

_COMPUTED = (p.Elementwise, p.Cast)
READ = (
    p.Input,
    p.Reshape,
    p.UpdateSlices,
    p.Reduce,
    p.MatMul,
    p.CustomCall,
)  # lie in memory in any case
_MOST = 4  # operands, each of which may need a copy


def reshape_operands(graph: Graph) -> Graph:
    """The graph with each reshape moved to the operands of what alone it reads, where that pays."""
    while True:
        order = topological(graph.outputs, stop=frozenset(graph.inputs))
        uses = Counter(source for node in order for source in node.src)
        uses.update(graph.outputs)
        new: dict[Node, Node] = {n: n for n in graph.inputs}
        where = dict(graph.where)
        for node in order:
            if node in new:
                continue
            moved = _moved(node, uses, new, where)
            src = tuple([new[s] for s in node.src])
            new[node] = moved or (node if src == node.src else make(node.op, *src))
            if node in where:
                where.setdefault(new[node], where[node])
        outputs = tuple(new[o] for o in graph.outputs)
        if outputs == graph.outputs:
            return graph
        graph = Graph(graph.inputs, outputs, where)


def _moved(
    node: Node, uses: Mapping[Node, int], new: Mapping[Node, Node], where: dict[Node, str]
) -> Node | None:
    """The reshape of a computed value as a computation of reshaped values."""
    if not isinstance(node.op, p.Reshape):
        return None
    value = node.src[0]
    region = _region(value, uses)
    leaves = dict.fromkeys(s for n in region for s in n.src if s not in region and s.rank)
    if not region or not 0 < len(leaves) <= _MOST:
        return None
    target = tuple([new[n] for n in node.src[1:]])
    made: dict[Node, Node] = {}
    for leaf in leaves:
        if not isinstance(new[leaf].op, READ) or not _spans(leaf, value):
            return None
        made[leaf] = _reshaped(new[leaf], value.shape, target)
    for inner in reversed(region):  # sources first
        made[inner] = make(inner.op, *(made.get(s) or new[s] for s in inner.src))
        if inner in where:
            where.setdefault(made[inner], where[inner])
    return made[value] if made[value].shape == node.shape else None


def _region(value: Node, uses: Mapping[Node, int]) -> list[Node]:
    """What is computed for this value alone and has its extents: users before their sources."""
    region: dict[Node, None] = {}
    seen: Counter[Node] = Counter({value: 1})
    pending = [value]
    while pending:
        node = pending.pop()
        fits = isinstance(node.op, _COMPUTED) and node.rank and _spans(node, value)
        if node in region or seen[node] != uses[node] or not fits:
            continue
        region[node] = None
        for source in node.src:
            seen[source] += 1
            pending.append(source)
    return list(region)


def _spans(node: Node, value: Node) -> bool:
    """Whether the node has the value's extents; a call may broadcast one that is 1 there."""
    if node.rank != value.rank:
        return False
    pairs = zip(node.shape, value.shape, strict=True)
    return all(a is b or (_is_set(b) and a in b.src) for a, b in pairs)


def _is_set(extent: Node) -> bool:
    return isinstance(extent.op, p.HostOp) and extent.op.fn == "bcast"


def _reshaped(node: Node, shape: tuple[Node, ...], target: tuple[Node, ...]) -> Node:
    if isinstance(node.op, p.Reshape) and not guards(node) and node.shape == shape:
        node = node.src[0]
        return node if node.shape == target else make(p.Reshape(), node, *target)
    if node.shape != shape:
        node = make(p.BroadcastTo(), node, *shape)
    return make(p.Reshape(), node, *target)
