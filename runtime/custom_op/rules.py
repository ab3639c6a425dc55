"""What custom ops do in each context: the rules of their traits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.definitions import CustomOp
from opkiln.ops.rules import RULES
from opkiln.runtime.custom_op import arrays
from opkiln.runtime.custom_op.registry import (
    Definition,
    arguments,
    by_name,
    definition,
    unregister,
)
from opkiln.runtime.custom_op.schema import check_scalar
from opkiln.runtime.custom_op.shapes import Result, chosen, results_of
from opkiln.runtime.errors import ArgumentError, GradientError, UnsupportedDType
from opkiln.runtime.grad import with_rule
from opkiln.runtime.graph import Node, host_const
from opkiln.runtime.trace import Tracer
from opkiln.runtime.trace.promote import elementwise_operand, session_of
from opkiln.runtime.trace.session import ArrayValue, HostValue, Session, failure, is_a

Values = tuple[Any, ...]


def _traced(values: Sequence[Any]) -> list[Any]:
    return [v for v in values if isinstance(v, (ArrayValue, HostValue))]


# ---- calls ----


@RULES.register("call", CustomOp)
def _call(op: CustomOp, args: Values, kwargs: Mapping[str, Any]) -> Any:
    found, tensors, scalars = arguments(op, args, kwargs)
    results = _results(op, found, tensors, scalars)
    return results[0] if len(results) == 1 else results


def _results(
    op: CustomOp, found: Definition, tensors: list[Any], scalars: dict[str, Any]
) -> Values:
    if _traced([*tensors, *scalars.values()]):
        return _in_graph(op, found, tensors, scalars)
    names = [p.name for p in found.schema.tensors]
    inputs = arrays.read(op, names, tensors)
    if inputs.kind is arrays.TORCH and _requires_grad(tensors):
        from opkiln.runtime.custom_op.torch_grad import differentiable

        return differentiable(op, found, inputs, scalars)
    return tuple(arrays.run(op, found, inputs, scalars))


def _requires_grad(tensors: Sequence[Any]) -> bool:
    import torch

    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


@RULES.register("apply", CustomOp)
@RULES.register("apply_graph", CustomOp)
def _apply(op: CustomOp, inputs: Values) -> Values:
    """The op on tensors alone; the last optional ones may be left out."""
    found = definition(op)
    names = [p.name for p in found.schema.tensors]
    if len(inputs) > len(names):
        raise failure(ArgumentError, f"{op.name}: expected {len(names)} tensors, got {len(inputs)}")
    given = dict(zip(names, inputs, strict=False))
    return _results(op, *arguments(op, (), given))


@RULES.register("bind", CustomOp)
def _bind(op: CustomOp, scalars: Mapping[str, Any]) -> CustomOp:
    found = definition(op)
    known = {p.name: p for p in found.schema.scalars}
    params = dict(op.params)
    for name, value in scalars.items():
        if name not in known:
            raise failure(
                ArgumentError,
                f"{op.name}.bind(): there is no scalar {name!r}",
                fix=f"its scalars are {', '.join(known) or 'none'}",
            )
        params[name] = check_scalar(op.name, known[name], value)
    return CustomOp(op.schema, op.content, tuple(sorted(params.items())))


@RULES.register("signature", CustomOp)
def _signature(op: CustomOp) -> inspect.Signature:
    return definition(op).schema.signature


@RULES.register("unregister", CustomOp)
def _unregister(op: CustomOp) -> None:
    unregister(op)


# ---- in a graph ----


def _in_graph(
    op: CustomOp, found: Definition, tensors: Sequence[Any], scalars: Mapping[str, Any]
) -> Values:
    """The results as nodes, with the op's own gradient."""
    session = session_of(_traced([*tensors, *scalars.values()]))
    schema = found.schema
    nodes = [
        None if t is None else _tensor(op, session, param.name, t)
        for param, t in zip(schema.tensors, tensors, strict=True)
    ]
    given = tuple(n is not None for n in nodes)
    present = tuple(n for n in nodes if n is not None)
    spec = found.spec("cpu", given, scalars)
    numbers = [
        _number(op, param.name, param.kind, scalars[param.name])
        for param in schema.scalars
        if param.kind != "str"
    ]
    results = _shapes(op, found, session, nodes, scalars, spec)
    fixed = tuple((n, scalars[n]) for n in (p.name for p in schema.scalars if p.kind == "str"))
    call = p.CustomCall(
        CustomOp(op.schema, op.content, fixed),
        given,
        tuple(dtype for dtype, _ in results),
        tuple(len(shape) for _, shape in results),
        0,
    )
    extents = [_extent(op, session, n) for _, shape in results for n in shape]
    made = tuple(
        Tracer(session, session.make(one, *present, *numbers, *extents)) for one in call.results()
    )
    if found.backward is None:
        return made
    operands = [Tracer(session, n) for n in present]

    def rule(again: Values, cotangents: Values) -> list[Any]:
        values = iter(again)
        own = [next(values) if g else None for g in given]
        return pulled(
            op, found, own, scalars, cotangents, lambda: _in_graph(op, found, own, scalars)
        )

    return with_rule(op.name, operands, made, rule)


def _tensor(op: CustomOp, session: Session, name: str, value: Any) -> Node:
    node = elementwise_operand(session, value)
    if node.dtype.kind in "mM":
        raise failure(
            UnsupportedDType,
            f"{op.name}(): argument {name!r}: dtype {node.dtype} cannot be passed to native code",
            fix="convert first, for example with x.view(np.int64)",
        )
    return node


def _number(op: CustomOp, name: str, kind: str, value: Any) -> Node:
    """A scalar as a host node: a number of the program's text, or one that comes with each call."""
    if not isinstance(value, (HostValue, ArrayValue)):
        return host_const(float(value) if kind == "float" else int(value))
    fits = isinstance(value, HostValue) and (
        value.node.dtype is int or (kind == "float" and value.node.dtype is float)
    )
    if not fits or kind == "bool":
        what = "an array" if isinstance(value, ArrayValue) else f"a {value.node.dtype.__name__}"
        raise failure(
            ArgumentError,
            f"{op.name}(): argument {name!r}: expected {kind}, got {what}",
            fix="make it a Tensor in the schema" if isinstance(value, ArrayValue) else None,
        )
    if kind == "float" and value.node.dtype is int:
        return session_of([value]).make(p.HostOp("float"), value.node)
    return value.node


def _shapes(
    op: CustomOp, found: Definition, session: Session, nodes: Sequence[Node | None],
    scalars: Mapping[str, Any], spec: Any,
) -> list[Result]:  # fmt: skip
    """The results; where the op itself infers them, the trace holds for these sizes alone."""
    by_code = found.infer is None and spec.infers
    tensors: list[Result | None] = []
    operands: list[Any] = []
    for node in nodes:
        if node is None:
            tensors.append(None)
            continue
        sizes: tuple[Any, ...] = Tracer(session, node).shape
        if by_code:
            sizes = tuple(int(n) for n in sizes)
            code, bits = arrays.dlpack_type(node.dtype)
            strides = _dense(sizes, bits // 8)
            operands.append((0, arrays.CPU, 0, code, bits, list(sizes), strides))
        tensors.append((node.dtype, sizes))
    values = dict(scalars)
    for name, value in values.items() if by_code else ():
        if isinstance(value, HostValue):  # which its shapes may depend on
            what = f"the shapes of {op.name}, by"
            values[name] = session.pin(value.node, what)
    return results_of(op, found, tensors, "cpu", values, spec, operands)


def _dense(shape: Sequence[int], item: int) -> list[int]:
    strides: list[int] = []
    for n in reversed(shape):
        strides.append(item)
        item *= max(n, 1)
    return strides[::-1]


def _extent(op: CustomOp, session: Session, size: Any) -> Node:
    if not isinstance(size, HostValue):
        return host_const(int(size))
    node: Node = size.node
    if session.scalars(node):
        raise session.scalar_failure(node, f"a size of the result of {op.name} comes from")
    return node


# ---- gradients ----


def pulled(
    op: CustomOp, found: Definition, tensors: Sequence[Any], scalars: Mapping[str, Any],
    cotangents: Sequence[Any], results: Callable[[], Sequence[Any]],
) -> list[Any]:  # fmt: skip
    """The gradients of the tensors that were given, by `backward=`.

    Raises:
        GradientError: it gives another number of them.
    """
    schema = found.schema
    values = {
        **dict(zip(schema.gradients, cotangents, strict=True)),
        **dict(zip([p.name for p in schema.tensors], tensors, strict=True)),
        **scalars,
    }
    backward = found.backward
    if isinstance(backward, str):
        backward = by_name(backward).op
    names = _names(backward)
    if any(name in schema.results for name in names):
        values.update(zip(schema.results, results(), strict=True))
    if isinstance(backward, CustomOp):
        missing = [
            q.name for q in definition(backward).schema.params
            if q.name not in values and q.default is inspect.Parameter.empty
        ]  # fmt: skip
        if missing:
            raise failure(
                GradientError,
                f"{op.name}: backward: there is nothing to pass for {missing[0]!r} of "
                f"{backward.name}",
                fix=f"use some of {', '.join(values)}",
            )
        made = backward(**{n: values[n] for n in names if n in values})
    else:
        made = backward(**chosen(op, "backward", backward, values))
    gradients = list(made) if is_a(made, tuple, list) else [made]
    if len(gradients) != len(tensors):
        raise failure(
            GradientError,
            f"{op.name}: backward: expected {len(tensors)} gradients, one per tensor, got "
            f"{len(gradients)}",
            fix="give None for a tensor without gradient",
        )
    return [
        None if t is None or g is None else g
        for g, t in zip(gradients, tensors, strict=True)
        if t is not None
    ]


def _names(backward: Any) -> list[str]:
    if isinstance(backward, CustomOp):
        return [q.name for q in definition(backward).schema.params]
    return list(inspect.signature(backward).parameters)


# ---- for later stages ----


@RULES.register("functions", CustomOp)
def _functions(op: CustomOp, given: tuple[bool, ...]) -> Any:
    found = definition(op)
    return found.spec("cpu", given, found.bound(op.params))


@RULES.register("evaluate", CustomOp)
def _evaluate(op: CustomOp, tensors: Sequence[Any], numbers: Sequence[Any]) -> Values:
    """On NumPy's arrays, for the interpreter."""
    found = definition(op)
    plain = [q for q in found.schema.scalars if q.kind != "str"]
    scalars = {**found.bound(op.params), **{q.name: n for q, n in zip(plain, numbers, strict=True)}}
    inputs = arrays.read(op, [q.name for q in found.schema.tensors], tensors)
    return tuple(map(np.asarray, arrays.run(op, found, inputs, scalars)))
