"""Fusion: a graph in, groups of nodes out, each group one loop nest.

Only *anchors* need a home: outputs, reductions, and values too dear to compute twice. Everything
else is computed where it is used. An anchor joins the first group whose loop nest it fits, never
one before a group it depends on, so every group is convex.
"""

from __future__ import annotations

from collections.abc import Iterator

from opkiln.ops import primitives as p
from opkiln.ops.dtypes import dtype_row
from opkiln.ops.table import ELEMENTWISE, REDUCTIONS
from opkiln.runtime.graph import Node, is_one, topological

AxisMap = tuple[int, ...]  # per axis of a node: the iteration axis it follows, or -1
Use = tuple[Node, AxisMap]

# From this cost on a value is stored rather than computed twice: about one transcendental function.
DEAR = 6.0

# From this cost on, work on a small operand is not repeated along a larger space: one division.
REPEATED = 2.0


def node_cost(node: Node) -> float:
    """Rough cost of one element of this op alone, in quarter nanoseconds."""
    if isinstance(node.op, p.Elementwise):
        row = ELEMENTWISE[node.op.row]
        # Integer division and power run lane by lane; double vectors hold half as many lanes.
        widest = max(dtype_row(n.dtype).lane for n in (node, *node.src))
        return row.cost * widest / 4
    if isinstance(node.op, p.Reduce):
        return REDUCTIONS[node.op.row].cost
    if isinstance(node.op, p.Reinterpret):
        return 0.0
    return 0.25


def normal(node: Node, axes: AxisMap) -> AxisMap:
    """The map with axes known to have length 1 marked as broadcast: they follow nothing."""
    return tuple(-1 if is_one(dim) else axis for dim, axis in zip(node.shape, axes, strict=True))


def sources(node: Node, axes: AxisMap) -> Iterator[Use]:
    """What a use of `node` at `axes` reads: each source with its own map.

    Views are maps, nothing more.
    """
    op = node.op
    if isinstance(op, p.Transpose):
        inner = [-1] * len(axes)
        for position, axis in zip(op.perm, axes, strict=True):
            inner[position] = axis
        yield node.src[0], normal(node.src[0], tuple(inner))
    elif isinstance(op, p.ExpandDims):
        kept = tuple(a for i, a in enumerate(axes) if i not in op.axes)
        yield node.src[0], normal(node.src[0], kept)
    elif isinstance(op, p.BroadcastTo):
        yield _aligned(node.src[0], axes)
    elif not isinstance(op, (p.Input, p.Constant, p.FromHost, p.Reduce, p.MatMul)):
        for source in node.src:
            yield _aligned(source, axes)


def _aligned(source: Node, axes: AxisMap) -> Use:
    """Right-aligned, as broadcasting does."""
    return source, normal(source, axes[len(axes) - source.rank :])


def _covered(axes: AxisMap) -> frozenset[int]:
    return frozenset(a for a in axes if a >= 0)


def kept_map(node: Node) -> AxisMap:
    """The map under which a reduction's result is read back in the nest that reduces it."""
    op = node.op
    assert isinstance(op, p.Reduce)
    rank = node.src[0].rank
    kept = tuple(-1 if i in op.axes else i for i in range(rank))
    return normal(node, kept if op.keepdims else tuple(a for a in kept if a >= 0))


def operand_of(reduction: Node) -> Use:
    """What a reduction reads: its source, axis by axis."""
    (x,) = reduction.src
    return x, normal(x, tuple(range(x.rank)))


def product_space(product: Node) -> tuple[Node, ...]:
    """What a matrix product runs over: the axes of its result, then the one that it sums over."""
    return (*product.shape, product.src[0].shape[-1])


def factors_of(product: Node) -> tuple[Use, Use]:
    """What a matrix product reads, over its space."""
    a, b = product.src
    *batch, m, n, k = range(product.rank + 1)
    left = normal(a, (*batch[len(batch) + 2 - a.rank :], m, k))
    return (a, left), (b, normal(b, (*batch[len(batch) + 2 - b.rank :], k, n)))


def in_memory_of(node: Node) -> Node:
    """What must lie in memory for a product to read `node` through strides."""
    base = node
    while isinstance(base.op, p.VIEWS):
        base = base.src[0]
    return node if isinstance(base.op, (p.Constant, p.FromHost)) else base


class Group:
    """One loop nest: its iteration space, the axes it reduces, and its anchors in order.

    `folded` is the space that its reductions run over. It is another than `space` where a store
    broadcasts the reduced axis, as by the weights of a normalisation: the axis may be of length 1
    in `folded` and longer in `space`. No anchor joins one that is `alone`.
    """

    __slots__ = ("alone", "anchors", "folded", "reduced", "space")

    def __init__(
        self, space: tuple[Node, ...], reduced: tuple[int, ...], *, alone: bool = False
    ) -> None:
        self.space = self.folded = space
        self.reduced = reduced
        self.alone = alone
        self.anchors: list[Use] = []

    def place(self, node: Node) -> AxisMap | None:
        """The map under which this nest can compute the anchor, or None if it does not fit."""
        if isinstance(node.op, p.Reduce):
            fits = node.src[0].shape == self.folded and self.reduced in ((), node.op.axes)
            return kept_map(node) if fits and node.op.axes else None
        if node.shape == self.space or self._widens(node):
            # Full-size stores belong where the columns are contiguous: not beside a reduction of
            # leading axes, whose columns stride through memory.
            fits = not self.reduced or len(self.space) - 1 in self.reduced
            return normal(node, tuple(range(node.rank))) if fits else None
        if self.reduced:
            kept = tuple(i for i in range(len(self.space)) if i not in self.reduced)
            if node.shape == tuple(self.space[i] for i in kept):
                return normal(node, kept)
            flat = tuple(-1 if i in self.reduced else i for i in range(len(self.space)))
            if node.rank == len(self.space) and all(
                is_one(d) if a < 0 else d is self.space[a]
                for d, a in zip(node.shape, flat, strict=True)
            ):
                return normal(node, flat)
        return None

    def add(self, node: Node, axes: AxisMap) -> None:
        """Take an anchor that `place` found to fit."""
        if isinstance(node.op, p.Reduce):
            self.reduced = node.op.axes
        elif self._widens(node):
            self.space = node.shape
        self.anchors.append((node, axes))

    def _widens(self, node: Node) -> bool:
        """Whether the anchor has the folded space, its one reduced axis broadcast with others."""
        if len(self.reduced) != 1 or node.rank != len(self.space) or self._stores_space():
            return False
        (column,) = self.reduced
        wide = node.shape[column]
        is_set = isinstance(wide.op, p.HostOp) and wide.op.fn == "bcast"
        rows = all(a is b for i, (a, b) in enumerate(zip(node.shape, self.space, strict=True))
                   if i != column)  # fmt: skip
        return is_set and rows and self.folded[column] in wide.src

    def _stores_space(self) -> bool:
        """Whether an anchor of the full space fixes it."""
        return self.space != self.folded or any(
            not isinstance(node.op, p.Reduce) and len(_covered(axes)) == len(self.space)
            for node, axes in self.anchors
        )


class Fusion:
    """The groups of a graph, in launch order, and the nodes that live in memory between them."""

    def __init__(self, outputs: tuple[Node, ...], *, fuse: bool = True) -> None:
        self.outputs = tuple(dict.fromkeys(n for n in outputs if not n.is_host))
        self.order = [n for n in topological(self.outputs) if not n.is_host]
        self.stored: set[Node] = set(self.outputs)
        self.fuse = fuse
        if not fuse:  # opt_level 0: one kernel per op
            self.stored.update(n for n in self.order if isinstance(n.op, (p.Elementwise, p.Cast)))
        for product in [n for n in self.order if isinstance(n.op, p.MatMul)]:
            bases = [in_memory_of(factor) for factor in product.src]
            self.stored |= {product, *(b for b in bases if not isinstance(b.op, p.Input))}
        while True:
            self._group()
            dear = self._recomputed()
            if dear <= self.stored:
                break
            self.stored |= dear

    def uses(self, group: Group, anchor: Use) -> Iterator[Use]:
        """Every (node, map) that computing the anchor evaluates in this group, sources after users.

        Stops at values that live in memory or in this group's own registers.
        """
        node, axes = anchor
        if isinstance(node.op, p.MatMul):
            stack: list[Use] = list(factors_of(node))
        elif isinstance(node.op, p.Reduce):
            stack = [operand_of(node)]
        else:
            stack = list(sources(node, axes))
        seen: set[Use] = set()
        while stack:
            use = stack.pop()
            if use in seen:
                continue
            seen.add(use)
            yield use
            if use[0] not in self.home:
                stack.extend(sources(*use))

    def _group(self) -> None:
        self.groups: list[Group] = []
        self.home: dict[Node, int] = {}  # anchor -> its group
        for node in self.order:
            if node in self.stored or isinstance(node.op, p.Reduce):
                self._settle(node)

    def _settle(self, node: Node) -> None:
        if isinstance(node.op, p.MatMul):
            group = Group(product_space(node), (node.rank,), alone=True)
            group.add(node, normal(node, tuple(range(node.rank))))
            self.home[node] = len(self.groups)
            self.groups.append(group)
            return
        space = node.src[0].shape if isinstance(node.op, p.Reduce) else node.shape
        reduced = node.op.axes if isinstance(node.op, p.Reduce) else ()
        for index, group in enumerate(self.groups):
            axes = group.place(node) if self.fuse and not group.alone else None
            if axes is not None and self._depends_only_on(group, index, (node, axes)):
                group.add(node, axes)
                self.home[node] = index
                return
        group = Group(space, reduced)
        axes = group.place(node)
        assert axes is not None, "a reduction over no axis is its operand and never gets here"
        group.add(node, axes)
        self.home[node] = len(self.groups)
        self.groups.append(group)

    def _depends_only_on(self, group: Group, index: int, anchor: Use) -> bool:
        """Whether all that the anchor reads is of an earlier group, or of this one by its map."""
        own = dict(group.anchors)
        for node, axes in self.uses(group, anchor):
            home = self.home.get(node)
            if home is None:
                continue
            if home > index or (home == index and own[node] != axes):
                return False
        # A nest that becomes a reduction must not strand full-size stores on strided columns.
        node = anchor[0]
        if isinstance(node.op, p.Reduce) and not group.reduced:
            return len(group.space) - 1 in node.op.axes
        return True

    def _recomputed(self) -> set[Node]:
        """Values worth storing: dear ones computed in two places, work repeated along more axes."""
        dear: dict[Node, set[tuple[int, AxisMap]]] = {}
        repeated: set[Node] = set()
        for index, group in enumerate(self.groups):
            full = frozenset(i for i, dim in enumerate(group.space) if not is_one(dim))
            rows = full - set(group.reduced)
            for anchor in group.anchors:
                used = list(self.uses(group, anchor))
                for node, axes in used:
                    if node not in self.home and node_cost(node) >= DEAR:
                        dear.setdefault(node, set()).add((index, axes))
                work = self._work(used)
                for node, axes in [anchor, *used]:
                    if node in self.home and (node, axes) != anchor:
                        continue
                    covered = _covered(axes)
                    for source, inner in sources(node, axes):
                        smaller = _covered(inner)
                        # Values of a call, and of a row in a reduction, leave the loop.
                        hoisted = not smaller or (bool(group.reduced) and smaller == rows)
                        if (
                            smaller < covered
                            and not hoisted
                            and work.get((source, inner), 0.0) >= REPEATED
                        ):
                            repeated.add(source)
        return repeated | {node for node, places in dear.items() if len(places) > 1}

    def _work(self, used: list[Use]) -> dict[Use, float]:
        """Cost of computing each use from memory, sources of equal extent included."""
        total: dict[Use, float] = {}
        evaluated = set(used)
        pending = list(reversed(used))
        while pending:
            use = pending.pop()
            if use in total:
                continue
            node, axes = use
            if node in self.home or isinstance(node.op, (p.Input, p.Constant, p.FromHost)):
                total[use] = 0.0
                continue
            inner = [
                s
                for s in sources(node, axes)
                if _covered(s[1]) == _covered(axes) and s in evaluated
            ]
            missing = [s for s in inner if s not in total]
            if missing:
                pending.extend([use, *missing])
            else:
                total[use] = node_cost(node) + sum(total[s] for s in inner)
        return total

    def in_memory(self) -> set[Node]:
        """Nodes that need a buffer: those stored, and reductions that another group reads."""
        result = set(self.stored)
        for index, group in enumerate(self.groups):
            for anchor in group.anchors:
                for node, _ in self.uses(group, anchor):
                    if self.home.get(node, index) != index:
                        result.add(node)
        return result
