"""Lowering: a graph in, a `Lowered` program of buffers, scalar slots and neutral kernels out."""

from __future__ import annotations

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.elementwise.presets import RAISING
from opkiln.ops.table import ELEMENTWISE
from opkiln.runtime import kernel as k
from opkiln.runtime.fuse import DEAR, Fusion, Group, node_cost, operand_of, operands_of
from opkiln.runtime.graph import Graph, Node, const_value, host_const, make, topological
from opkiln.runtime.indexmap import (
    Along,
    AxisMap,
    Stored,
    Use,
    covered,
    normal,
    plain,
    sources,
)
from opkiln.runtime.infer import guards

# Nanoseconds of a call of a custom op, whatever its sizes: enough to run without the GIL.
_CALL = 1e5


def lower(graph: Graph, *, opt_level: int = 2) -> k.Lowered:
    """Lower a rewritten graph.

    opt_level 0 makes one kernel per op; the bits do not depend on it.
    """
    return _Program(graph, opt_level).build()


class _Program:
    """State of lowering one graph: the tables that end up in `Lowered`."""

    def __init__(self, graph: Graph, opt_level: int) -> None:
        self.graph = graph
        self.fusion = Fusion(graph.outputs, fuse=opt_level > 0)
        self.buffers: list[k.Buffer] = [k.Buffer("arg", n.dtype, n.shape) for n in graph.inputs]
        self.memory: dict[Node, int] = {n: i for i, n in enumerate(graph.inputs)}
        self.written: dict[Node, int] = {}
        self.scalars: dict[tuple[Node, k.DT, str], int] = {}
        self.checks: list[Node] = []

    def build(self) -> k.Lowered:
        """Assign memory, then print each group as a kernel."""
        fusion = self.fusion
        in_memory = fusion.in_memory()
        # Outputs first and in their own order, which is that of the entries of `out=`.
        for node in fusion.outputs:
            self.written[node] = self.buffer("out", node.dtype, node.shape)
            if not isinstance(node.op, (p.Input, p.Reshape)):
                self.memory[node] = self.written[node]
        for node in fusion.order:
            if isinstance(node.op, p.Reshape):
                self.memory[node] = self.view(node)
            elif node in in_memory and node not in fusion.outputs:
                dense = node in fusion.stores.dense
                self.written[node] = self.buffer("temp", node.dtype, node.shape, dense=dense)
                self.memory[node] = self.written[node]
        launches = tuple(
            _Body(self, index, group).launch() for index, group in enumerate(fusion.groups)
        )
        outputs: dict[tuple[str, object], int] = {}
        slots: list[int] = []
        for node in self.graph.outputs:
            place = ("host", node) if node.is_host else ("buffer", self.written[node])
            slots.append(outputs.setdefault(place, len(outputs)))
        self.checks += [guard for n in fusion.order for guard in guards(n)]
        sizes = [s for n in fusion.order for s in (*n.shape, *n.src) if s.is_host]
        self.checks += [
            h
            for h in topological(sizes)
            if isinstance(h.op, p.HostOp) and h.op.fn in ("bcast", "same", "index")
        ]
        return k.Lowered(
            tuple(self.buffers),
            tuple(self.scalars),
            launches,
            tuple(outputs),
            tuple(slots),
            tuple(dict.fromkeys(self.checks)),
        )

    def buffer(
        self, kind: str, dtype: k.DT, extents: tuple[Node, ...], *, dense: bool = False,
        view: k.View | None = None,
    ) -> int:  # fmt: skip
        """A new buffer's index."""
        self.buffers.append(k.Buffer(kind, dtype, extents, dense, view))
        return len(self.buffers) - 1

    def view(self, node: Node) -> int:
        """The buffer of a reshape: a view of the memory that its operand is an index map of."""
        value = place = node.src[0]
        axes = normal(value, plain(*range(value.rank)))
        while place not in self.memory:
            ((place, axes),) = sources(place, axes, value.shape)
        copy = -1
        if node in self.fusion.stores.copies:
            copy = self.buffer("temp", value.dtype, value.shape, dense=True)
            self.written[self.fusion.stores.copies[node]] = copy
        view = k.View(self.memory[place], axes, value.shape, copy)
        return self.buffer("view", node.dtype, node.shape, view=view)

    def destination(self, node: Node, axes: AxisMap) -> tuple[int, AxisMap]:
        """The buffer that an anchor is written to, and where: a store may have a part of it."""
        if node in self.written:
            return self.written[node], axes
        owner, starts, steps = self.fusion.stores.target[node]
        if steps:
            parts = zip(axes, node.shape, owner.shape, starts, steps, strict=True)
            axes = tuple([_within(*part) for part in parts])
        return self.written[owner], axes

    def view_of(self, group: Group) -> int:
        """The view that the group is the copy for, or -1."""
        stores, node = self.fusion.stores, group.anchors[0][0]
        owner = stores.target[node].owner if node in stores.target else None
        return self.memory[owner] if owner and stores.copies.get(owner) is node else -1

    def scalar(self, node: Node) -> int:
        """The slot of a FromHost node."""
        op = node.op
        assert isinstance(op, p.FromHost)
        return self.number(node.src[0], op.dtype, op.mode)

    def number(self, node: Node, dtype: k.DT, mode: str) -> int:
        """The slot of a host node in a dtype."""
        return self.scalars.setdefault((node, dtype, mode), len(self.scalars))


class _Body:
    """Prints one group's statements: every value at the level (call, row, element) where it lives.

    A value's stage counts the reductions before it. In a later loop a cheap value is computed
    again; a dear one is kept in a scratch buffer as long as the columns.
    """

    def __init__(self, program: _Program, index: int, group: Group) -> None:
        self.program, self.index, self.group = program, index, group
        self.operands: dict[k.Operand, int] = {}
        self.slots: dict[int, int] = {}  # program scalar slot -> kernel parameter
        self.dtypes: list[k.DT] = []
        self.level: dict[Use, tuple[int, int]] = {}  # (0 call | 1 row | 2 element, stage)
        self.sections: dict[tuple[int, int], list[k.Statement]] = {}
        self.values: dict[tuple[Use, int], int] = {}  # (use, loop stage or -1) -> value
        self.scratch: dict[Use, k.Operand] = {}
        self.cost = 0.0
        self.faults = 0
        self.folds = 0  # loops with folds
        self.broadcasts = group.folded != group.space

    def launch(self) -> k.Launch:
        """The kernel and its bindings."""
        if isinstance(self.group.anchors[0][0].op, p.MatMul):
            return self.product()
        if isinstance(self.group.anchors[0][0].op, p.CustomCall):
            return self.call()
        # One column loop per stage: reductions first, since a later stage may need them.
        for node, axes in self.group.anchors:
            if isinstance(node.op, p.Reduce):
                self.reduction(node, axes)
        for node, axes in self.group.anchors:
            if node in self.program.written or isinstance(node.op, Stored):
                self.store(node, axes)
        rank = len(self.group.space)
        folded = self.folded_columns()
        kernel = k.Kernel(
            rank,
            self.group.reduced,
            tuple(self.operands),
            self.parameter_dtypes(),
            tuple(self.dtypes),
            self.ordered_sections(),
            self.cost / 4,
            bool(self.faults & RAISING),
            folded,
        )
        return k.Launch(
            kernel, self.group.space, tuple(self.slots), self.program.view_of(self.group)
        )

    def product(self) -> k.Launch:
        """The kernel of a matrix product: no statements, both operands read where they lie."""
        ((node, axes),) = self.group.anchors
        operands = [*self.where_they_lie(node), self.write(node, axes, per_row=True)]
        dtype = in_kernel(node.dtype)
        space = self.group.space
        kernel = k.Kernel(
            len(space), self.group.reduced, tuple(operands), (), (), (), 0.005 * dtype.itemsize,
            may_raise=False, product=True,
        )  # fmt: skip
        return k.Launch(kernel, space, ())

    def call(self) -> k.Launch:
        """The call of a custom op: no statements, tensors read where they lie."""
        results = self.group.anchors
        node = results[0][0]
        assert isinstance(node.op, p.CustomCall)
        operands = [
            *self.where_they_lie(node),
            *(self.write(result, axes, per_row=True) for result, axes in results),
        ]
        numbers = node.op.split(node.src)[1]
        dtypes = tuple(np.dtype(np.float64 if n.dtype is float else np.int64) for n in numbers)
        slots = map(self.program.number, numbers, dtypes, ["check"] * len(numbers))
        kernel = k.Kernel(
            len(self.group.space), (), tuple(operands), dtypes, (), (), _CALL, may_raise=False,
            call=node,
        )  # fmt: skip
        return k.Launch(kernel, self.group.space, tuple(slots))

    def where_they_lie(self, node: Node) -> list[k.Operand]:
        """What a product or a custom op reads, through the strides of the views in between."""
        operands: list[k.Operand] = []
        for operand in operands_of(node) or ():
            use = operand
            while not self.in_memory(use[0]):
                (use,) = sources(*use, self.group.space)
            operands.append(self.read(*use))
        return operands

    def folded_columns(self) -> int | None:
        """The parameter that counts the columns of folds, if stores may have more."""
        if not self.broadcasts:
            return None
        (column,) = self.group.reduced
        count = make(p.FromHost(np.dtype(np.int64), "check"), self.group.folded[column])
        return self.parameter(count)

    def parameter(self, node: Node) -> int:
        """The kernel's parameter of a FromHost node."""
        return self.slots.setdefault(self.program.scalar(node), len(self.slots))

    def parameter_dtypes(self) -> tuple[k.DT, ...]:
        """Dtype of each scalar parameter, in order."""
        keys = list(self.program.scalars)
        return tuple(keys[slot][1] for slot in self.slots)

    def ordered_sections(self) -> tuple[k.Section, ...]:
        """once, row 0, loop 0, row 1, loop 1, ...; empty ones are left out."""
        once = self.sections.pop((0, 0), [])
        if not self.group.reduced and all(isinstance(s, (k.Load, k.Param, k.Const)) for s in once):
            # Nothing is computed before the loop: it reads them as all else that broadcasts.
            loop = self.sections[2, 0]
            values = [s.arg if isinstance(s, k.Store) else s.value for s in loop]
            for load in [s for s in once if isinstance(s, k.Load)]:
                at = next((i for i, v in enumerate(values) if v >= load.value), len(loop))
                loop.insert(at, load)
                values.insert(at, load.value)
                once.remove(load)
        result = [k.Section("once", tuple(once))] if once else []
        # (2, s) loop s; (1, s) row section s, which runs before loop s
        for (level, _), body in sorted(
            self.sections.items(), key=lambda item: (item[0][1], item[0][0])
        ):
            result.append(k.Section("row" if level == 1 else "loop", tuple(body)))
        return tuple(result)

    # *** levels: where a value lives ***

    def levels(self, root: Use) -> tuple[int, int]:
        """Level and stage of a use, computing those of everything below it first."""
        stack = [root]
        while stack:
            use = stack[-1]
            if use in self.level:
                stack.pop()
                continue
            below = self.below(use)
            missing = [b for b in below if b not in self.level]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            self.level[use] = self.level_of(use, below)
        return self.level[root]

    def level_of(self, use: Use, below: list[Use]) -> tuple[int, int]:
        node, axes = use
        if self.in_registers(use):
            stage = self.levels(operand_of(node))[1]
            return 1, stage + 1
        if self.is_leaf(use):
            followed = covered(axes)
            if not followed:
                # Without axes all of it is one element, which the loop makes as any other.
                return (2 if self.in_memory(node) and not self.group.space else 0), 0
            row = bool(self.group.reduced) and not followed & set(self.group.reduced)
            return (1, 0) if row else (2, 0)
        inner = [self.level[b] for b in below]
        level = max((lv for lv, _ in inner), default=0)
        return level, max((stage for _, stage in inner), default=0)

    def below(self, use: Use) -> list[Use]:
        """What computing the use reads."""
        return [] if self.is_leaf(use) else list(sources(*use, self.group.space))

    def is_leaf(self, use: Use) -> bool:
        """Whether the value is read: from memory, a parameter, a constant or own accumulators."""
        node, _ = use
        if isinstance(node.op, (p.Constant, p.FromHost, p.Input, p.Reduce)):
            return True
        return self.in_memory(node)

    def in_memory(self, node: Node) -> bool:
        """Whether the value lies in a buffer that is filled before this nest runs."""
        if isinstance(node.op, p.Input):
            return True
        return node in self.program.memory and self.program.fusion.home.get(node) != self.index

    def in_registers(self, use: Use) -> bool:
        """Whether the use is a reduction that this nest itself computes."""
        node, _ = use
        return isinstance(node.op, p.Reduce) and self.program.fusion.home[node] == self.index

    # *** statements ***

    def reduction(self, node: Node, axes: AxisMap) -> None:
        """Fold the operand in the loop of its own stage; the result is a row value of the next."""
        op = node.op
        assert isinstance(op, p.Reduce)
        operand = operand_of(node)
        stage = self.levels(operand)[1]
        self.folds = max(self.folds, stage + 1)
        self.levels((node, axes))
        arg = self.value(operand, stage)
        out = self.new(node.dtype)
        self.values[(node, axes), -1] = out
        self.cost += node_cost(node)
        self.emit(2, stage, k.Accumulate(out, op.row, arg))

    def store(self, node: Node, axes: AxisMap) -> None:
        """Write an anchor to its buffer, in the loop or once per row."""
        use = (node, axes)
        level, stage = self.levels(use)
        wide = bool(covered(axes) & set(self.group.reduced)) or not self.group.reduced
        if wide and self.broadcasts:
            stage = max(stage, self.folds)  # beside no fold, which may run over other columns
        arg = self.value(use, stage if wide else -1)
        operand = self.operand(self.write(node, axes, per_row=not wide))
        # A row value stored at full size still needs a loop to store it in.
        self.emit(2 if wide else 1, stage if wide or level else 0, k.Store(operand, arg))

    def write(self, node: Node, axes: AxisMap, *, per_row: bool) -> k.Operand:
        """The anchor's buffer, which it fills."""
        buffer, target = self.program.destination(node, axes)
        return k.Operand(buffer, target, in_kernel(node.dtype), True, per_row)

    def value(self, root: Use, stage: int) -> int:
        """The value of a use as seen from loop `stage` (or -1: from a row section).

        What it needs and is not there yet is computed first.
        """
        stack = [root]
        while stack:
            use = stack[-1]
            if self.known(use, stage) is not None:
                stack.pop()
                continue
            below = [] if self.kept(use, stage) else self.below(use)
            missing = [b for b in below if self.known(b, stage) is None]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            self.define(use, stage, below)
        found = self.known(root, stage)
        assert found is not None
        return found

    def known(self, use: Use, stage: int) -> int | None:
        """Row and call values are seen everywhere; element values only in their own loop."""
        level, _ = self.levels(use)
        return self.values.get((use, stage if level == 2 else -1))

    def kept(self, use: Use, stage: int) -> bool:
        """Whether a dear element value of an earlier loop is read back from scratch."""
        level, own = self.level[use]
        return level == 2 and own < stage and not self.is_leaf(use) and node_cost(use[0]) >= DEAR

    def define(self, use: Use, stage: int, below: list[Use]) -> None:
        node, axes = use
        level, own = self.level[use]
        if self.kept(use, stage):
            self.values[use, stage] = self.from_scratch(use, stage)
            return
        where = (level, stage if level == 2 else own)
        key = (use, stage if level == 2 else -1)
        op = node.op
        if isinstance(op, (*p.VIEWS, p.Reinterpret, Stored)) and not self.is_leaf(use):
            found = self.known(below[0], stage)
            assert found is not None
            self.values[key] = found
            return
        out = self.new(node.dtype)
        self.values[key] = out
        args = tuple(v for b in below if (v := self.known(b, stage)) is not None)
        statement: k.Statement
        match op:
            case _ if self.in_memory(node):
                statement = k.Load(out, self.operand(self.read(node, axes)))
            case p.Constant():
                statement = k.Const(out, op.value)
            case p.FromHost():
                statement = k.Param(out, self.parameter(node))
            case p.Cast():
                statement = k.Convert(out, args[0])
                self.cost += 0.5
            case p.Elementwise():
                statement = k.Apply(out, op.row, args)
                self.cost += node_cost(node)
                self.faults |= ELEMENTWISE[op.row].faults if node.dtype.kind in "iu" else 0
            case _:
                raise AssertionError(f"lowering: no statement for {node!r}")
        self.emit(*where, statement)

    def read(self, node: Node, axes: AxisMap) -> k.Operand:
        per_row = bool(self.group.reduced) and not covered(axes) & set(self.group.reduced)
        return k.Operand(self.program.memory[node], axes, in_kernel(node.dtype), False, per_row)

    def from_scratch(self, use: Use, stage: int) -> int:
        """Store a dear value in its own loop, load it in this one.

        Scratch spans the columns of one row.
        """
        node, _ = use
        _, own = self.level[use]
        if use not in self.scratch:
            columns = self.group.reduced
            extents = tuple(self.group.space[i] for i in columns)
            if self.broadcasts:  # a fold may run over one column where stores have none
                extents = tuple(make(p.HostOp("max"), dim, host_const(1)) for dim in extents)
            index = self.program.buffer("temp", node.dtype, extents)
            writer = k.Operand(index, plain(*columns), in_kernel(node.dtype), True)
            self.scratch[use] = k.Operand(index, plain(*columns), in_kernel(node.dtype), False)
            self.emit(2, own, k.Store(self.operand(writer), self.value(use, own)))
        out = self.new(node.dtype)
        self.emit(2, stage, k.Load(out, self.operand(self.scratch[use])))
        return out

    def operand(self, operand: k.Operand) -> int:
        return self.operands.setdefault(operand, len(self.operands))

    def new(self, dtype: k.DT) -> int:
        self.dtypes.append(in_kernel(dtype))
        return len(self.dtypes) - 1

    def emit(self, level: int, stage: int, statement: k.Statement) -> None:
        self.sections.setdefault((level, 0 if level == 0 else stage), []).append(statement)


def _within(along: Along, part: Node, whole: Node, start: Node, step: int) -> Along:
    """The map of an axis of which `part` elements are written."""
    if part is whole and step == 1:
        return along
    at = None if const_value(start) == 0 else start
    return Along(along.axis, host_const(step) if along.axis >= 0 else None, at)


def in_kernel(dtype: k.DT) -> k.DT:
    """The dtype of a value as a kernel sees it: times are int64, of whatever unit."""
    return np.dtype(np.int64) if dtype.kind in "mM" else np.dtype(dtype)
