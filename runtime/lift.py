"""Ops on traced values, by the trait "apply_graph".

A vector of sizes, such as the shape that a reshape goes to, is a plain tuple of Python ints and
symbolic ones while it is traced. To a program its numbers come as lengths of arrays.
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
from opkiln.ops.rules import RULES
from opkiln.ops.subgraph import Literal
from opkiln.ops.table import ELEMENTWISE
from opkiln.runtime.errors import (
    ArgumentError,
    BoundsError,
    NotImplementedTrait,
    OpkilnError,
    ShapeError,
    TraceError,
    UnsupportedDType,
)
from opkiln.runtime.grad import with_rule
from opkiln.runtime.graph import Node, host_const, make
from opkiln.runtime.trace import Tracer, apply_row
from opkiln.runtime.trace.equal import remake
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


@RULES.register("value_inputs", p.CustomCall)
def _numbers_and_extents(op: p.CustomCall, count: int) -> frozenset[int]:
    return frozenset(range(sum(op.given), count))


@RULES.register("value_inputs", Call)
def _named_values(op: Call, count: int) -> frozenset[int]:
    del count
    return frozenset(op.named.values)


@RULES.register("value_inputs", CompiledOp)
@RULES.register("value_inputs", JITFusionOp)
def _values_inside(op: CompiledOp | JITFusionOp, count: int) -> frozenset[int]:
    return value_inputs(op.op, count)


def shape_only(op: OpDef) -> bool:
    """Whether an op reads no element of its input."""
    return isinstance(op, p.Dim) or (isinstance(op, Call) and op.function == "get_shape")


def on_sizes(op: OpDef) -> bool:
    """Whether an op of sizes gives sizes."""
    if isinstance(op, p.Elementwise):
        return op.row in _ON_SIZES
    return isinstance(op, p.HostOp) or (isinstance(op, Call) and op.named.of_sizes)


@RULES.register("value_inputs", SubgraphOp)
def _values_of_graph(op: SubgraphOp, count: int) -> frozenset[int]:
    del count
    needed: set[int] = set()
    for expr in reversed(op.graph.exprs):
        # What arrays are computed into a size is looked at between two programs: see segments.py.
        if needed.intersection(expr.outputs) and on_sizes(expr.op):
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
    made = remake(op, *src) if isinstance(op, p.HostOp) else session.make(op, *src)
    return (wrap(session, made),)


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
    arity = ELEMENTWISE[op.row].arity
    if len(args) != arity:
        raise failure(ArgumentError, f"{op.name}: expected {arity} inputs, got {len(args)}")
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
    named = op.named
    arrays = [a for i, a in enumerate(args) if i not in named.values]
    if not (named.of_sizes and all(map(_is_vector, arrays))):
        args = tuple(a if i in named.values else as_array(a) for i, a in enumerate(args))
    args = tuple(_sizes(a) if i in named.values else a for i, a in enumerate(args))
    try:
        return (op.named.function(*args, **dict(op.options)),)
    except OpkilnError:
        raise
    except (IndexError, TypeError) as error:  # of an option, such as the index of a size
        cls = BoundsError if isinstance(error, IndexError) else ArgumentError
        raise failure(cls, f"{op.name}: {error}") from None


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
    results = walk(op, args, apply_graph)
    if op.gradient is not None:
        results = _own_gradient(op, args, results)
    if not op.grad_mask:
        return results
    return tuple(
        v if op.has_grad(i) else _without_gradient(op, args, v) for i, v in enumerate(results)
    )


def _own_gradient(op: SubgraphOp, args: Values, results: Values) -> Values:
    """The results, whose gradient is the one that the user defined."""
    assert op.gradient is not None
    gradient = SubgraphOp(op.gradient, f"{op.name}Grad")
    taken = [i for i, a in enumerate(args) if isinstance(a, ArrayValue)]
    given = [i for i, v in enumerate(results) if isinstance(v, ArrayValue)]

    def rule(operands: Values, cotangents: Values) -> list[Any]:
        inputs = list(args)
        for i, value in zip(taken, operands, strict=True):
            inputs[i] = value
        made = apply_graph(op, tuple(inputs))
        sent = dict(zip(given, cotangents, strict=True))
        dys = [sent[i] if i in sent else np.zeros_like(v) for i, v in enumerate(made)]
        found = iter(apply_graph(gradient, (*inputs, *made, *dys)))
        every = [next(found) if v else None for v in gradient.graph.outputs]
        return [every[i] for i in taken]

    if not taken or not given:
        return results
    marked = with_rule(op.name, [args[i] for i in taken], [results[i] for i in given], rule)
    by_place = dict(zip(given, marked, strict=True))
    return tuple(by_place.get(i, v) for i, v in enumerate(results))


def _without_gradient(op: SubgraphOp, args: Values, result: Any) -> Any:
    """A result that passes no gradient on."""
    operands = [a for a in args if isinstance(a, ArrayValue)]
    if not operands or not isinstance(result, ArrayValue):
        return result

    def rule(given: Values, cotangents: Values) -> list[Any]:
        del cotangents
        return [None for _ in given]

    return with_rule(op.name, operands, [result], rule)[0]


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
    env: dict[int, Any] = {0: None, **dict(zip(graph.inputs, args, strict=True))}
    for v, constant in graph.constants:
        env[v] = constant.array if isinstance(constant, Literal) else constant
    for expr in graph.exprs:
        results = apply(expr.op, tuple(env[v] for v in expr.inputs))
        require_count(op.name, expr.op, results, len(expr.outputs))
        env.update(zip(expr.outputs, results, strict=True))
    return tuple(env[v] for v in graph.outputs)


def require_count(name: str, op: OpDef, results: Values, count: int) -> None:
    """Refuse another number of results than a graph has variables for.

    Raises:
        ArgumentError: names the op.
    """
    if len(results) != count:
        raise failure(
            ArgumentError, f"{name}: {op.name} gives {len(results)} results, expected {count}"
        )


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
    results = _as_tuple(op, op.obj.apply_graph(*args))
    if not hasattr(op.obj, "grad") or not all(isinstance(v, ArrayValue) for v in (*args, *results)):
        return results

    def rule(operands: Values, cotangents: Values) -> Any:
        return op.obj.grad(operands, tuple(op.obj.apply_graph(*operands)), cotangents)

    return with_rule(op.name, args, results, rule)


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
    return tuple(as_array(r.shape, np.dtype(np.int32)) for r in results)


# ---- values that are no arrays ----


_INT64 = np.dtype(np.int64)


def as_array(value: Any, dtype: np.dtype[Any] = _INT64) -> Any:
    """A vector of sizes, which `dtype` must hold, or a size, as an array; else what is given."""
    if isinstance(value, HostValue):
        return Tracer(value.session, elementwise_operand(value.session, value))
    if not _is_vector(value):
        return value
    traced = [s for s in value if isinstance(s, HostValue)]
    if not traced:
        return np.array(value, dtype)
    session = session_of(traced)
    src = [host_const(len(value))]
    for at, size in enumerate(value):
        node = size.node if isinstance(size, HostValue) else host_const(size)
        scalar = session.make(p.FromHost(dtype, "check"), node)
        src += [session.make(p.ExpandDims((0,)), scalar), host_const(at)]
    steps = ((1,),) * len(value)
    return Tracer(session, session.make(p.UpdateSlices(dtype, steps, True), *src))
