"""Backward rules of the primitives.

A rule is called with the op, the cotangent of its result, the result, and its operands: traced
values, NumPy scalars for constants, and nodes for host scalars. It gives a gradient for each
operand, or None: for a host scalar, or where the result does not smoothly depend on the operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.dtypes import kind_of
from opkiln.ops.rules import RULES
from opkiln.ops.table import ELEMENTWISE, REDUCTIONS
from opkiln.runtime.errors import GradientError, ShapeError
from opkiln.runtime.graph import Node, host_const, is_one
from opkiln.runtime.trace.promote import BROADCAST, cast_op
from opkiln.runtime.trace.session import Session, failure
from opkiln.runtime.trace.tracer import Tracer

Gradients = Sequence[Any]
_NEGATIVE = p.Elementwise("negative")


# ---- shapes ----


def full(g: Any, like: Any) -> Any:
    """A cotangent in the whole shape of its value."""
    node, shape = g.node, like.node.shape
    return g if node.shape == shape else Tracer(g.session, g.session.make(BROADCAST, node, *shape))


def ranked(g: Any, like: Any) -> Any:
    """A cotangent of one element, or with an axis for each of its value."""
    return g if g.ndim in (0, like.ndim) else full(g, like)


def fitted(gradient: Any, operand: Node) -> Node:
    """A gradient summed to the shape of the operand, or less, and in its dtype.

    An axis along which the operand was broadcast is summed. Whether one of unknown size was joins
    the trace key as "1" or "not 1"; where no sizes are known at all, both are served at once.
    """
    session: Session = gradient.session
    node: Node = gradient.node
    negated = node.op == _NEGATIVE and node.rank  # after the sums, which are smaller
    if negated:
        node = node.src[0]
    node = _summed(session, node, operand.shape)
    if negated:
        node = session.make(_NEGATIVE, node)
    return node if node.dtype == operand.dtype else session.make(cast_op(operand.dtype), node)


def _summed(session: Session, node: Node, shape: tuple[Node, ...]) -> Node:
    lead = node.rank - len(shape)
    if lead > 0:
        node = _sum(session, node, tuple(range(lead)), keepdims=False)
    shape = shape[max(-lead, 0) :]
    broadcast: list[int] = []
    unknown: list[int] = []
    for axis, (have, want) in enumerate(zip(node.shape, shape, strict=True)):
        if have is want or is_one(have):
            continue
        one = session.is_one(want)
        if one is None:
            unknown.append(axis)
        elif one:
            broadcast.append(axis)
    if broadcast:
        node = _sum(session, node, tuple(broadcast), keepdims=True)
    return _sum_any(session, node, unknown, shape) if unknown else node


def _sum(session: Session, node: Node, axes: tuple[int, ...], *, keepdims: bool) -> Node:
    return session.make(p.Reduce("sum", axes, keepdims, node.dtype), node)


def _sum_any(session: Session, node: Node, axes: list[int], shape: tuple[Node, ...]) -> Node:
    """Axes summed to extents of which no one knows yet whether they are 1 or the whole.

    An axis of n that becomes one of m is split into n / m times m, and the first of the two summed:
    of one element where m is n, of all where m is 1.
    """
    split: list[Node] = []
    summed: list[int] = []
    for axis, (have, want) in enumerate(zip(node.shape, shape, strict=True)):
        if axis in axes:
            summed.append(len(split))
            whole = session.make(p.HostOp("max"), want, host_const(1))
            split.append(session.make(p.HostOp("floordiv"), have, whole))
            split.append(want)
        else:
            split.append(have)
    apart = session.make(p.Reshape(), node, *split)
    return _sum(session, apart, tuple(summed), keepdims=False)


# ---- rules ----


@RULES.register("backward", p.Transient)
def _transient(op: p.Transient, g: Any, y: Any, x: Any) -> Gradients:
    del op, y, x
    return (g,)


@RULES.register("backward", p.Elementwise)
def _elementwise(op: p.Elementwise, g: Any, y: Any, *src: Any) -> Gradients:
    row = ELEMENTWISE[op.row]
    if row.gradient is None:
        if row.differentiable:
            raise failure(GradientError, f"the gradient of {op.row}: {row.doc}")
        return (None,) * len(src)
    rule: Any = row.gradient
    shape = y.node.shape
    # Where an operand is broadcast, the sum over its axes needs all of the gradient's elements.
    return [
        d if d is None or _shape(x) == shape else full(d, y)
        for d, x in zip(rule(g, y, *src), src, strict=True)
    ]


def _shape(x: Any) -> Any:
    return x.node.shape if isinstance(x, Tracer) else ()


@RULES.register("backward", p.Cast)
def _cast(op: p.Cast, g: Any, y: Any, x: Any) -> Gradients:
    del op, y
    return (g if kind_of(x.dtype) == "f" else None,)


@RULES.register("backward", p.FromHost)
def _from_host(op: p.FromHost, g: Any, y: Any, x: Any) -> Gradients:
    del op, g, y, x
    return (None,)


@RULES.register("backward", p.Reduce)
def _reduce(op: p.Reduce, g: Any, y: Any, x: Any) -> Gradients:
    row = REDUCTIONS[op.row]
    if row.gradient is None:
        return (None,)
    if not op.keepdims:
        expand = p.ExpandDims(op.axes)
        g, y = (v if not v.ndim else Tracer(v.session, v.session.make(expand, v.node))
                for v in (ranked(g, y), y))  # fmt: skip
    return (row.gradient(g, y, x, op.axes),)


# ---- views ----


def _node_of(g: Any, op: Any, *host: Node) -> Any:
    return Tracer(g.session, g.session.make(op, g.node, *host))


@RULES.register("backward", p.Transpose)
def _transpose(op: p.Transpose, g: Any, y: Any, x: Any) -> Gradients:
    del x
    g = ranked(g, y)
    inverse = tuple(int(i) for i in np.argsort(op.perm))
    return (_node_of(g, p.Transpose(inverse)) if g.ndim else g,)


@RULES.register("backward", p.ExpandDims)
def _expand_dims(op: p.ExpandDims, g: Any, y: Any, x: Any) -> Gradients:
    del x
    g = ranked(g, y)
    return (_node_of(g, p.Squeeze(op.axes)) if g.ndim else g,)


@RULES.register("backward", p.Squeeze)
def _squeeze(op: p.Squeeze, g: Any, y: Any, x: Any) -> Gradients:
    del x
    g = ranked(g, y)
    return (_node_of(g, p.ExpandDims(op.axes)) if g.ndim else g,)


@RULES.register("backward", p.BroadcastTo)
def _broadcast_to(op: p.BroadcastTo, g: Any, y: Any, x: Any, *shape: Any) -> Gradients:
    del op, x
    return (full(g, y), *(None,) * len(shape))


@RULES.register("backward", p.Reshape)
def _reshape(op: p.Reshape, g: Any, y: Any, x: Any, *shape: Any) -> Gradients:
    g = full(g, y) if g.ndim else g
    return (_node_of(g, op, *x.node.shape) if g.ndim else g, *(None,) * len(shape))


def _zeros(session: Session, dtype: Any, shape: Sequence[Node]) -> Node:
    return session.make(BROADCAST, session.make(p.Constant(np.dtype(dtype).type(0))), *shape)


@RULES.register("backward", p.Slice)
def _slice(op: p.Slice, g: Any, y: Any, x: Any, *at: Node) -> Gradients:
    """The gradient written into zeros of the operand's shape."""
    session, shape = g.session, x.node.shape
    zero = [host_const(0)] * x.ndim
    starts, steps = list(zero), [1] * x.ndim
    for axis, step, start in zip(op.axes, op.steps, at[::2], strict=True):
        starts[axis], steps[axis] = start, step
    into = p.UpdateSlices(x.dtype, ((1,) * x.ndim, tuple(steps)), False)
    values = _zeros(session, x.dtype, shape), full(g, y).node
    made = session.make(into, *shape, values[0], *zero, values[1], *starts)
    return (Tracer(session, made), *(None,) * len(at))


@RULES.register("backward", p.UpdateSlices)
def _update_slices(op: p.UpdateSlices, g: Any, y: Any, *src: Any) -> Gradients:
    """To each value what it wrote, where no later one wrote over it."""
    session, rank = g.session, op.rank
    left: Node = full(g, y).node
    axes = tuple(range(rank))
    found: list[Any] = []
    for value, starts, steps in reversed(op.parts(src)):
        extents = _extents(session, value, rank)
        place = [node for pair in zip(starts, extents, strict=True) for node in pair]
        taken = session.make(p.Slice(axes, steps), left, *place) if rank else left
        found.append((Tracer(session, taken), *(None,) * rank))
        if not op.disjoint:
            zero = [host_const(0)] * rank
            over = p.UpdateSlices(op.dtype, ((1,) * rank, steps), False)
            none = _zeros(session, op.dtype, extents)
            left = session.make(over, *left.shape, left, *zero, none, *starts)
    passed = [gradient for part in reversed(found) for gradient in part]
    return (*(None,) * rank, *passed)


def _extents(session: Session, value: Any, rank: int) -> tuple[Node, ...]:
    del session
    return value.node.shape if isinstance(value, Tracer) else (host_const(1),) * rank


@RULES.register("backward", p.Diagonal)
def _diagonal(op: p.Diagonal, g: Any, y: Any, x: Any) -> Gradients:
    """The gradient on the diagonal of zeros.

    As a column before n x n zeros, all in a row, its elements lie n + 1 apart: where the diagonal
    of n x n has them.
    """
    session: Session = g.session
    g = full(g, y)
    at = op.axis - (op.other < op.axis)  # of the diagonal in g
    kept = [i for i in range(g.ndim) if i != at]
    node = session.make(p.Transpose((*kept, at)), g.node)
    *lead, n = node.shape
    column = session.make(p.ExpandDims((node.rank,)), node)
    zero, one = host_const(0), host_const(1)
    wide = session.make(p.HostOp("add"), n, one)
    zeros = _zeros(session, node.dtype, (*lead, n, n))
    rank = node.rank + 1
    none = [zero] * (rank - 1)
    beside = p.UpdateSlices(node.dtype, ((1,) * rank, (1,) * rank), True)
    joined = session.make(beside, *lead, n, wide, column, *none, zero, zeros, *none, one)
    row = session.make(p.Reshape(), joined, *lead, session.make(p.HostOp("mul"), n, wide))
    square = session.make(p.HostOp("mul"), n, n)
    cut = session.make(p.Slice((len(lead),), (1,)), row, zero, square)
    matrix = session.make(p.Reshape(), cut, *lead, n, n)
    # kept axes first, then the two of the diagonal: put each where it was
    where = [i for i in range(x.ndim) if i not in (op.axis, op.other)] + [op.axis, op.other]
    back = tuple(where.index(i) for i in range(x.ndim))
    return (Tracer(session, session.make(p.Transpose(back), matrix)),)


@RULES.register("backward", p.MatMul)
def _matmul(op: p.MatMul, g: Any, y: Any, a: Any, b: Any) -> Gradients:
    session: Session = g.session
    g = full(g, y)

    def turned(x: Any, axis: int, extent: Node) -> Node:
        """The transposed matrices, of which one axis takes the name of the extent it equals."""
        rank = x.ndim
        node = session.make(p.Transpose((*range(rank - 2), rank - 1, rank - 2)), x.node)
        shape = [*node.shape]
        if shape[axis] is extent:
            return node
        shape[axis] = extent
        return session.make(BROADCAST, node, *shape)

    inner, same = a.node.shape[-1], b.node.shape[-2]
    _check_inner(session, inner, same)
    return (
        Tracer(session, session.make(op, g.node, turned(b, -1, inner))),
        Tracer(session, session.make(op, turned(a, -2, same), g.node)),
    )


def _check_inner(session: Session, a: Node, b: Node) -> None:
    """That two extents which have to be equal are both 1 or neither joins the trace key.

    The product itself, which refuses others, need not be part of what is computed; broadcasting
    would let a 1 pass.

    Raises:
        ShapeError: one of them is 1.
    """
    ones = {session.is_one(a), session.is_one(b)} if a is not b else set[bool | None]()
    if ones == {True, False}:
        raise failure(ShapeError, "matmul: the inner extents of the operands differ")
