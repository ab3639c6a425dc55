"""Inference on descriptions: an op and a TensorDesc per input in, those of the results out.

An op is traced over inputs of such dtypes and ranks, and the symbolic sizes are evaluated as far as
they are known. Nothing is built, no event is touched, and no array but small values is made. This
comes before any stage that could: it imports none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

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
from opkiln.ops.defs import OpDef
from opkiln.ops.rules import RULES
from opkiln.runtime.describe import TensorDesc, common_device
from opkiln.runtime.errors import (
    ArgumentError,
    DeviceMismatch,
    NotImplementedTrait,
    OpkilnError,
    ShapeError,
    UnsupportedDType,
)
from opkiln.runtime.lift import one, require_equal, value_inputs, walk
from opkiln.runtime.memo import Memo
from opkiln.runtime.opgraph import (
    Sizes,
    Spec,
    bound,
    graph_of,
    is_number,
    open_sizes,
    sizes_of,
)
from opkiln.runtime.partial import infer as infer_graph
from opkiln.runtime.segments import plan_of
from opkiln.runtime.trace import Out
from opkiln.runtime.trace.session import bare_text, failure, is_a

Values = tuple[Any, ...]
Descs = tuple[TensorDesc, ...]

_INFERRED: Memo[tuple[Descs, bool]] = Memo(1024)


@RULES.register("infer_descs", OpDef)
def infer(op: OpDef, descs: Sequence[Any]) -> tuple[Descs, bool]:
    """Descriptions of the results, and whether all that is computed has a known shape.

    Python numbers are inputs too: they take the dtype of what they meet.
    """
    if any(map(is_number, descs)) and not op.opaque:
        op, descs = bound(op, descs)
        return _by_graph(op, descs)
    descs = [as_desc(d) for d in descs]
    require_descs(f"{op.name}.infer", descs)
    found: tuple[Descs, bool] = RULES.find("describe", op)(op, tuple(descs))
    return found


def as_desc(value: Any) -> Any:
    """The description of a Python number; anything else as it is."""
    return TensorDesc.of(value, value=True) if is_number(value) else value


def require_descs(what: str, descs: Sequence[Any]) -> None:
    """Refuse anything but descriptions.

    Raises:
        ArgumentError: shows what was given.
    """
    for desc in descs:
        if not isinstance(desc, TensorDesc):
            raise failure(ArgumentError, f"{what}: expected TensorDescs, got {desc!r:.60}")


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
        text = bare_text(error)
        named = text.startswith(f"{op.name}: ")
        raise failure(type(error), text if named else f"{op.name}: {text}") from None


def _unknown(desc: TensorDesc, sized: bool) -> bool:
    """Whether even the number of sizes that a trace needs is open."""
    return desc.shape is None or (sized and None in desc.shape)


def _partial(op: OpDef, descs: Descs, sized: frozenset[int], device: str) -> tuple[Descs, bool]:
    specs: list[Spec | Sizes] = []
    leaves: list[TensorDesc] = []  # per array of the trace: of a size its length
    for i, desc in enumerate(descs):
        shape = desc.shape
        assert shape is not None
        if i not in sized:
            specs.append(Spec(desc.dtype, tuple(2 if n is None else n for n in shape)))
            leaves.append(desc)
            continue
        known = desc.value is not None
        sizes = sizes_of(op, desc.value) if known else open_sizes(shape[0] if shape else None)
        specs.append(sizes)
        leaves += [TensorDesc(np.bool_, (n if known else None,)) for n in sizes.actual]
    traced = graph_of(op, specs)
    pinned = [(leaves[i].shape or ())[at] for i, at, _ in traced.pins if i < len(leaves)]
    leaves += [TensorDesc.of(c, value=_is_literal(c)) for c in traced.captures]
    found, validated = infer_graph(traced.graph, leaves, device)
    if None in pinned:  # the trace holds for one size only
        found = tuple(d.but(shape=(None,) * len(d.shape or ()), value=None) for d in found)
        validated = False
    results = tuple(found[o.index] if isinstance(o, Out) else _constant(o) for o in traced.out_tree)
    return results, validated


def _constant(value: Any) -> Any:
    """The description of a result that depends on no input, None where there is none."""
    return None if value is None else TensorDesc.of(value, value=True).but(layout="")


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
        require_equal_descs(op, descs)
    return infer(op.op, descs)


@RULES.register("describe", SubgraphOp)
def _of_graph(op: SubgraphOp, descs: Sequence[TensorDesc]) -> tuple[Descs, bool]:
    """By the whole graph; expr by expr where a rank is unknown or no program can hold it."""
    sized = value_inputs(op, len(descs))
    open_ranks = any(_unknown(d, i in sized) for i, d in enumerate(descs))
    if not open_ranks and plan_of(op, 0, ()) is None:
        return _by_graph(op, descs)
    validated = True

    def step(inner: OpDef, inputs: Values) -> Values:
        nonlocal validated
        found, known = infer(inner, [described(v) for v in inputs])
        validated &= known
        return found

    return walk(op, tuple(descs), step), validated


def described(value: Any) -> Any:
    """A constant of a subgraph by its description; a number stays one."""
    keep = isinstance(value, TensorDesc) or is_number(value)
    return value if keep else TensorDesc.of(value, value=True)


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
            if min(shape, default=0) < 0:
                raise failure(ShapeError, f"{op.name}: expected sizes, got {shape}")
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
    what = f"{op.name}.infer"
    given = hook(*descs)
    if not is_a(given, tuple) or len(given) != 2 or not is_a(given[0], tuple, list):
        raise failure(
            ArgumentError,
            f"{what}: expected (a tuple of TensorDescs, validated), got {given!r:.60}",
            fix="return (desc,), desc.known",
        )
    found, validated = given
    require_descs(what, found)
    if not is_a(validated, bool, np.bool):
        raise failure(ArgumentError, f"{what}: expected validated as a bool, got {validated!r:.60}")
    return tuple(found), bool(validated) and all(d.known for d in found)


@RULES.register("describe", GenericPyGrad)
def _as_inputs(op: GenericPyGrad, descs: Sequence[TensorDesc]) -> tuple[Descs, bool]:
    found = tuple(d.but(value=None, layout="") for d, n in zip(descs, op.need, strict=False) if n)
    return found, all(d.known for d in found)


def require_equal_descs(op: JITFusionOp, descs: Sequence[TensorDesc]) -> None:
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
