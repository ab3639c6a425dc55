"""Infer rules: an op and its sources in, the result's dtype and symbolic shape out.

Nothing is allocated or built.
"""

from __future__ import annotations

from functools import reduce as fold
from typing import Any

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.dtypes import is_half, kind_of
from opkiln.ops.rules import RULES
from opkiln.ops.table import ELEMENTWISE, REDUCTIONS
from opkiln.runtime.errors import ShapeError
from opkiln.runtime.graph import Node, const_value, host_const, is_one, make

Inferred = tuple[Any, tuple[Node, ...]]
Sources = tuple[Node, ...]


def broadcast_dim(a: Node, b: Node) -> Node:
    """The extent that two axes broadcast to: equal, or one of them 1.

    Raises:
        ShapeError: both are known and differ, and neither is 1.
    """
    if a is b:
        return a
    known_a, known_b = const_value(a), const_value(b)
    if known_a == 1:
        return b
    if known_b == 1:
        return a
    if known_a is not None and known_b is not None:
        raise ShapeError(
            f"operands could not be broadcast together: extents {known_a} and {known_b}"
        )
    # A set: broadcasting is associative, commutative and idempotent, so equal sets are one node.
    members: dict[Node, None] = {}
    for dim in (a, b):
        is_set = isinstance(dim.op, p.HostOp) and dim.op.fn == "bcast"
        members.update(dict.fromkeys(dim.src if is_set else (dim,)))
    if len(members) == 1:  # of a set whose members have become the same
        return next(iter(members))
    return make(p.HostOp("bcast"), *sorted(members, key=lambda n: n.digest))


def broadcast_shapes(*shapes: Sources) -> Sources:
    """NumPy's broadcasting of symbolic shapes.

    Raises:
        ShapeError: two known extents do not broadcast.
    """
    distinct = {s for s in shapes if s}
    if len(distinct) <= 1:  # by far the most common: equal shapes and scalars
        return distinct.pop() if distinct else ()
    rank = max(len(s) for s in distinct)
    one = host_const(1)
    padded = [(one,) * (rank - len(s)) + s for s in shapes]
    return tuple(fold(broadcast_dim, dims) for dims in zip(*padded, strict=True))


@RULES.register("infer", p.Input)
def _input(op: p.Input, src: Sources) -> Inferred:
    del src
    # The extents are Dim nodes over the input itself; they are attached by graph_input below, since
    # a node cannot hold nodes that name it before it exists.
    return op.dtype, ()


def graph_input(
    index: int, dtype: np.dtype[np.generic], rank: int, extents: p.InputAxes = ()
) -> Node:
    """The node of an array leaf, with one Dim per axis as its shape: its own or by `extents`."""
    node = make(p.Input(index, dtype, rank, extents))
    if len(node.shape) != rank:
        sources = [(graph_input(op.index, op.dtype, op.rank), axis) for op, axis in extents]
        sources = sources or [(node, axis) for axis in range(rank)]
        node.shape = tuple(make(p.Dim(axis), source) for source, axis in sources)
    return node


@RULES.register("infer", p.HostArg)
def _host_arg(op: p.HostArg, src: Sources) -> Inferred:
    del src
    return (float if op.kind == "f" else int), ()


@RULES.register("infer", p.Dim)
def _dim(op: p.Dim, src: Sources) -> Inferred:
    rank = src[0].op.rank if isinstance(src[0].op, p.Input) else -1
    if not 0 <= op.axis < rank:
        raise ShapeError(f"axis {op.axis} is out of bounds for an array of rank {rank}")
    return int, ()


@RULES.register("infer", p.HostConst)
def _host_const(op: p.HostConst, src: Sources) -> Inferred:
    del src
    return type(op.value), ()


@RULES.register("infer", p.HostOp)
def _host_op(op: p.HostOp, src: Sources) -> Inferred:
    for node in src:
        if not node.is_host:
            raise TypeError(f"host op {op.fn}: expected host scalars, got {node!r}")
    is_float = op.fn in ("truediv", "float") or any(s.dtype is float for s in src)
    return (float if is_float else int), ()


@RULES.register("infer", p.Constant)
def _constant(op: p.Constant, src: Sources) -> Inferred:
    del src
    return op.value.dtype, ()


@RULES.register("infer", p.FromHost)
def _from_host(op: p.FromHost, src: Sources) -> Inferred:
    if not src[0].is_host:
        raise TypeError(f"FromHost: expected a host scalar, got {src[0]!r}")
    if src[0].dtype is float and kind_of(op.dtype) != "f":
        raise TypeError(f"FromHost: a float becomes {op.dtype.name} by way of a Cast")
    return op.dtype, ()


@RULES.register("infer", p.Elementwise)
def _elementwise(op: p.Elementwise, src: Sources) -> Inferred:
    row = ELEMENTWISE[op.row]
    operands, result = row.signature(row, tuple(s.dtype for s in src))
    got = tuple(s.dtype for s in src)
    if operands != got:
        raise TypeError(
            f"{op.row}: expected operands cast to {[d.name for d in operands]}, "
            f"got {[str(d) for d in got]}"
        )
    return result, broadcast_shapes(*(s.shape for s in src))


@RULES.register("infer", p.Cast)
def _cast(op: p.Cast, src: Sources) -> Inferred:
    return op.dtype, src[0].shape


@RULES.register("infer", p.CustomCall)
def _custom_call(op: p.CustomCall, src: Sources) -> Inferred:
    return op.dtypes[op.index], op.split(src)[2 + op.index]


@RULES.register("infer", p.Reinterpret)
def _reinterpret(op: p.Reinterpret, src: Sources) -> Inferred:
    if src[0].dtype.itemsize != op.dtype.itemsize:
        raise TypeError(f"reinterpret: {src[0].dtype.name} and {op.dtype.name} differ in size")
    return op.dtype, src[0].shape


@RULES.register("infer", p.Reduce)
def _reduce(op: p.Reduce, src: Sources) -> Inferred:
    (x,) = src
    if any(not 0 <= axis < x.rank for axis in op.axes):
        raise ShapeError(
            f"{op.row}: axes {op.axes} are out of bounds for an array of rank {x.rank}"
        )
    if x.dtype != op.dtype:
        raise TypeError(
            f"{op.row}: expected an operand cast to {op.dtype.name}, got {x.dtype.name}"
        )
    one = host_const(1)
    dtype = REDUCTIONS[op.row].result(op.dtype)
    if op.keepdims:
        return dtype, tuple(one if i in op.axes else d for i, d in enumerate(x.shape))
    return dtype, tuple(d for i, d in enumerate(x.shape) if i not in op.axes)


@RULES.register("infer", p.Transpose)
def _transpose(op: p.Transpose, src: Sources) -> Inferred:
    if sorted(op.perm) != list(range(src[0].rank)):
        raise ShapeError(f"transpose: axes {op.perm} are no permutation of {src[0].rank} axes")
    return src[0].dtype, tuple(src[0].shape[i] for i in op.perm)


@RULES.register("infer", p.ExpandDims)
def _expand_dims(op: p.ExpandDims, src: Sources) -> Inferred:
    rank = src[0].rank + len(op.axes)
    dims = iter(src[0].shape)
    one = host_const(1)
    return src[0].dtype, tuple(one if i in op.axes else next(dims) for i in range(rank))


@RULES.register("infer", p.BroadcastTo)
def _broadcast_to(op: p.BroadcastTo, src: Sources) -> Inferred:
    del op
    x, shape = src[0], src[1:]
    if x.rank > len(shape):
        raise ShapeError(f"broadcast_to: rank {x.rank} does not fit into rank {len(shape)}")
    # The target wins: an operand extent that is neither 1 nor the target's is refused by a guard.
    for have, want in zip(x.shape, shape[len(shape) - x.rank :], strict=True):
        broadcast_dim(have, want)
    return x.dtype, shape


@RULES.register("infer", p.Squeeze)
def _squeeze(op: p.Squeeze, src: Sources) -> Inferred:
    (x,) = src
    for axis in op.axes:
        if const_value(x.shape[axis]) not in (1, None):
            raise ShapeError("cannot select an axis to squeeze out which has size not equal to one")
    return x.dtype, tuple(d for i, d in enumerate(x.shape) if i not in op.axes)


@RULES.register("infer", p.Slice)
def _slice(op: p.Slice, src: Sources) -> Inferred:
    counts = dict(zip(op.axes, src[2::2], strict=True))
    return src[0].dtype, tuple(counts.get(i, d) for i, d in enumerate(src[0].shape))


@RULES.register("infer", p.Diagonal)
def _diagonal(op: p.Diagonal, src: Sources) -> Inferred:
    return src[0].dtype, tuple(d for i, d in enumerate(src[0].shape) if i != op.other)


@RULES.register("infer", p.Reshape)
def _reshape(op: p.Reshape, src: Sources) -> Inferred:
    del op
    x, shape = src[0], src[1:]
    have, want = (const_value(numel(dims)) for dims in (x.shape, shape))
    if have is not None and want is not None and have != want:
        target = ",".join(str(const_value(d)) for d in shape)
        raise ShapeError(f"cannot reshape array of size {have} into shape ({target})")
    return x.dtype, shape


@RULES.register("infer", p.UpdateSlices)
def _update_slices(op: p.UpdateSlices, src: Sources) -> Inferred:
    for value, starts, _ in op.parts(src):
        if value.dtype != op.dtype or value.rank != op.rank or len(starts) != op.rank:
            raise TypeError(
                f"update_slices: expected values of {op.dtype.name} and rank {op.rank}, got "
                f"{value!r}"
            )
    return op.dtype, src[: op.rank]


@RULES.register("infer", p.Transient)
def _transient(op: p.Transient, src: Sources) -> Inferred:
    del op
    return src[0].dtype, src[0].shape


@RULES.register("infer", p.MatMul)
def _matmul(op: p.MatMul, src: Sources) -> Inferred:
    del op
    a, b = src
    if a.dtype != b.dtype or min(a.rank, b.rank) < 2:
        raise TypeError(f"matmul: expected matrices of one dtype, got {a!r} and {b!r}")
    if kind_of(a.dtype) not in "iufc" or is_half(a.dtype):
        raise TypeError(f"matmul: {a.dtype.name} has no products of its own; cast to float32 first")
    inner = const_value(a.shape[-1]), const_value(b.shape[-2])
    if None not in inner and inner[0] != inner[1]:
        raise ShapeError(
            f"matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc "
            f"signature (n?,k),(k,m?)->(n?,m?) (size {inner[1]} is different from {inner[0]})"
        )
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.dtype, (*batch, a.shape[-2], b.shape[-1])


def numel(dims: Sources) -> Node:
    """The number of elements of an array with these extents."""
    constant, symbols = factors(dims)
    symbols.sort(key=lambda n: n.digest)  # products of the same extents are one node
    known = [host_const(constant)] if constant != 1 or not symbols else []
    return fold(lambda a, b: make(p.HostOp("mul"), a, b), [*known, *symbols])


def factors(dims: Sources) -> tuple[int, list[Node]]:
    """The number of elements as its known factor and the others, none of which is a product."""
    constant = 1
    symbols: list[Node] = []
    stack = [*dims]
    while stack:
        dim = stack.pop()
        value = const_value(dim)
        if value is not None:
            constant *= int(value)
        elif isinstance(dim.op, p.HostOp) and dim.op.fn == "mul":
            stack += dim.src
        else:
            symbols.append(dim)
    return constant, symbols


# ---- guards ----


def guards(node: Node) -> tuple[Node, ...]:
    """Host nodes beside the shape that must be evaluated for their errors alone."""
    same = p.HostOp("same")
    match node.op:
        case p.Reduce(row=row, axes=axes, seeded=False) if REDUCTIONS[row].empty:
            reduced = numel(tuple(node.src[0].shape[i] for i in axes))
            return (make(p.HostOp("nonempty"), reduced, host_const(1)),)
        case p.Squeeze(axes=axes):
            dims = [node.src[0].shape[i] for i in axes]
            return tuple(make(same, d, host_const(1)) for d in dims if not is_one(d))
        case p.Diagonal(axis=axis, other=other):
            pair = [(node.src[0].shape[axis], node.src[0].shape[other])]
        case p.BroadcastTo():
            x, shape = node.src[0], node.shape
            return tuple(
                make(same, want, broadcast_dim(have, want))
                for have, want in zip(x.shape, shape[len(shape) - x.rank :], strict=True)
                if have is not want and not is_one(have)
            )
        case p.Reshape():
            pair = [(numel(node.src[0].shape), numel(node.shape))]
        case p.MatMul():
            pair = [(node.src[0].shape[-1], node.src[1].shape[-2])]
        case _:
            return ()
    return tuple(make(same, a, b) for a, b in pair if a is not b)
