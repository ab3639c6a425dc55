"""Segments: a subgraph that no single program can hold in, compiled pieces and what is between out.

The user's own code runs between the pieces, in the order of the exprs. A piece also ends where the
values of one of its results decide a shape, which takes one look at them (a sync).
"""

from __future__ import annotations

from typing import Any

from opkiln.ops.definitions import CompiledOp, JITFusionOp, SubgraphOp
from opkiln.ops.defs import Key, OpDef
from opkiln.ops.record import record
from opkiln.ops.subgraph import Constant, Expr, Literal, Subgraph
from opkiln.runtime.lift import on_sizes, require_count, shape_only, value_inputs
from opkiln.runtime.memo import Memo

Values = tuple[Any, ...]
_PLANS: Memo[Plan | None] = Memo(1024)


@record
class Step:
    """An op of the user's, or a compiled piece; the variables whose last use this is."""

    op: OpDef
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    last: tuple[int, ...]


@record
class Plan:
    """The steps of a subgraph, in order."""

    name: str
    graph: Subgraph
    steps: tuple[Step, ...]
    syncs: int  # how many pieces end only because a later one needs the values

    def run(self, inputs: Values) -> Values:
        """Each step on arrays; a value is dropped after its last use."""
        env: dict[int, Any] = {0: None, **dict(zip(self.graph.inputs, inputs, strict=True))}
        for v, constant in self.graph.constants:
            env[v] = constant.array if isinstance(constant, Literal) else constant
        for step in self.steps:
            results = step.op.apply(*(env[v] for v in step.inputs))
            require_count(self.name, step.op, results, len(step.outputs))
            env.update(zip(step.outputs, results, strict=True))
            for v in step.last:
                del env[v]
        return tuple(env[v] for v in self.graph.outputs)


def plan_of(op: OpDef, opt_level: int, options: tuple[tuple[str, Key], ...]) -> Plan | None:
    """The plan of an op that must be cut; None if one program can hold it."""
    return _PLANS.get((op, opt_level, options), lambda: _plan(op, opt_level, options))


def _plan(op: OpDef, opt_level: int, options: tuple[tuple[str, Key], ...]) -> Plan | None:
    if not isinstance(op, SubgraphOp):
        return None
    graph = _Flat().graph(op)
    levels = _Levels(graph)
    if not levels.top and not op.opaque:
        return None
    return Plan(op.name, graph, _steps(graph, levels, opt_level, options), levels.syncs)


class _Flat:
    """Subgraphs inside subgraphs, in place."""

    def __init__(self) -> None:
        self.next = 0
        self.constants: list[tuple[int, Constant]] = []
        self.exprs: list[Expr] = []

    def graph(self, op: SubgraphOp) -> Subgraph:
        """The flat graph of an op."""
        inputs = tuple(self._new() for _ in op.graph.inputs)
        outputs = self._inline(op.graph, inputs)
        return Subgraph(inputs, tuple(self.constants), tuple(self.exprs), outputs)

    def _new(self) -> int:
        self.next += 1
        return self.next

    def _inline(self, graph: Subgraph, inputs: tuple[int, ...]) -> tuple[int, ...]:
        env = {0: 0, **dict(zip(graph.inputs, inputs, strict=True))}
        for v, constant in graph.constants:
            env[v] = self._new()
            self.constants.append((env[v], constant))
        for expr in graph.exprs:
            taken = tuple(env[v] for v in expr.inputs)
            op = expr.op
            while isinstance(op, CompiledOp) or (isinstance(op, JITFusionOp) and op.opaque):
                op = op.op
            if isinstance(op, SubgraphOp):
                made = self._inline(op.graph, taken)
            else:
                made = tuple(self._new() for _ in expr.outputs)
                self.exprs.append(Expr(op, taken, made))
            env.update(zip(expr.outputs, made, strict=True))
        return tuple(env[v] for v in graph.outputs)


class _Levels:
    """After how many cuts each expr can run."""

    def __init__(self, graph: Subgraph) -> None:
        self.of: list[int] = []
        self.ready: dict[int, int] = dict.fromkeys(graph.inputs, 0)
        self.ready.update({v: 0 for v, _ in graph.constants})
        # Per piece the sizes that it has without a look at an array that it computes.
        self.host = set(self.ready)
        self._looks: set[int] = set()  # levels whose values a later one needs
        called = 0
        for expr in graph.exprs:
            level = max((self.ready[v] for v in expr.inputs), default=0)
            if expr.op.opaque:
                called = level = max(level, called)
            elif self._must_look(expr, level):
                level += 1
            self.of.append(level)
            self.ready.update(dict.fromkeys(expr.outputs, level + expr.op.opaque))
            if (
                expr.op.opaque
                or shape_only(expr.op)
                or (on_sizes(expr.op) and all(self._is_host(v, level) for v in expr.inputs))
            ):
                self.host.update(expr.outputs)
        self.syncs = len(self._looks)
        self.top = max([0, *self.ready.values()])

    def _is_host(self, v: int, level: int) -> bool:
        """Whether a piece of this level has the variable as sizes: all that was made before."""
        return self.ready[v] < level or v in self.host

    def _must_look(self, expr: Expr, level: int) -> bool:
        needed = [expr.inputs[i] for i in value_inputs(expr.op, len(expr.inputs))]
        if all(self._is_host(v, level) for v in needed):
            return False
        self._looks.add(level)
        return True


def _steps(
    graph: Subgraph, levels: _Levels, opt_level: int, options: tuple[tuple[str, Key], ...]
) -> tuple[Step, ...]:
    order: list[tuple[OpDef | None, list[Expr]]] = []
    for level in range(levels.top + 1):
        here = [e for e, at in zip(graph.exprs, levels.of, strict=True) if at == level]
        order.append((None, [e for e in here if not e.op.opaque]))
        order += [(e.op, [e]) for e in here if e.op.opaque]
    constants = dict(graph.constants)
    wanted = set(graph.outputs)  # by what comes later, walking back
    alive = set(graph.outputs)
    steps: list[Step] = []
    for op, exprs in reversed(order):
        if op is None:
            piece = _piece(exprs, wanted, constants)
            if not piece.outputs:
                continue
            made: OpDef = CompiledOp(SubgraphOp(piece, "segment"), opt_level, options)
            taken, given = piece.inputs, piece.outputs
        else:
            made, taken, given = op, exprs[0].inputs, exprs[0].outputs
        last = tuple(v for v in dict.fromkeys((*taken, *given)) if v not in alive)
        steps.append(Step(made, taken, given, last))
        alive.update(taken)
        wanted.update(taken)
    return tuple(reversed(steps))


def _piece(exprs: list[Expr], wanted: set[int], constants: dict[int, Constant]) -> Subgraph:
    """These exprs as a subgraph from what comes before to what later steps want."""
    made = {v for e in exprs for v in e.outputs}
    kept: list[Expr] = []
    needed = made & wanted
    for expr in reversed(exprs):
        if needed.intersection(expr.outputs):
            needed.update(expr.inputs)
            kept.append(expr)
    kept.reverse()
    used = dict.fromkeys(v for e in kept for v in e.inputs)
    own = {v for e in kept for v in e.outputs}
    return Subgraph(
        tuple(v for v in used if v not in own and v not in constants),
        tuple((v, constants[v]) for v in used if v in constants),
        tuple(kept),
        tuple(v for e in kept for v in e.outputs if v in wanted),
    )
