"""What op definitions do eagerly and compiled: the rules of their traits, and their checks.

Rules of `OpDef` itself are the fallback chains; that of "apply" interprets the op's graph.
"apply_graph" is in lift.py, inference in inference.py, gradients in backward.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from opkiln.ops.definitions import (
    CompiledOp,
    FastpathCopy,
    GenericPyGrad,
    GenericPyOp,
    Identity,
    JITFusionOp,
    ShapeInfer,
    SubgraphOp,
)
from opkiln.ops.defs import Key, OpDef, encode
from opkiln.ops.dtypes import kind_of
from opkiln.ops.rules import RULES
from opkiln.ops.subgraph import Subgraph
from opkiln.runtime import debug
from opkiln.runtime.compile import compile as compiled
from opkiln.runtime.config import config
from opkiln.runtime.describe import TensorDesc, device_of
from opkiln.runtime.encoded import EncodedGraph
from opkiln.runtime.errors import (
    ArgumentError,
    FusionUnsupported,
    GradientError,
    GraphError,
    NotImplementedTrait,
    ShapeError,
)
from opkiln.runtime.fusion import fusion_enabled, require_fusible
from opkiln.runtime.inference import require_equal_descs
from opkiln.runtime.lift import one, value_inputs, walk
from opkiln.runtime.memo import Memo
from opkiln.runtime.opgraph import (
    Pattern,
    Sizes,
    Spec,
    bound,
    graph_of,
    is_number,
    open_sizes,
    runner,
    sizes_of,
)
from opkiln.runtime.options import checked as checked_options
from opkiln.runtime.reference import interpret
from opkiln.runtime.segments import plan_of
from opkiln.runtime.trace import Out
from opkiln.runtime.trace.session import failure, is_a

Values = tuple[Any, ...]
Descs = tuple[TensorDesc, ...]

# ---- checks at construction ----


def _require_op(what: str, op: Any) -> None:
    if not isinstance(op, OpDef):
        raise failure(ArgumentError, f"{what}: expected an op, got {op!r:.60}")


@RULES.register("check", ShapeInfer)
def _check_shape_infer(op: ShapeInfer) -> None:
    _require_op("ShapeInfer", op.op)
    op.__dict__["devices"] = tuple(map(device_of, op.devices))


@RULES.register("check", CompiledOp)
def _check_compiled(op: CompiledOp) -> None:
    _require_op("CompiledOp", op.op)
    checked_options({"opt_level": op.opt_level, **dict(op.options)})


@RULES.register("check", JITFusionOp)
def _check_fusion(op: JITFusionOp) -> None:
    _require_op("JITFusionOp", op.op)


@RULES.register("check", GenericPyOp)
def _check_generic(op: GenericPyOp) -> None:
    kind = cast("Any", type(op.obj))
    for name in ("__hash__", "__eq__"):
        if getattr(kind, name, None) in (None, getattr(object, name)):
            raise failure(
                ArgumentError,
                f"GenericPyOp: {kind.__name__} does not define {name}",
                fix="define __eq__ and __hash__ by value, for example with "
                "@dataclass(frozen=True): equal ops share what is cached",
            )
    if not callable(getattr(op.obj, "apply", None)):
        raise failure(
            ArgumentError,
            f"GenericPyOp: {kind.__name__} has no method apply(*arrays)",
            fix="define it; it returns a tuple of arrays",
        )
    for name in ("infer", "apply_graph", "grad", "key"):
        if not callable(getattr(op.obj, name, lambda: None)):
            raise failure(ArgumentError, f"GenericPyOp: {kind.__name__}.{name} is not callable")
    try:
        hash(op.obj)
    except TypeError as error:  # as of a list in a field
        raise failure(ArgumentError, f"GenericPyOp: {kind.__name__}: {error}") from None
    if hasattr(op.obj, "key"):
        _check_key(op.obj.key(), kind.__name__)


def _check_key(key: Any, name: str) -> None:
    try:
        fits = bool(encode(key)) and is_a(key, tuple)
    except TypeError:
        fits = False
    if not fits:
        raise failure(
            ArgumentError,
            f"GenericPyOp: {name}.key: expected a tuple of plain values, got {key!r:.60}",
        )


@RULES.register("check", SubgraphOp)
def _check_subgraph(op: SubgraphOp) -> None:
    check_graph(op.label, op.graph)
    if op.grad_mask and len(op.grad_mask) != len(op.graph.outputs):
        raise failure(
            ArgumentError,
            f"{op.label}: expected a grad_mask of {len(op.graph.outputs)}, got {len(op.grad_mask)}",
        )


def check_graph(name: str, graph: Subgraph) -> None:
    """Refuse a graph whose variables are made twice, or taken before they are made.

    Raises:
        GraphError: names the variable and the op.
    """
    made: set[int] = set()

    def make(v: int, what: str) -> None:
        if v in made or v < 1:
            raise failure(GraphError, f"{name}: variable {v} of {what} is not new")
        made.add(v)

    for v in graph.inputs:
        make(v, "the inputs")
    for v, _ in graph.constants:
        make(v, "the constants")
    for expr in graph.exprs:
        missing = [v for v in expr.inputs if v not in made]
        if missing:
            raise failure(
                GraphError, f"{name}: {expr.op.name} takes variable {missing[0]} before it is made"
            )
        for v in expr.outputs:
            make(v, expr.op.name)
    missing = [v for v in graph.outputs if v and v not in made]
    if missing:
        raise failure(GraphError, f"{name}: output {missing[0]} is made by nothing")


# ---- apply: arrays in, results at once ----


def _split(op: OpDef, inputs: Values) -> list[Spec | Sizes]:
    """The inputs as `graph_of` takes them."""
    sized = value_inputs(op, len(inputs))
    return [
        sizes_of(op, v) if i in sized else Spec(_native_array(v).dtype, np.shape(v))
        for i, v in enumerate(inputs)
    ]


def _native_array(value: Any) -> Any:
    """An array in native byte order."""
    array = np.asarray(value)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


@RULES.register("apply", OpDef)
def _interpreted(op: OpDef, inputs: Values) -> Values:
    """The op's graph, interpreted; NumPy's results."""
    op, inputs = bound(op, inputs)
    specs = _split(op, inputs)
    traced = graph_of(op, specs)
    arrays: list[Any] = []
    for value, spec in zip(inputs, specs, strict=True):
        arrays += [_native_array(value)] if isinstance(spec, Spec) else spec.arrays
    results = interpret(traced.graph, [*arrays, *traced.captures])
    return tuple(results[o.index] if isinstance(o, Out) else o for o in traced.out_tree)


@RULES.register("apply", Identity)
def _alias(op: Identity, inputs: Values) -> Values:
    return (np.asarray(one(op, inputs)).view(),)


@RULES.register("apply", FastpathCopy)
def _itself(op: FastpathCopy, inputs: Values) -> Values:
    return (one(op, inputs),)


def apply(op: OpDef, inputs: Values) -> Values:
    """The op on arrays."""
    given: Values = RULES.find("apply", op)(op, inputs)
    return given


@RULES.register("apply", SubgraphOp)
def _walked(op: SubgraphOp, inputs: Values) -> Values:
    return walk(op, inputs, apply)


def _size_vector(op: ShapeInfer, given: Any) -> Any:
    sizes = np.asarray(given)
    if sizes.dtype.kind not in "iu" and sizes.shape != (0,):
        raise failure(ArgumentError, f"{op.name}: expected vectors of integers, got {given!r:.60}")
    return sizes.astype(np.int64)


@RULES.register("apply", ShapeInfer)
def _inferred(op: ShapeInfer, inputs: Values) -> Values:
    found, validated = op.infer([TensorDesc.of(_size_vector(op, v), value=True) for v in inputs])
    if not validated:
        raise failure(ShapeError, f"{op.name}: shape inference incomplete: {list(found)}")
    return tuple(np.array(desc.value) for desc in found)


@RULES.register("apply", GenericPyOp)
def _hook(op: GenericPyOp, inputs: Values) -> Values:
    results: Any = op.obj.apply(*inputs)
    if not is_a(results, tuple, list):
        raise failure(
            ArgumentError,
            f"{op.name}.apply: expected a tuple of arrays, got {type(results).__name__}",
            fix="return (result,)",
        )
    for i, value in enumerate(results):
        if not hasattr(value, "dtype") and not is_number(value):
            raise failure(
                ArgumentError,
                f"{op.name}.apply: expected arrays, got a {type(value).__name__} as result {i}",
            )
    return tuple(results)


@RULES.register("apply", GenericPyGrad)
def _grad_hook(op: GenericPyGrad, inputs: Values) -> Values:
    count, results = len(op.need), len(op.has)
    own, made = inputs[:count], inputs[count : count + results]
    given = iter(inputs[count + results :])
    dys = tuple(next(given) if h else np.zeros_like(y) for h, y in zip(op.has, made, strict=True))
    found: Any = op.op.obj.grad(own, made, dys)
    if not is_a(found, tuple, list) or len(found) != count:
        raise failure(
            GradientError,
            f"{op.op.name}.grad: expected {count} gradients, got {found!r:.60}",
            fix="return a tuple with one per input, None for none",
        )
    return tuple(
        _gradient(op.op.name, i, np.asarray(x), g)
        for i, (x, g, wanted) in enumerate(zip(own, found, op.need, strict=True))
        if wanted
    )


def _gradient(name: str, index: int, x: Any, gradient: Any) -> Any:
    """What a hook gave for an input, in its dtype and shape.

    Raises:
        GradientError: no real numbers, or they do not broadcast to the input.
    """
    if gradient is None:
        return np.zeros_like(x)
    array = np.asarray(gradient)
    fits = array.ndim <= x.ndim and all(
        n in (1, m) for n, m in zip(array.shape[::-1], x.shape[::-1], strict=False)
    )
    if kind_of(array.dtype) not in "biuf" or not fits:
        raise failure(
            GradientError,
            f"{name}.grad: expected an array of {x.dtype.name} of shape {x.shape} for input "
            f"{index}, got {array.dtype.name} of shape {array.shape}",
        )
    return np.broadcast_to(array.astype(x.dtype, copy=False), x.shape)


# ---- compiled ----

_FUNCTIONS: Memo[Any] = Memo(1024)


def function_of(op: OpDef, holes: tuple[Pattern | None, ...] | None, opt_level: int,
                options: tuple[tuple[str, Key], ...]) -> Any:  # fmt: skip
    """The native function of an op; equal ops have the same.

    `holes` are given only where a trace must see some of the numbers.
    """

    def make() -> Any:
        run = _any_inputs(op) if holes is None else runner(op, holes)
        return compiled(run, name=op.name, opt_level=opt_level, **dict(options))  # type: ignore[call-overload]

    # Made while opkiln is disabled it is a plain one.
    return _FUNCTIONS.get((op, holes, opt_level, options, config.disable), make)


def _any_inputs(op: OpDef) -> Callable[..., Values]:
    """The op as a function of any number of inputs; sizes come as arrays of such lengths."""

    def run(*inputs: Any) -> Values:
        sized = value_inputs(op, len(inputs))
        args: list[Any] = []
        holes: list[Pattern | None] = []
        for i, given in enumerate(inputs):
            vector = is_a(given, tuple)
            if i not in sized and is_a(given, tuple, list, dict):
                raise failure(
                    ArgumentError,
                    f"{op.name}: expected an array as input {i}, got a {type(given).__name__}",
                    fix="pass np.asarray(x)",
                )
            args.append(given if i not in sized or vector else (given,))
            count = len(given) if vector else None
            holes.append(open_sizes(count).pattern if i in sized else None)
        return runner(op, holes)(*args)

    return run


@RULES.register("function", CompiledOp)
def _function(op: CompiledOp) -> Any:
    inner, level = _effective(op)
    return function_of(inner, None, level, op.options)


def _effective(op: CompiledOp) -> tuple[OpDef, int]:
    """What runs: a JITFusionOp inside is fused at every level, or not at all if fusion is off."""
    if isinstance(op.op, JITFusionOp):
        return op.op, 2 if fusion_enabled else min(op.opt_level, 1)
    return op.op, op.opt_level


@RULES.register("apply", CompiledOp)
def _run(op: CompiledOp, inputs: Values) -> Values:
    known = op.__dict__.get("_function")  # of an op that is one program, whatever its inputs
    if known is not None:
        return known(*inputs)  # type: ignore[no-any-return]
    inner, level = _effective(op)
    if isinstance(inner, JITFusionOp):
        _require_equal_arrays(inner, inputs)
        why = _unfusible(inner, inputs)
        if why is not None:
            if fusion_enabled.fell_back(inner.name, why):
                debug.log(1, "%s runs unfused: %s", op.name, why)
            inner, level = inner.op, op.opt_level
    if inner.opaque and not isinstance(inner, SubgraphOp):
        return apply(inner, inputs)  # there is nothing around it to compile
    plan = plan_of(inner, level, op.options)
    if plan is None:
        results = _native(inner, inputs, level, op.options)
        if (
            inner is op.op
            and not config.disable
            and isinstance(inner, SubgraphOp)
            and not value_inputs(inner, len(inputs))
        ):
            op.__dict__["_function"] = op.function
        return results
    if len(inputs) != len(plan.graph.inputs):
        raise failure(
            ArgumentError,
            f"{op.name}: expected {len(plan.graph.inputs)} inputs, got {len(inputs)}",
        )
    return plan.run(inputs)


def _unfusible(op: JITFusionOp, inputs: Values) -> str | None:
    """Why an op cannot be one fused kernel."""
    verdicts: dict[Any, str | None] = op.__dict__.setdefault("_verdicts", {})
    kind = tuple((getattr(v, "dtype", None), np.ndim(v)) for v in inputs)
    if kind not in verdicts:
        try:
            _require_fusible(op, inputs)
            verdicts[kind] = None
        except FusionUnsupported as error:
            verdicts[kind] = str(error).partition("\n")[0]
    return verdicts[kind]


def _require_fusible(op: JITFusionOp, inputs: Values) -> None:
    if op.opaque or plan_of(op.op, 2, ()) is not None:
        raise FusionUnsupported(f"{op.name}: a program that is cut cannot be one fused kernel")
    whole, left = bound(op, inputs)
    require_fusible(op.name, graph_of(whole, _split(whole, left)).graph)


def _native(op: OpDef, inputs: Values, level: int, options: tuple[tuple[str, Key], ...]) -> Values:
    sized = value_inputs(op, len(inputs))
    if not sized:
        results = function_of(op, None, level, options)(*inputs)
        return results  # type: ignore[no-any-return]
    given = [sizes_of(op, v) if i in sized else v for i, v in enumerate(inputs)]
    holes = tuple(v.pattern if isinstance(v, Sizes) else None for v in given)
    seen = any(n is not None for hole in holes if hole for n in hole.numbers)
    args: list[Any] = []
    for value in given:
        if not isinstance(value, Sizes):
            args.append(value)
        else:
            args.append(value.arrays if seen or value.pattern.vector else value.arrays[0])
    results = function_of(op, holes if seen else None, level, options)(*args)
    return results  # type: ignore[no-any-return]


@RULES.register("apply", JITFusionOp)
def _fused(op: JITFusionOp, inputs: Values) -> Values:
    _require_equal_arrays(op, inputs)
    if not fusion_enabled:
        return apply(op.op, inputs)
    why = _unfusible(op, inputs)
    if why is not None:
        raise failure(FusionUnsupported, why, fix="use CompiledOp of it, which falls back")
    return _native(op, inputs, 2, ())


def _require_equal_arrays(op: JITFusionOp, inputs: Values) -> None:
    if op.strict and len({(getattr(v, "dtype", None), np.shape(v)) for v in inputs}) > 1:
        arrays = [np.asarray(v) for v in inputs if not is_number(v)]
        require_equal_descs(op, [TensorDesc.of(a) for a in arrays])


# ---- graphs of an op ----


@RULES.register("forward_graph", OpDef)
def _forward(op: OpDef, descs: Sequence[TensorDesc]) -> EncodedGraph:
    del descs
    raise failure(NotImplementedTrait, f"{op.name} has no rule 'forward_graph'")


@RULES.register("forward_graph", SubgraphOp)
def _forward_of_graph(op: SubgraphOp, descs: Sequence[TensorDesc]) -> EncodedGraph:
    del descs
    small, ins, outs = op.graph.encoded()
    mask = tuple(op.has_grad(i) for i, v in enumerate(op.graph.outputs) if v)
    return EncodedGraph(SubgraphOp(small, op.label, mask, op.user_key), ins, outs)
