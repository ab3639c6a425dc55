"""Ops on traced values, by the trait "apply_graph"; and an op with a signature in, its graph out.

A vector of sizes, such as the shape that a reshape goes to, is a plain tuple of Python ints and
symbolic ones while it is traced.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.calls import Call
from opkiln.ops.definitions import (
    CompiledOp,
    FastpathCopy,
    GenericPyOp,
    Identity,
    JITFusionOp,
    ShapeInfer,
    SubgraphOp,
)
from opkiln.ops.defs import OpDef
from opkiln.ops.record import record
from opkiln.ops.rules import RULES
from opkiln.ops.subgraph import Literal
from opkiln.runtime.errors import (
    ArgumentError,
    NotImplementedTrait,
    ShapeError,
    TraceError,
    UnsupportedDType,
)
from opkiln.runtime.graph import Node, host_const, make
from opkiln.runtime.memo import Memo
from opkiln.runtime.trace import Traced, Tracer, apply_row, trace
from opkiln.runtime.trace.promote import BROADCAST, cast, elementwise_operand, session_of
from opkiln.runtime.trace.session import ArrayValue, HostValue, Session, failure, is_a
from opkiln.runtime.trace.tracer import wrap

Values = tuple[Any, ...]


def apply_graph(op: OpDef, args: Values) -> Values:
    """The op on traced values.

    Raises:
        NotImplementedTrait: it cannot be part of a graph.
    """
    given: Values = RULES.find("apply_graph", op)(op, args)
    return given


# ---- which inputs must be known on the host ----


def value_inputs(op: OpDef, count: int) -> frozenset[int]:
    """Of `count` inputs those whose values decide shapes: they are passed as sizes."""
    found: frozenset[int] = RULES.find("value_inputs", op)(op, count)
    return found


@RULES.register("value_inputs", OpDef)
def _no_values(op: OpDef, count: int) -> frozenset[int]:
    del op, count
    return frozenset()


@RULES.register("value_inputs", ShapeInfer)
@RULES.register("value_inputs", p.HostOp)
@RULES.register("value_inputs", p.FromHost)
def _all_values(op: OpDef, count: int) -> frozenset[int]:
    del op
    return frozenset(range(count))


@RULES.register("value_inputs", p.BroadcastTo)
@RULES.register("value_inputs", p.Reshape)
@RULES.register("value_inputs", p.Slice)
def _all_but_first(op: OpDef, count: int) -> frozenset[int]:
    del op
    return frozenset(range(1, count))


@RULES.register("value_inputs", p.UpdateSlices)
def _places(op: p.UpdateSlices, count: int) -> frozenset[int]:
    return frozenset(range(count)) - {at for at, _, _ in op.parts(tuple(range(count)))}


@RULES.register("value_inputs", Call)
def _named_values(op: Call, count: int) -> frozenset[int]:
    del count
    return frozenset(op.named.values)


@RULES.register("value_inputs", CompiledOp)
@RULES.register("value_inputs", JITFusionOp)
def _values_inside(op: CompiledOp | JITFusionOp, count: int) -> frozenset[int]:
    return value_inputs(op.op, count)


def _shape_only(op: OpDef) -> bool:
    """Whether an op reads no element of its input."""
    return isinstance(op, p.Dim) or (isinstance(op, Call) and op.function == "get_shape")


@RULES.register("value_inputs", SubgraphOp)
def _values_of_graph(op: SubgraphOp, count: int) -> frozenset[int]:
    del count
    needed: set[int] = set()
    for expr in reversed(op.graph.exprs):
        if needed.intersection(expr.outputs) and not _shape_only(expr.op):
            needed.update(expr.inputs)
        needed.update(expr.inputs[i] for i in value_inputs(expr.op, len(expr.inputs)))
    return frozenset(i for i, v in enumerate(op.graph.inputs) if v in needed)


# ---- apply_graph ----


@RULES.register("apply_graph", OpDef)
def _as_node(op: OpDef, args: Values) -> Values:
    """A node of the op, for primitives; numbers among the sources are sizes."""
    if RULES.get("infer", op) is None or isinstance(op, (p.Input, p.HostArg)):
        raise failure(
            NotImplementedTrait,
            f"{op.name} has no rule 'apply_graph', so it cannot be part of a graph",
        )
    traced = [a for a in args if isinstance(a, (ArrayValue, HostValue))]
    if not traced:  # of numbers alone
        return (RULES.find("apply", op)(op, args)[0],)
    session = session_of(traced)
    src = [host_const(a) if type(a) in (int, float) else _node(session, a) for a in args]
    if isinstance(op, p.Reduce):
        src = [cast(session, src[0], op.dtype), *src[1:]]
    return (wrap(session, session.make(op, *src)),)


def _node(session: Session, value: Any) -> Node:
    return (
        value.node
        if isinstance(value, HostValue)
        else elementwise_operand(session, as_array(value))
    )


@RULES.register("apply_graph", p.Constant)
@RULES.register("apply_graph", p.HostConst)
def _constant(op: p.Constant | p.HostConst, args: Values) -> Values:
    del args
    return (op.value,)


@RULES.register("apply_graph", p.Dim)
def _dim(op: p.Dim, args: Values) -> Values:
    (x,) = args
    return (x.shape[op.axis],)


@RULES.register("apply_graph", p.Cast)
def _cast(op: p.Cast, args: Values) -> Values:
    return (as_array(args[0]).astype(op.dtype),)


@RULES.register("apply_graph", p.Elementwise)
def _elementwise(op: p.Elementwise, args: Values) -> Values:
    if any(_is_vector(a) for a in args):
        on_sizes = _ON_SIZES.get(op.row)
        if on_sizes is not None and all(_is_vector(a) or _is_size(a) for a in args):
            return (_mapped(on_sizes, args),)
        args = tuple(map(as_array, args))
    return (apply_row(op.row, *args),)


def _is_vector(value: Any) -> bool:
    return type(value) is tuple


def _is_size(value: Any) -> bool:
    return type(value) is int or isinstance(value, HostValue)


def _larger(fn: str) -> Callable[[Any, Any], Any]:
    def choose(a: Any, b: Any) -> Any:
        if type(a) is int and type(b) is int:
            return max(a, b) if fn == "max" else min(a, b)
        session = session_of((a, b))
        src = [v.node if isinstance(v, HostValue) else host_const(v) for v in (a, b)]
        return wrap(session, session.make(p.HostOp(fn), *src))

    return choose


def _floor_divide(a: Any, b: Any) -> Any:
    return a // b


# Rows that act on sizes as Python's numbers do.
_ON_SIZES: dict[str, Callable[..., Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul,
    "floor_divide": _floor_divide, "remainder": operator.mod, "negative": operator.neg,
    "maximum": _larger("max"), "minimum": _larger("min"),
}  # fmt: skip


def _mapped(function: Callable[..., Any], args: Values) -> Values:
    """A function of sizes over vectors of sizes, which broadcast."""
    vectors: list[Values] = [a if _is_vector(a) else (a,) for a in args]
    length = max(len(v) for v in vectors) if all(vectors) else 0
    rows = [v * length if len(v) == 1 else v for v in vectors]
    if any(len(row) != length for row in rows):
        raise failure(ShapeError, f"vectors of {[len(row) for row in rows]} sizes do not fit")
    return tuple(function(*each) for each in zip(*rows, strict=True))


@RULES.register("apply_graph", Call)
def _call(op: Call, args: Values) -> Values:
    sized = op.function in ("concatenate",) and all(_is_vector(a) for a in args)
    if not sized:
        args = tuple(_sizes(a) if i in op.named.values else as_array(a) for i, a in enumerate(args))
    return (op.named.function(*args, **dict(op.options)),)


def _sizes(value: Any) -> Any:
    """A constant vector as a tuple of sizes; anything else as it is."""
    return tuple(value.tolist()) if type(value) is np.ndarray else value


@RULES.register("apply_graph", Identity)
@RULES.register("apply_graph", FastpathCopy)
def _same(op: OpDef, args: Values) -> Values:
    return (one(op, args),)


def one(op: OpDef, args: Values) -> Any:
    """The only input.

    Raises:
        ArgumentError: there are more or less.
    """
    if len(args) != 1:
        raise failure(ArgumentError, f"{op.name}: expected 1 input, got {len(args)}")
    return args[0]


@RULES.register("apply_graph", SubgraphOp)
def _inlined(op: SubgraphOp, args: Values) -> Values:
    return walk(op, args, apply_graph)


def walk(op: SubgraphOp, args: Values, apply: Callable[[OpDef, Values], Values]) -> Values:
    """The exprs one after the other.

    Raises:
        ArgumentError: wrong number of inputs, or an op gives another number of results.
    """
    graph = op.graph
    if len(args) != len(graph.inputs):
        raise failure(
            ArgumentError, f"{op.name}: expected {len(graph.inputs)} inputs, got {len(args)}"
        )
    env: dict[int, Any] = dict(zip(graph.inputs, args, strict=True))
    for v, constant in graph.constants:
        env[v] = constant.array if isinstance(constant, Literal) else constant
    for expr in graph.exprs:
        results = apply(expr.op, tuple(env[v] for v in expr.inputs))
        if len(results) != len(expr.outputs):
            raise failure(
                ArgumentError,
                f"{op.name}: {expr.op.name} gives {len(results)} results, expected "
                f"{len(expr.outputs)}",
            )
        env.update(zip(expr.outputs, results, strict=True))
    return tuple(env[v] for v in graph.outputs)


@RULES.register("apply_graph", CompiledOp)
def _inner(op: CompiledOp, args: Values) -> Values:
    return apply_graph(op.op, args)


@RULES.register("apply_graph", JITFusionOp)
def _fused(op: JITFusionOp, args: Values) -> Values:
    if op.strict:
        args = _checked_equal(op, args)
    return apply_graph(op.op, args)


def _checked_equal(op: JITFusionOp, args: Values) -> Values:
    """Inputs of equal dtype and rank, whose sizes a run finds equal."""
    arrays = [a for a in args if isinstance(a, ArrayValue)]
    if len(arrays) < 2:
        return args
    first = arrays[0].node
    require_equal(op, "dtypes", [a.node.dtype.name for a in arrays], UnsupportedDType)
    require_equal(op, "shapes", [f"of {a.node.rank} axes" for a in arrays], ShapeError)
    target = list(first.shape)
    same = p.HostOp("same")
    for array in arrays[1:]:
        target = [
            a if a is b else make(same, a, b) for a, b in zip(target, array.node.shape, strict=True)
        ]
    if tuple(target) == first.shape:
        return args
    session = session_of(arrays)
    held = Tracer(session, session.make(BROADCAST, first, *target))
    return tuple(held if a is arrays[0] else a for a in args)


def require_equal(op: JITFusionOp, what: str, found: Sequence[str], cls: Any) -> None:
    """The check of a strict JITFusionOp, in the same words wherever it is made.

    Raises:
        ShapeError, UnsupportedDType, DeviceMismatch: by `cls`.
    """
    if len(set(found)) > 1:
        raise failure(
            cls,
            f"{op.name}: expected inputs of equal {what}, got {', '.join(found)}",
            fix="use JITFusionOp(op, strict=False), whose inputs broadcast" if what != "devices"
            else "move them to one device",
        )  # fmt: skip


@RULES.register("apply_graph", GenericPyOp)
def _own(op: GenericPyOp, args: Values) -> Values:
    if op.opaque:
        raise failure(
            TraceError,
            f"{op.name} is the user's own code and cannot be part of a graph",
            fix=f"give {type(op.obj).__name__} a method apply_graph(*traced), or apply it outside "
            f"ok.compile; a CompiledOp runs it between compiled segments",
        )
    return _as_tuple(op, op.obj.apply_graph(*args))


def _as_tuple(op: GenericPyOp, results: Any) -> Values:
    if not is_a(results, tuple, list):
        raise failure(
            ArgumentError,
            f"{op.name}: expected a tuple of results, got {type(results).__name__}",
            fix="return (result,)",
        )
    return tuple(results)


@RULES.register("apply_graph", ShapeInfer)
def _shapes(op: ShapeInfer, args: Values) -> Values:
    """The op on constants broadcast to the given sizes: their extents are all that is kept."""
    sizes = [_sizes(a) for a in args]
    traced = [s for vector in sizes for s in vector if isinstance(s, HostValue)]
    if not traced:
        return tuple(RULES.find("apply", op)(op, args))
    session = session_of(traced)
    dummies: list[Any] = []
    for i, vector in enumerate(sizes):
        zero = session.make(p.Constant(op.of(i)[1].type(0)))
        dims = [s.node if isinstance(s, HostValue) else host_const(s) for s in vector]
        dummies.append(Tracer(session, session.make(BROADCAST, zero, *dims)))
    results = apply_graph(op.op, tuple(dummies))
    return tuple(as_array(r.shape).astype(np.int32) for r in results)


# ---- values that are no arrays ----


def as_array(value: Any) -> Any:
    """A vector of sizes, or a size, as an array; anything else as it is."""
    if isinstance(value, HostValue):
        return Tracer(value.session, elementwise_operand(value.session, value))
    if not _is_vector(value):
        return value
    traced = [s for s in value if isinstance(s, HostValue)]
    if not traced:
        return np.array(value, np.int64)
    session = session_of(traced)
    int64 = np.dtype(np.int64)
    src = [host_const(len(value))]
    for at, size in enumerate(value):
        node = size.node if isinstance(size, HostValue) else host_const(size)
        scalar = session.make(p.FromHost(int64, "check"), node)
        src += [session.make(p.ExpandDims((0,)), scalar), host_const(at)]
    steps = ((1,),) * len(value)
    return Tracer(session, session.make(p.UpdateSlices(int64, steps, True), *src))


# ---- an op's graph ----


@record
class Spec:
    """An input for a trace: dtype and sizes of an array that need not exist."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)


# An input of sizes: for each whether it is a literal -1, which a trace must see, or a number.
Sizes = tuple[bool, ...] | bool
_GRAPHS: Memo[Traced] = Memo(1024)


def runner(op: OpDef, holes: Sequence[Sizes | None]) -> Callable[..., Values]:
    """The op as a function of arrays and of tuples of sizes, from which each -1 is left out."""

    def run(*inputs: Any) -> Values:
        args = tuple(
            given if hole is None else _filled(hole, given)
            for hole, given in zip(holes, inputs, strict=True)
        )
        results = tuple(as_array(v) for v in apply_graph(op, args))
        return tuple(v if isinstance(v, ArrayValue) else Literal.of(v).array for v in results)

    run.__name__ = run.__qualname__ = op.name
    return run


def _filled(hole: Sizes, given: Values) -> Any:
    numbers = iter(given)
    if isinstance(hole, bool):
        return -1 if hole else next(numbers)
    return tuple(-1 if is_hole else next(numbers) for is_hole in hole)


def graph_of(op: OpDef, specs: Sequence[Spec | Sizes]) -> Traced:
    """The traced op; shapes of specs matter only where the op asks for a size while tracing."""
    key = (op, tuple((s.dtype, s.ndim) if isinstance(s, Spec) else s for s in specs))
    shapes = [s.shape for s in specs if isinstance(s, Spec)]
    traced = _GRAPHS.get(key, lambda: _trace(op, specs))
    if all(shapes[i][axis] == size for i, axis, size in traced.pins if i < len(shapes)):
        return traced
    return _trace(op, specs)


def _trace(op: OpDef, specs: Sequence[Spec | Sizes]) -> Traced:
    leaves: list[Any] = []
    kinds = ""
    tree: list[Any] = []
    for spec in specs:
        if isinstance(spec, Spec):
            tree.append(len(leaves))
            leaves.append(spec)
            kinds += "a"
            continue
        count = sum(not hole for hole in ((spec,) if isinstance(spec, bool) else spec))
        tree.append(tuple(range(len(leaves), len(leaves) + count)))
        leaves += [0] * count
        kinds += "i" * count
    run = runner(op, [None if isinstance(s, Spec) else s for s in specs])
    return trace(run, ["inputs"], [2], (tuple(tree),), leaves, kinds, name=op.name)
