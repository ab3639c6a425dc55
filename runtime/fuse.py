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
from opkiln.runtime.graph import Node, const_value, is_one
from opkiln.runtime.indexmap import (
    AxisMap,
    Stored,
    Use,
    covered,
    normal,
    picks,
    plain,
    sources,
)
from opkiln.runtime.stores import IN_MEMORY, Stores

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
    if isinstance(node.op, (p.Reinterpret, Stored)):
        return 0.0
    return 0.25


def _arrays(node: Node) -> list[Node]:
    """The sources that are no sizes, each once."""
    return [s for s in dict.fromkeys(node.src) if not s.is_host]


def kept_map(node: Node) -> AxisMap:
    """The map under which a reduction's result is read back in the nest that reduces it."""
    op = node.op
    assert isinstance(op, p.Reduce)
    rank = node.src[0].rank
    kept = [-1 if i in op.axes else i for i in range(rank)]
    return normal(node, plain(*(kept if op.keepdims else [a for a in kept if a >= 0])))


def operand_of(reduction: Node) -> Use:
    """What a reduction reads: its source, axis by axis."""
    (x,) = reduction.src
    return x, normal(x, plain(*range(x.rank)))


_PLENTY = 1e6  # more work than any threshold
_FROM_MEMORY = (p.Input, p.Constant, p.FromHost, p.Reduce, p.UpdateSlices, p.Reshape, p.MatMul,
                p.CustomCall)  # fmt: skip


def product_space(product: Node) -> tuple[Node, ...]:
    """What a matrix product runs over: the axes of its result, then the one that it sums over."""
    return (*product.shape, product.src[0].shape[-1])


def factors_of(product: Node) -> tuple[Use, Use]:
    """What a matrix product reads, over its space."""
    a, b = product.src
    *batch, m, n, k = range(product.rank + 1)
    left = plain(*batch[len(batch) + 2 - a.rank :], m, k)
    right = plain(*batch[len(batch) + 2 - b.rank :], k, n)
    return (a, normal(a, left)), (b, normal(b, right))


def call_space(call: Node) -> tuple[Node, ...]:
    """What a call of a custom op runs over: the axes of its tensors, then of its results."""
    assert isinstance(call.op, p.CustomCall)
    tensors, _, *results = call.op.split(call.src)
    shapes = [*(t.shape for t in tensors), *results]
    return tuple(extent for shape in shapes for extent in shape)


def call_operands(call: Node, results: tuple[Node, ...]) -> list[Use]:
    """The tensors of a call, then its results, over its space."""
    assert isinstance(call.op, p.CustomCall)
    uses: list[Use] = []
    at = 0
    for node in (*call.op.split(call.src)[0], *results):
        uses.append((node, normal(node, plain(*range(at, at + node.rank)))))
        at += node.rank
    return uses


def operands_of(node: Node) -> list[Use] | None:
    """What must be read where it lies, by a product or a custom op; None of any other node."""
    if isinstance(node.op, p.MatMul):
        return list(factors_of(node))
    return call_operands(node, ()) if isinstance(node.op, p.CustomCall) else None


def in_memory_of(node: Node) -> Node:
    """What must lie in memory for `node` to be read through strides."""
    base, part = node, None
    while isinstance(base.op, p.VIEWS):
        if isinstance(base.op, (p.Slice, p.Diagonal)):
            part = part or base
        base = base.src[0]
    if isinstance(base.op, IN_MEMORY):
        return base
    return part or base


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
            return normal(node, plain(*range(node.rank))) if fits else None
        if self.reduced:
            kept = tuple(i for i in range(len(self.space)) if i not in self.reduced)
            if node.shape == tuple(self.space[i] for i in kept):
                return normal(node, plain(*kept))
            flat = tuple(-1 if i in self.reduced else i for i in range(len(self.space)))
            if node.rank == len(self.space) and all(
                is_one(d) if a < 0 else d is self.space[a]
                for d, a in zip(node.shape, flat, strict=True)
            ):
                return normal(node, plain(*flat))
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
            not isinstance(node.op, p.Reduce) and len(covered(axes)) == len(self.space)
            for node, axes in self.anchors
        )


class Fusion:
    """The groups of a graph, in launch order, and the nodes that live in memory between them."""

    def __init__(self, outputs: tuple[Node, ...], *, fuse: bool = True) -> None:
        self.outputs = tuple(dict.fromkeys(n for n in outputs if not n.is_host))
        self.stores = Stores(self.outputs)
        self.order = self.stores.order
        self.stored: set[Node] = {*self.outputs, *self.stores.needed}
        self.fuse = fuse
        if not fuse:  # opt_level 0: one kernel per op
            self.stored.update(n for n in self.order if isinstance(n.op, (p.Elementwise, p.Cast)))
        for node in self.order:
            uses = operands_of(node)
            if uses is not None:
                bases = [in_memory_of(operand) for operand, _ in uses]
                self.stored |= {node, *(b for b in bases if not isinstance(b.op, p.Input))}
        self.stored |= self._sliced_apart()
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
        stack = operands_of(node)
        if stack is None and isinstance(node.op, p.Reduce):
            stack = [operand_of(node)]
        elif stack is None:
            stack = list(sources(node, axes, group.space))
        seen: set[Use] = set()
        while stack:
            use = stack.pop()
            if use in seen:
                continue
            seen.add(use)
            yield use
            if use[0] not in self.home:
                stack.extend(sources(*use, group.space))

    def _group(self) -> None:
        self.groups: list[Group] = []
        self.home: dict[Node, int] = {}  # anchor -> its group
        for node in self.order:
            if isinstance(node.op, p.UpdateSlices):
                self.home[node] = max(self.home[piece] for piece in self.stores.pieces[node])
            elif isinstance(node.op, p.Reshape):
                self.home[node] = self.home[self.stores.copies.get(node, node.src[0])]
            elif node in self.stored or isinstance(node.op, (p.Reduce, Stored)):
                self._settle(node)

    def _settle(self, node: Node) -> None:
        if node in self.home:  # another result of a call that is settled
            return
        if isinstance(node.op, p.MatMul):
            own = normal(node, plain(*range(node.rank)))
            self._alone(Group(product_space(node), (node.rank,), alone=True), [(node, own)])
            return
        if isinstance(node.op, p.CustomCall):
            results = self.stores.calls[node]
            uses = call_operands(node, results)[-len(results) :]
            self._alone(Group(call_space(node), (), alone=True), uses)
            return
        space = node.src[0].shape if isinstance(node.op, p.Reduce) else node.shape
        reduced = node.op.axes if isinstance(node.op, p.Reduce) else ()
        alone = node in self.stores.copies.values() or not self.fuse
        for index, group in enumerate(self.groups):
            axes = group.place(node) if not (alone or group.alone) else None
            if axes is not None and self._depends_only_on(group, index, (node, axes)):
                group.add(node, axes)
                self.home[node] = index
                return
        group = Group(space, reduced, alone=alone)
        axes = group.place(node)
        assert axes is not None, "a reduction over no axis is its operand and never gets here"
        group.add(node, axes)
        self.home[node] = len(self.groups)
        self.groups.append(group)

    def _alone(self, group: Group, anchors: list[Use]) -> None:
        """A group that nothing joins."""
        for node, axes in anchors:
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
            if home > index or (home == index and own.get(node) != axes):
                return False
        node = anchor[0]
        before = self.stores.before.get(node)
        if before is not None and self.home[before] >= index:
            return False
        # A nest that becomes a reduction must not strand full-size stores on strided columns.
        if isinstance(node.op, p.Reduce) and not group.reduced:
            return len(group.space) - 1 in node.op.axes
        return True

    def _sliced_apart(self) -> set[Node]:
        """Values that shifted slices would compute again and again, as each step of a stencil does.

        Counted before any index map is made: of a deep stencil there would be too many.
        """
        work: dict[Node, float] = {}  # of an element, down to memory
        for node in self.order:
            work[node] = 0.0
            if node not in self.stored and not isinstance(node.op, _FROM_MEMORY):
                computed = isinstance(node.op, (p.Elementwise, p.Cast))
                below = sum(work[s] for s in _arrays(node))
                work[node] = min(below + (node_cost(node) if computed else 0.0), _PLENTY)
        found: set[Node] = set()
        shifted: dict[Node, float] = {}  # index maps that slices make
        straight: dict[Node, float] = {}  # those of all other readers, which share them
        for node in reversed(self.order):
            ways = straight.get(node, 0.0) + shifted.get(node, 0.0)
            if work[node] * (ways - 1) >= DEAR:
                found.add(node)
            if node in found or not work[node] or isinstance(node.op, Stored):
                ways = 1.0
            for source in _arrays(node):
                if not isinstance(node.op, (p.Slice, p.Diagonal)):
                    straight[source] = max(straight.get(source, 0.0), ways)
                elif all(const_value(count) != 1 for count in node.src[2::2]):
                    shifted[source] = min(shifted.get(source, 0.0) + ways, _PLENTY)
        return found

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
                    if node in self.home or picks((node, axes)):
                        continue
                    if node_cost(node) >= DEAR:
                        dear.setdefault(node, set()).add((index, axes))
                work = self._work(used, group)
                for node, axes in [anchor, *used]:
                    if node in self.home and (node, axes) != anchor:
                        continue
                    whole = covered(axes)
                    for source, inner in sources(node, axes, group.space):
                        smaller = covered(inner)
                        # Values of a call, and of a row in a reduction, leave the loop.
                        hoisted = not smaller or (bool(group.reduced) and smaller == rows)
                        if (
                            smaller < whole
                            and not hoisted
                            and work.get((source, inner), 0.0) >= REPEATED
                        ):
                            repeated.add(source)
        return repeated | {node for node, places in dear.items() if len(places) > 1}

    def _work(self, used: list[Use], group: Group) -> dict[Use, float]:
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
                for s in sources(node, axes, group.space)
                if covered(s[1]) == covered(axes) and s in evaluated
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
