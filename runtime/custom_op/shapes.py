"""Shapes: descriptions of an op's tensors in, those of its results out; sizes may be symbols."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from opkiln.ops.definitions import CustomOp
from opkiln.ops.dtypes import as_dtype
from opkiln.runtime.custom_op.registry import Definition
from opkiln.runtime.describe import TensorDesc
from opkiln.runtime.errors import ArgumentError
from opkiln.runtime.trace.session import failure, is_a

Result = tuple[np.dtype[Any], tuple[Any, ...]]  # dtype and shape
_NAMES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex"}  # of opkiln/op.h


def chosen(
    op: CustomOp, what: str, function: Callable[..., Any], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Those of the values that a function has parameters for.

    Raises:
        ArgumentError: it has one that none of them is.
    """
    taken: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            return dict(values)
        if parameter.name in values:
            taken[parameter.name] = values[parameter.name]
        elif parameter.default is parameter.empty:
            raise failure(
                ArgumentError,
                f"{op.name}: {what}: there is nothing to pass for its parameter {parameter.name!r}",
                fix=f"use some of {', '.join(values)}",
            )
    return taken


def results_of(
    op: CustomOp, found: Definition, tensors: Sequence[Result | None], device: str,
    scalars: Mapping[str, Any], spec: Any, operands: Sequence[Any],
) -> list[Result]:  # fmt: skip
    """The results: by `infer=`, by the op's own function, or all like the first tensor.

    Raises:
        ArgumentError: what a function gave are no descriptions.
        CustomOpError: the op's own function reported an error.
    """
    count = len(found.schema.results)
    if found.infer is not None:
        names = [p.name for p in found.schema.tensors]
        descs = [None if t is None else TensorDesc(*t, device) for t in tensors]
        values = {**dict(zip(names, descs, strict=True)), **scalars}
        given = found.infer(**chosen(op, "infer", found.infer, values))
        return _checked(op, given, count)
    if spec.infers:
        made = spec.infer(operands, found.numbers(scalars), count)
        return [(_dtype(op, c, b), tuple(shape)) for c, b, shape in made]
    return [next(t for t in tensors if t is not None)] * count


def _dtype(op: CustomOp, code: int, bits: int) -> Any:
    name = "bool" if code == 6 else f"{_NAMES.get(code, '?')}{bits}"
    try:
        return as_dtype(name)
    except TypeError:
        raise failure(ArgumentError, f"{op.name}: infer: there is no dtype {name}") from None


def _checked(op: CustomOp, given: Any, count: int) -> list[Result]:
    results = given if is_a(given, tuple, list) else (given,)
    if len(results) != count or not all(isinstance(d, TensorDesc) for d in results):
        raise failure(
            ArgumentError,
            f"{op.name}: infer: expected {count} of TensorDesc, got {given!r:.80}",
            fix="return for example a.but(shape=(*a.shape[:-1], 1))",
        )
    for desc in results:
        if desc.shape is None or None in desc.shape:
            raise failure(ArgumentError, f"{op.name}: infer: expected a known shape, got {desc!r}")
    return [(d.dtype, d.shape) for d in results]
