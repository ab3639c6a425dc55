"""Backward graphs of ops: an op, descriptions and masks in, the op of its gradients out.

It takes (inputs, results, gradients of results), of which the masks say what it uses, and is valid
for every size. Equal ops share it in all threads.

Source: SEMANTICS 7; seed rows C10, C29, C34 and K21, K24, K30.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.calls import Call
from opkiln.ops.definitions import (
    BackwardOpKey,
    CompiledOp,
    FastpathCopy,
    GenericPyGrad,
    GenericPyOp,
    Identity,
    JITFusionOp,
    SubgraphOp,
)
from opkiln.ops.defs import OpDef
from opkiln.ops.dtypes import kind_of
from opkiln.ops.rules import RULES
from opkiln.ops.subgraph import Constant, Expr, Literal, Subgraph
from opkiln.runtime.describe import TensorDesc
from opkiln.runtime.encoded import EMPTY, EncodedGraph
from opkiln.runtime.errors import ArgumentError, GradientError, ShapeError
from opkiln.runtime.grad import Backward, backward_of
from opkiln.runtime.graph import Node, make, topological
from opkiln.runtime.inference import as_desc, described, infer, require_descs
from opkiln.runtime.lift import (
    apply_graph,
    as_array,
    one,
    value_inputs,
    walk,
)
from opkiln.runtime.memo import Memo
from opkiln.runtime.opgraph import (
    Sizes,
    Spec,
    bound,
    graph_of,
    is_number,
    open_sizes,
)
from opkiln.runtime.segments import plan_of
from opkiln.runtime.subgraph import remove_unused, replace_vars
from opkiln.runtime.trace import Tracer
from opkiln.runtime.trace.promote import BROADCAST
from opkiln.runtime.trace.session import ArrayValue, Session, failure

Mask = tuple[bool, ...]
_BACKWARD: Memo[EncodedGraph] = Memo(1024)


@RULES.register("backward_graph", OpDef)
def backward(op: OpDef, descs: Sequence[TensorDesc], need: Mask, has: Mask) -> EncodedGraph:
    """The gradients of an op, by the rule "gradient" of its type.

    Raises:
        ArgumentError: masks that do not fit.
        GradientError: a part of the op has no gradient rule.
    """
    if len(need) != len(descs):
        raise failure(
            ArgumentError, f"{op.name}: expected a mask of {len(descs)} inputs, got {len(need)}"
        )
    require_descs(f"{op.name}.backward_graph", descs)
    if not any(need) or not any(has):
        return EMPTY
    key = BackwardOpKey(op, need, has, tuple(d.dtype for d in descs), tuple(d.rank for d in descs))
    sized = value_inputs(op, len(descs))
    lengths = tuple(descs[i].shape for i in sorted(sized))
    rule = RULES.find("gradient", op)
    return _BACKWARD.get((key, lengths), lambda: rule(op, tuple(descs), need, has))


@RULES.register("gradient", Identity)
@RULES.register("gradient", FastpathCopy)
def _passed(op: OpDef, descs: Sequence[TensorDesc], need: Mask, has: Mask) -> EncodedGraph:
    desc = one(op, tuple(descs))
    require_results(op, has, 1)
    del need
    if kind_of(desc.dtype) != "f":
        return EMPTY
    return EncodedGraph(op, (False, False, True), (True,))


def require_results(op: OpDef, has: Mask, count: int) -> None:
    """Refuse a mask of another number of results.

    Raises:
        ArgumentError: names the op.
    """
    if len(has) != count:
        raise failure(
            ArgumentError, f"{op.name}: expected a mask of {count} results, got {len(has)}"
        )


@RULES.register("gradient", CompiledOp)
def _compiled(op: CompiledOp, descs: Sequence[TensorDesc], need: Mask, has: Mask) -> EncodedGraph:
    inner: EncodedGraph = backward(op.op, descs, need, has)
    if not inner:
        return inner
    bare = inner.op.op if isinstance(inner.op, CompiledOp) else inner.op
    made = CompiledOp(bare, op.opt_level, op.options)
    return EncodedGraph(made, inner.input_mask, inner.output_mask)


@RULES.register("gradient", JITFusionOp)
def _fused(op: JITFusionOp, descs: Sequence[TensorDesc], need: Mask, has: Mask) -> EncodedGraph:
    """Relaxed, as gradients are summed and broadcast; unfused where it cannot be one kernel."""
    inner = backward(op.op, descs, need, has)
    if not inner:
        return inner
    made = CompiledOp(JITFusionOp(inner.op, strict=False))
    return EncodedGraph(made, inner.input_mask, inner.output_mask)


@RULES.register("gradient", OpDef)
def _traced(op: OpDef, descs: Sequence[TensorDesc], need: Mask, has: Mask) -> EncodedGraph:
    """By the reverse walk over the op's graph."""
    inputs = _Inputs(op, descs)
    found = backward_of(
        inputs.apply,
        inputs.signature,
        [*(need[i] for i, _ in inputs.places), *(False for _ in inputs.captures)],
        has,
    )
    if not found:
        return EMPTY
    return encoded(f"{op.name}Grad", _Writer(inputs, found, len(descs), len(has)).graph())


@RULES.register("gradient", SubgraphOp)
def _of_graph(op: SubgraphOp, descs: Sequence[TensorDesc], need: Mask, has: Mask) -> EncodedGraph:
    require_results(op, has, len(op.graph.outputs))
    has = tuple(h and op.has_grad(i) for i, h in enumerate(has))
    if not any(has):
        return EMPTY
    cut = plan_of(op, 0, ()) is not None
    return composed(op, descs, need, has) if cut else _traced(op, descs, need, has)


@RULES.register("gradient", GenericPyOp)
def _by_hook(op: GenericPyOp, descs: Sequence[TensorDesc], need: Mask, has: Mask) -> EncodedGraph:
    if not op.opaque:
        return _traced(op, descs, need, has)
    if not getattr(op.obj, "differentiable", True):
        return EMPTY
    if not hasattr(op.obj, "grad"):
        raise failure(
            GradientError,
            f"the gradient of {op.name}: {type(op.obj).__name__} has no method grad",
            fix="define grad(inputs, results, gradients), or differentiable = False",
        )
    floats = tuple(n and kind_of(d.dtype) == "f" for n, d in zip(need, descs, strict=True))
    made = GenericPyGrad(op, floats, has)
    return EncodedGraph(made, (*(True,) * (len(need) + len(has)), *has), floats)


def encoded(name: str, graph: Subgraph) -> EncodedGraph:
    """A graph as an op of what it uses; of a single expr that op itself.

    The user's code that only the forward needs ran there, and does not run again.
    """
    small, ins, outs = remove_unused(graph, own_code=False).encoded()
    if not any(outs):
        return EMPTY
    op = small.exprs[0].op if small.is_single else SubgraphOp(small, name)
    return EncodedGraph(op, ins, outs)


# ---- traced ----


class _Inputs:
    """The inputs of an op for the reverse walk: arrays, lengths that are sizes, constants."""

    def __init__(self, op: OpDef, descs: Sequence[TensorDesc]) -> None:
        self.op = op
        sized = value_inputs(op, len(descs))
        self.specs: list[Spec | Sizes] = []
        self.places: list[tuple[int, int | None]] = []  # per array its input, and which size of it
        for i, desc in enumerate(descs):
            if desc.shape is None or (i in sized and None in desc.shape):
                raise failure(
                    ShapeError,
                    f"the gradient of {op.name}: expected inputs of known rank, got {desc!r}",
                )
            if i not in sized:
                self.specs.append(Spec(desc.dtype, (2,) * len(desc.shape)))
                self.places.append((i, None))
            else:
                sizes = open_sizes(desc.shape[0] if desc.shape else None)
                self.specs.append(sizes)
                self.places += [(i, at) for at in range(len(sizes.actual))]
        self.captures = graph_of(op, self.specs).captures
        leaves = [leaf for s in self.specs for leaf in ((s,) if isinstance(s, Spec) else s.specs)]
        self.signature = [
            *((leaf.dtype, leaf.ndim) for leaf in leaves),
            *((c.dtype, c.ndim) for c in self.captures),
        ]

    def apply(self, session: Session, given: Sequence[Any]) -> list[Any]:
        """The op on traced arrays, then constants."""
        for array, value in zip(self.captures, given[len(self.places) :], strict=True):
            session.hold(array, value.node)
        arrays = iter(given)
        args: list[Any] = []
        for spec in self.specs:
            if isinstance(spec, Spec):
                args.append(next(arrays))
                continue
            sizes = tuple(next(arrays).shape[0] for _ in spec.actual)
            args.append(sizes if spec.pattern.vector else sizes[0])
        return [_result(session, v) for v in apply_graph(self.op, tuple(args))]


def _result(session: Session, value: Any) -> Any:
    """A result as a traced array; of one that depends on no input dtype and shape alone count."""
    array = as_array(value)
    if isinstance(array, ArrayValue):
        return array
    array = np.asarray(array)
    zero = session.make(p.Constant(array.dtype.type(0)))
    extents = [make(p.HostConst(n)) for n in array.shape]
    return Tracer(session, session.make(BROADCAST, zero, *extents) if extents else zero)


class _Writer:
    """The nodes of a backward graph as exprs of a subgraph."""

    def __init__(self, inputs: _Inputs, found: Backward, count: int, results: int) -> None:
        self.inputs, self.found = inputs, found
        self.variables = tuple(range(1, count + 2 * results + 1))  # inputs, results, gradients
        self.next = len(self.variables)
        self.constants: list[tuple[int, Constant]] = []
        self.exprs: list[Expr] = []
        captured = [self._constant(Literal.of(c)) for c in inputs.captures]
        arrays = [self.variables[i] for i, _ in inputs.places]
        candidates = [*arrays, *captured, *self.variables[count:]]
        taken = [at for at, used in enumerate(found.inputs) if used]
        self.env: dict[Node, int] = {}
        self.sizes: dict[Node, int] = {}  # inputs whose length is a size: which one
        for node, at in zip(found.graph.inputs, taken, strict=True):
            self.env[node] = candidates[at]
            place = inputs.places[at][1] if at < len(inputs.places) else None
            if place is not None:
                self.sizes[node] = place

    def _new(self) -> int:
        self.next += 1
        return self.next

    def _constant(self, value: Constant) -> int:
        made = self._new()
        self.constants.append((made, value))
        return made

    def graph(self) -> Subgraph:
        """The subgraph from all candidates to a gradient per input, 0 where there is none."""
        for node in topological(self.found.graph.outputs):
            if node not in self.env:
                self.env[node] = self._write(node)
        outputs = dict.fromkeys(range(len(self.inputs.specs)), 0)
        gradients = iter(self.found.graph.outputs)
        for (i, _), given in zip(self.inputs.places, self.found.outputs, strict=False):
            if given:
                outputs[i] = self.env[next(gradients)]
        return Subgraph(
            self.variables, tuple(self.constants), tuple(self.exprs), tuple(outputs.values())
        )

    def _write(self, node: Node) -> int:
        match node.op:
            case p.HostConst(value=value):
                return self._constant(value)
            case p.Constant(value=value):
                return self._constant(Literal.of(value))
            case p.Dim() if node.src[0] in self.sizes:
                place = self.sizes[node.src[0]]
                element = Call("element", (("index", place),))
                return self._expr(element, (self.env[node.src[0]],))
            case _:
                return self._expr(node.op, tuple(self.env[s] for s in node.src))

    def _expr(self, op: OpDef, taken: tuple[int, ...]) -> int:
        made = self._new()
        self.exprs.append(Expr(op, taken, (made,)))
        return made


# ---- composed, expr by expr ----


def composed(op: SubgraphOp, descs: Sequence[TensorDesc], need: Mask, has: Mask) -> EncodedGraph:
    """The gradients of a subgraph from those of its exprs, for graphs that no program can hold."""
    graph = op.graph
    if op.gradient is not None:
        return encoded(f"{op.name}Grad", _filled(op, need, has))
    known = _described(op, descs)
    count, results = len(graph.inputs), len(graph.outputs)
    fresh = max([0, *known]) + 1
    given = tuple(range(fresh, fresh + results))
    dys = tuple(range(fresh + results, fresh + 2 * results))
    c = _Composer(graph, fresh + 2 * results)
    for v, dy, sent in zip(graph.outputs, dys, has, strict=True):
        if sent and v:
            c.send(v, dy)
    active = {v for v, wanted in zip(graph.inputs, need, strict=True) if wanted}
    for expr in graph.exprs:
        if active.intersection(expr.inputs):
            active.update(expr.outputs)
    for expr in reversed(graph.exprs):
        inner_op, given_descs = bound(expr.op, [known[v] for v in expr.inputs])
        taken = tuple(v for v in expr.inputs if inner_op is expr.op or not is_number(known[v]))
        given_descs = tuple(as_desc(d) for d in given_descs)
        wanted = tuple(
            v in active and kind_of(d.dtype) == "f" for v, d in zip(taken, given_descs, strict=True)
        )
        reached = tuple(v in c.sent for v in expr.outputs)
        if any(wanted) and any(reached):
            inner = inner_op.backward_graph(given_descs, wanted, reached)
            c.apply(inner, Expr(inner_op, taken, expr.outputs))
    outputs = tuple(
        c.total(v) if wanted and v in c.sent else 0
        for v, wanted in zip(graph.inputs, need, strict=True)
    )
    whole = Subgraph(
        (*graph.inputs, *given, *dys), graph.constants, (*graph.exprs, *c.exprs), outputs
    )
    # What a result holds is not computed again; of equal results the first one will do.
    at_hand: dict[int, int] = {}
    for v, y in zip(graph.outputs, given, strict=True):
        if v and v not in graph.inputs:
            at_hand.setdefault(v, y)
    del count
    return encoded(f"{op.name}Grad", replace_vars(whole, at_hand))


def _described(op: SubgraphOp, descs: Sequence[TensorDesc]) -> dict[int, Any]:
    """A description of each variable; numbers stand for themselves."""
    known: dict[int, Any] = {}
    numbers = iter([e.outputs for e in op.graph.exprs])
    taken = iter([e.inputs for e in op.graph.exprs])

    def step(inner: OpDef, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        given = [described(v) for v in inputs]
        known.update(zip(next(taken), given, strict=True))
        found, _ = infer(inner, given)
        known.update(zip(next(numbers), found, strict=False))  # walk() checks how many
        return found

    known.update(zip(op.graph.inputs, descs, strict=True))
    walk(op, tuple(descs), step)
    return known


class _Composer:
    """Exprs of gradients, and what each variable has been sent."""

    def __init__(self, graph: Subgraph, first: int) -> None:
        self.graph, self.next = graph, first
        self.exprs: list[Expr] = []
        self.sent: dict[int, list[int]] = {}

    def send(self, v: int, gradient: int) -> None:
        """A gradient of a variable, to be added to the others."""
        self.sent.setdefault(v, []).append(gradient)

    def total(self, v: int) -> int:
        """The sum of what a variable was sent."""
        first, *others = self.sent[v]
        for other in others:
            first = self._expr(p.Elementwise("add"), (first, other), 1)[0]
        self.sent[v] = [first]
        return first

    def apply(self, inner: EncodedGraph, expr: Expr) -> None:
        """Send the gradients of an expr to its inputs."""
        if not inner:
            return
        dys = [self.total(v) if v in self.sent else 0 for v in expr.outputs]
        taken = inner.encode([*expr.inputs, *expr.outputs, *dys])
        made = self._expr(inner.op, taken, sum(inner.output_mask))
        for v, gradient in zip(expr.inputs, inner.decode(made), strict=True):
            if gradient is not None:
                self.send(v, gradient)

    def _expr(self, op: OpDef, taken: tuple[int, ...], count: int) -> tuple[int, ...]:
        made = tuple(range(self.next, self.next + count))
        self.next += count
        self.exprs.append(Expr(op, taken, made))
        return made


def _filled(op: SubgraphOp, need: Mask, has: Mask) -> Subgraph:
    """The op's own gradient, with zeros like the result for each gradient that is not given."""
    own = op.gradient
    assert own is not None
    count = len(need)
    results, dys = own.inputs[count : count + len(has)], own.inputs[count + len(has) :]
    first = max(own.inputs + tuple(v for e in own.exprs for v in e.outputs)) + 1
    first = max([first, *(v + 1 for v, _ in own.constants)])
    zeros = Call("zeros_like")
    filled = {dy: first + i for i, (dy, sent) in enumerate(zip(dys, has, strict=True)) if not sent}
    made = tuple(
        Expr(zeros, (y,), (filled[dy],)) for y, dy in zip(results, dys, strict=True) if dy in filled
    )
    renamed = replace_vars(
        Subgraph(own.inputs, own.constants, (*made, *own.exprs), own.outputs), filled
    )
    outputs = tuple(v if n else 0 for v, n in zip(renamed.outputs, need, strict=True))
    return Subgraph(renamed.inputs, renamed.constants, renamed.exprs, outputs)
