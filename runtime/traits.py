"""What op definitions do eagerly, in inference and compiled: the rules of their traits.

Rules of `OpDef` itself are the fallback chains: apply by interpreting the op's graph, inference by
partial evaluation of that graph. "apply_graph" is in lift.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, cast

import numpy as np

from opkiln.ops.definitions import (
    CompiledOp,
    FastpathCopy,
    GenericPyOp,
    Identity,
    JITFusionOp,
    ShapeInfer,
    SubgraphOp,
)
from opkiln.ops.defs import Key, OpDef
from opkiln.ops.rules import RULES
from opkiln.ops.subgraph import EncodedGraph, Subgraph
from opkiln.runtime import debug
from opkiln.runtime.compile import compile as compiled
from opkiln.runtime.describe import TensorDesc, common_device, device_of
from opkiln.runtime.errors import (
    ArgumentError,
    DeviceMismatch,
    FusionUnsupported,
    GraphError,
    NotImplementedTrait,
    OpkilnError,
    ShapeError,
    UnsupportedDType,
)
from opkiln.runtime.fusion import fusion_enabled, require_fusible
from opkiln.runtime.lift import (
    Sizes,
    Spec,
    graph_of,
    one,
    require_equal,
    runner,
    value_inputs,
    walk,
)
from opkiln.runtime.memo import Memo
from opkiln.runtime.options import checked as checked_options
from opkiln.runtime.partial import infer as infer_graph
from opkiln.runtime.reference import interpret
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


def _sizes_of(op: OpDef, value: Any) -> tuple[Sizes, tuple[int, ...]]:
    """An input whose value decides a shape: which of its numbers are -1, and the others."""
    array = np.asarray(value)
    if array.ndim > 1 or array.dtype.kind not in "iuf":
        raise failure(
            ArgumentError,
            f"{op.name}: expected sizes as a vector of integers, got {array.dtype.name} of shape "
            f"{array.shape}",
        )
    numbers = array.reshape(-1).tolist()
    holes = tuple(n == -1 for n in numbers)
    rest = tuple(n for n in numbers if n != -1)
    return (holes[0] if array.ndim == 0 else holes), rest


def _split(op: OpDef, inputs: Values) -> tuple[list[Spec | Sizes], Values]:
    """Signature and values of the inputs, as `graph_of` and `runner` take them."""
    sized = value_inputs(op, len(inputs))
    specs: list[Spec | Sizes] = []
    values: list[Any] = []
    for i, value in enumerate(inputs):
        if i in sized:
            hole, numbers = _sizes_of(op, value)
            specs.append(hole)
            values.append(numbers)
        else:
            array = np.asarray(value)
            specs.append(Spec(array.dtype, array.shape))
            values.append(value)
    return specs, tuple(values)


@RULES.register("apply", OpDef)
def _interpreted(op: OpDef, inputs: Values) -> Values:
    """The op's graph, interpreted; NumPy's results."""
    specs, values = _split(op, inputs)
    traced = graph_of(op, specs)
    arrays = [np.asarray(v) for v, s in zip(values, specs, strict=True) if isinstance(s, Spec)]
    weak = [n for v, s in zip(values, specs, strict=True) if not isinstance(s, Spec) for n in v]
    results = interpret(traced.graph, [*arrays, *traced.captures], weak)
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


@RULES.register("apply", ShapeInfer)
def _inferred(op: ShapeInfer, inputs: Values) -> Values:
    descs = tuple(TensorDesc.of(np.asarray(v, np.int64), value=True) for v in inputs)
    found, validated = op.infer(descs)
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
    return tuple(results)


# ---- compiled ----

_FUNCTIONS: Memo[Any] = Memo(1024)


def function_of(op: OpDef, holes: tuple[Sizes | None, ...] | None, opt_level: int,
                options: tuple[tuple[str, Key], ...]) -> Any:  # fmt: skip
    """The native function of an op; equal ops have the same."""

    def make() -> Any:
        run = _any_arity(op) if holes is None else runner(op, holes)
        return compiled(run, name=op.name, opt_level=opt_level, **dict(options))  # type: ignore[call-overload]

    return _FUNCTIONS.get((op, holes, opt_level, options), make)


def _any_arity(op: OpDef) -> Callable[..., Values]:
    """The op as a function of any number of inputs, none of which holds a -1."""

    def run(*inputs: Any) -> Values:
        sized = value_inputs(op, len(inputs))
        holes: list[Sizes | None] = [
            None if i not in sized else (False,) * len(given) for i, given in enumerate(inputs)
        ]
        return runner(op, holes)(*inputs)

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
    inner, level = _effective(op)
    if isinstance(inner, JITFusionOp):
        _require_equal_arrays(inner, inputs)
        try:
            specs, _ = _split(inner, inputs)
            require_fusible(inner.name, graph_of(inner, specs).graph)
        except FusionUnsupported as error:
            if fusion_enabled.fell_back(inner.name, str(error).partition("\n")[0]):
                debug.log(1, "%s runs unfused: %s", op.name, error)
            level = op.opt_level
    return _native(inner, inputs, level, op.options)


def _native(op: OpDef, inputs: Values, level: int, options: tuple[tuple[str, Key], ...]) -> Values:
    sized = value_inputs(op, len(inputs))
    if not sized:
        results = function_of(op, None, level, options)(*inputs)
        return results  # type: ignore[no-any-return]
    holes: list[Sizes | None] = []
    values = list(inputs)
    for i, value in enumerate(inputs):
        hole = None
        if i in sized:
            hole, values[i] = _sizes_of(op, value)
        holes.append(hole)
    results = function_of(op, tuple(holes), level, options)(*values)
    return results  # type: ignore[no-any-return]


@RULES.register("apply", JITFusionOp)
def _fused(op: JITFusionOp, inputs: Values) -> Values:
    _require_equal_arrays(op, inputs)
    if not fusion_enabled:
        return apply(op.op, inputs)
    specs, _ = _split(op, inputs)
    require_fusible(op.name, graph_of(op, specs).graph)
    return _native(op, inputs, 2, ())


def _require_equal_arrays(op: JITFusionOp, inputs: Values) -> None:
    if op.strict:
        arrays = [np.asarray(v) for v in inputs]
        _require_equal(op, [TensorDesc.of(a) for a in arrays])


def _require_equal(op: JITFusionOp, descs: Sequence[TensorDesc]) -> None:
    """The check of a strict JITFusionOp on descriptions; what is unknown passes."""
    sized = value_inputs(op, len(descs))
    descs = [d for i, d in enumerate(descs) if i not in sized]
    require_equal(op, "dtypes", [d.dtype.name for d in descs], UnsupportedDType)
    require_equal(op, "devices", [d.device for d in descs], DeviceMismatch)
    shapes = [d.shape for d in descs if d.shape is not None]
    require_equal(op, "shapes", [f"of {len(s)} axes" for s in shapes], ShapeError)
    for axis in zip(*shapes, strict=True):
        if len({n for n in axis if n is not None}) > 1:
            require_equal(op, "shapes", [str(s) for s in shapes], ShapeError)


# ---- inference ----

_INFERRED: Memo[tuple[Descs, bool]] = Memo(1024)


@RULES.register("infer_descs", OpDef)
def infer(op: OpDef, descs: Sequence[Any]) -> tuple[Descs, bool]:
    """Descriptions of the results, and whether all that is computed has a known shape."""
    for desc in descs:
        if not isinstance(desc, TensorDesc):
            raise failure(ArgumentError, f"{op.name}.infer: expected TensorDescs, got {desc!r:.60}")
    found: tuple[Descs, bool] = RULES.find("describe", op)(op, tuple(descs))
    return found


@RULES.register("describe", OpDef)
def _by_graph(op: OpDef, descs: Sequence[TensorDesc]) -> tuple[Descs, bool]:
    descs = tuple(descs)
    return _INFERRED.get((op, descs), lambda: _by_graph_of(op, descs))


def _by_graph_of(op: OpDef, descs: Descs) -> tuple[Descs, bool]:
    device = common_device(op.name, (d.device for d in descs))
    sized = value_inputs(op, len(descs))
    unknown = [i for i, d in enumerate(descs) if _unknown(d, i in sized)]
    if unknown:
        return _by_ranks(op, descs, unknown)
    try:
        return _partial(op, descs, sized, device)
    except OpkilnError as error:
        raise failure(type(error), f"{op.name}: {_without_place(error)}") from None


def _without_place(error: OpkilnError) -> str:
    return str(error).partition("\n  how to fix")[0]


def _unknown(desc: TensorDesc, sized: bool) -> bool:
    """Whether even the number of sizes that a trace needs is open."""
    return desc.shape is None or (sized and None in desc.shape)


def _partial(op: OpDef, descs: Descs, sized: frozenset[int], device: str) -> tuple[Descs, bool]:
    specs: list[Spec | Sizes] = []
    weak: list[Any] = []
    for i, desc in enumerate(descs):
        shape = desc.shape
        assert shape is not None
        if i not in sized:
            specs.append(Spec(desc.dtype, tuple(2 if n is None else n for n in shape)))
        elif desc.value is not None:
            hole, numbers = _sizes_of(op, desc.value)
            specs.append(hole)
            weak += numbers
        else:
            count = shape[0] if shape else 1
            assert count is not None
            specs.append((False,) * count if shape else False)
            weak += [None] * count
    traced = graph_of(op, specs)
    arrays = [d for i, d in enumerate(descs) if i not in sized]
    open_pins = [
        arrays[i].shape[axis] is None  # type: ignore[index]
        for i, axis, _ in traced.pins
        if i < len(arrays)
    ]
    arrays += [TensorDesc.of(c, value=_is_literal(c)) for c in traced.captures]
    found, validated = infer_graph(traced.graph, arrays, weak, device)
    if any(open_pins):  # the trace holds for one size only
        found = tuple(d.but(shape=(None,) * len(d.shape or ()), value=None) for d in found)
        validated = False
    results = tuple(
        found[o.index] if isinstance(o, Out) else TensorDesc.of(o, value=True).but(layout="")
        for o in traced.out_tree
    )
    return results, validated


def _is_literal(array: Any) -> bool:
    """Whether the values cannot change: the memory is that of a `Literal`."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, bytes)


_RANKS = range(17)


def _by_ranks(op: OpDef, descs: Descs, unknown: list[int]) -> tuple[Descs, bool]:
    """What holds whatever the unknown ranks are: those that the op accepts are tried."""
    sized = value_inputs(op, len(descs))
    # Of several unknown inputs equal ranks and neighbours: results that agree there, agree.
    trials = [(r,) * len(unknown) for r in _RANKS]
    if len(unknown) > 1:
        trials += [t for t in product(range(3), repeat=min(len(unknown), 3)) if len(set(t)) > 1]
    results: list[Descs] = []
    refused: OpkilnError | None = None
    for trial in trials:
        ranks = dict(zip(unknown, (*trial, *trial[:1] * len(unknown)), strict=False))
        tried = tuple(
            d.but(shape=((None,) * ranks[i] if d.shape is None and i not in sized else (ranks[i],)))
            if i in ranks
            else d
            for i, d in enumerate(descs)
        )
        try:
            results.append(_by_graph_of(op, tried)[0])
        except OpkilnError as error:
            refused = refused or error
    if not results:
        assert refused is not None
        raise refused
    return tuple(_agreed(each) for each in zip(*results, strict=True)), False


def _agreed(descs: Sequence[TensorDesc]) -> TensorDesc:
    """What all descriptions say."""
    first = descs[0]
    if len({d.rank for d in descs}) > 1:
        return first.but(shape=None, value=None)
    sizes = zip(*(d.shape or () for d in descs), strict=True)
    shape = tuple(n[0] if len(set(n)) == 1 else None for n in sizes)
    return first.but(shape=shape, value=first.value if len(set(descs)) == 1 else None)


@RULES.register("describe", Identity)
@RULES.register("describe", FastpathCopy)
def _as_it_is(op: OpDef, descs: Sequence[TensorDesc]) -> tuple[Descs, bool]:
    desc = one(op, tuple(descs))
    return (desc,), desc.known


@RULES.register("describe", CompiledOp)
def _inside(op: CompiledOp, descs: Sequence[TensorDesc]) -> tuple[Descs, bool]:
    return infer(op.op, descs)


@RULES.register("describe", JITFusionOp)
def _inside_checked(op: JITFusionOp, descs: Sequence[TensorDesc]) -> tuple[Descs, bool]:
    if op.strict:
        _require_equal(op, descs)
    return infer(op.op, descs)


@RULES.register("describe", SubgraphOp)
def _of_graph(op: SubgraphOp, descs: Sequence[TensorDesc]) -> tuple[Descs, bool]:
    """By the whole graph; expr by expr where a rank is unknown or a part is the user's own code."""
    sized = value_inputs(op, len(descs))
    if not op.opaque and not any(_unknown(d, i in sized) for i, d in enumerate(descs)):
        return _by_graph(op, descs)
    validated = True

    def step(inner: OpDef, inputs: Values) -> Values:
        nonlocal validated
        given = tuple(
            v if isinstance(v, TensorDesc) else TensorDesc.of(v, value=True) for v in inputs
        )
        found, known = infer(inner, given)
        validated &= known
        return found

    return walk(op, tuple(descs), step), validated


@RULES.register("describe", ShapeInfer)
def _of_shapes(op: ShapeInfer, descs: Sequence[TensorDesc]) -> tuple[Descs, bool]:
    inner: list[TensorDesc] = []
    for i, desc in enumerate(descs):
        if desc.rank not in (None, 1) or desc.dtype.kind not in "iu":
            raise failure(ShapeError, f"{op.name}: expected vectors of integers, got {desc!r}")
        shape: Any = (
            None if desc.shape is None or desc.shape[0] is None else (None,) * desc.shape[0]
        )
        if desc.value is not None:
            shape = tuple(map(int, desc.value))
        device, dtype = op.of(i)
        inner.append(TensorDesc(dtype, shape, device))
    found, validated = infer(op.op, inner)
    results = tuple(
        TensorDesc(np.int32, (d.rank,), value=d.shape if d.known else None) for d in found
    )
    return results, validated


@RULES.register("describe", GenericPyOp)
def _by_hook(op: GenericPyOp, descs: Sequence[TensorDesc]) -> tuple[Descs, bool]:
    hook = getattr(op.obj, "infer", None)
    if hook is None:
        if not op.opaque:
            return _by_graph(op, descs)
        raise failure(
            NotImplementedTrait,
            f"{op.name} cannot be inferred: {type(op.obj).__name__} has no method infer",
            fix="define infer(*descs), which returns (a tuple of TensorDescs, validated)",
        )
    found, validated = hook(*descs)
    return tuple(found), bool(validated) and all(d.known for d in found)


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
