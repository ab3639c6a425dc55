"""The reference interpreter: a graph and arrays in, NumPy's results out, without a compiler."""

from __future__ import annotations

import contextlib
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from opkiln.ops import primitives as p
from opkiln.ops.defs import OpDef
from opkiln.ops.dtypes import kind_of
from opkiln.ops.elementwise.presets import (
    DIVISION_BY_ZERO,
    DIVISION_OVERFLOW,
    INVALID_CHOICE,
    NEGATIVE_POWER,
)
from opkiln.ops.rules import RULES
from opkiln.ops.table import ELEMENTWISE, REDUCTIONS
from opkiln.runtime.errors import (
    BoundsError,
    ChoiceError,
    HostDivisionError,
    HostRangeError,
    IntegerPowerError,
    NotYet,
    OpkilnError,
    ShapeError,
)
from opkiln.runtime.graph import Graph, Node, topological

Array = npt.NDArray[Any]
Number = int | float

# What a raising fault bit means.
RAISED: dict[int, tuple[type[OpkilnError], str]] = {
    NEGATIVE_POWER: (IntegerPowerError, "integers to negative integer powers are not allowed"),
    INVALID_CHOICE: (ChoiceError, "invalid entry in choice array"),
}
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def interpret(
    graph: Graph,
    arrays: Sequence[Any],
    weak: Sequence[Number] = (),
    on_fault: Callable[[int], object] | None = None,
) -> list[Any]:
    """The outputs of `graph`: fresh arrays, NumPy scalars for rank 0, Python numbers for host.

    `arrays` are the array leaves and then the captures, `weak` the weak scalars, both in order.
    `on_fault` is told the fault bit of each integer division that goes wrong, as kernels report it.

    Raises:
        ShapeError: operands do not broadcast, or a reduction has nothing to reduce.
        HostRangeError, HostDivisionError, IntegerPowerError: where NumPy or Python raise.
        NotYet: Python's own result would be complex.
    """
    given = [np.asarray(a) for a in arrays]
    if len(given) != len(graph.inputs):
        raise TypeError(f"interpret: expected {len(graph.inputs)} arrays, got {len(given)}")
    for node, array in zip(graph.inputs, given, strict=True):
        if array.dtype != node.dtype or array.ndim != node.rank:
            raise TypeError(
                f"interpret: expected a {node.dtype.name} array of rank {node.rank} for {node!r}, "
                f"got {array.dtype.name} of rank {array.ndim}"
            )
    order = graph.nodes
    uses = Counter(source for node in order for source in node.src)
    uses.update(graph.outputs)
    env: dict[Node, Any] = {}

    def told(kind: str, flag: int) -> None:
        del flag
        if on_fault is not None:
            on_fault(DIVISION_BY_ZERO if kind == "divide by zero" else DIVISION_OVERFLOW)

    with np.errstate(all="ignore", call=told):
        for node in order:
            try:
                with _watching(node):
                    env[node] = _evaluate(node, env, given, weak)
            except OpkilnError as error:
                raise _located(error, graph.where.get(node)) from None
            for source in node.src:  # a value is dropped after its last use
                uses[source] -= 1
                if not uses[source]:
                    env.pop(source, None)
        fresh: dict[Node, Any] = {}
        for node in graph.outputs:
            if node not in fresh:
                fresh[node] = env[node] if node.is_host else _fresh(env[node], given)
    return [fresh[node] for node in graph.outputs]


def _watching(node: Node) -> contextlib.AbstractContextManager[None]:
    """NumPy tells of the faults of this node, where it has any that count."""
    if not division_faults(node):
        return contextlib.nullcontext()
    return np.errstate(divide="call", over="call")


def division_faults(node: Node) -> int:
    """The fault bits that an integer division may report; 0 for any other node."""
    if not isinstance(node.op, p.Elementwise) or node.dtype.kind not in "iu":
        return 0
    return ELEMENTWISE[node.op.row].faults & (DIVISION_BY_ZERO | DIVISION_OVERFLOW)


def evaluate_host(
    roots: Iterable[Node], shapes: Sequence[tuple[int, ...]], weak: Sequence[Number] = ()
) -> list[Number]:
    """The values of host nodes, from the shapes of the inputs and the weak scalars alone."""
    wanted = list(roots)
    env: dict[Node, Number] = {}
    inputs = frozenset(n for n in topological(wanted) if isinstance(n.op, p.Input))
    for node in topological(wanted, stop=inputs):
        if node not in inputs:
            env[node] = _evaluate_host(node, env, shapes, weak)
    return [env[node] for node in wanted]


def _located(error: OpkilnError, where: str | None) -> OpkilnError:
    return type(error)(f"{error} ({where})" if where else str(error))


def _fresh(value: Array, given: list[Array]) -> Any:
    """A result that shares memory with nothing the caller holds."""
    if value.ndim == 0:
        return value.copy()[()]
    if value.base is not None or any(value is a for a in given):
        return value.copy(order="K")
    return value


# ---- host scalars ----


def checked(value: Number) -> Number:
    """An int that fits int64, or a float.

    Raises:
        HostRangeError: size or scalar arithmetic left int64.
    """
    if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        raise HostRangeError(f"size or scalar arithmetic overflows int64: {value}")
    return value


def _divide(fn: Callable[[Any, Any], Number]) -> Callable[..., Number]:
    def divide(a: Number, b: Number) -> Number:
        if b == 0:
            raise HostDivisionError(f"division by zero in size or scalar arithmetic: {a} by {b}")
        return fn(a, b)

    return divide


def _power(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        if b < 0:
            raise IntegerPowerError(
                f"a run-time integer to a negative power: {a} ** {b}; use a float"
            )
        if abs(a) > 1 and b > 63:
            raise HostRangeError(f"size or scalar arithmetic overflows int64: {a} ** {b}")
        return int(a**b)
    try:
        result = a**b
    except OverflowError:
        raise HostRangeError(f"scalar arithmetic overflows float64: {a} ** {b}") from None
    except ZeroDivisionError:
        raise HostDivisionError(f"division by zero in scalar arithmetic: {a} ** {b}") from None
    if isinstance(result, complex):
        raise NotYet(
            f"a negative Python number to a fractional power: {a} ** {b} is complex, which is not "
            f"supported yet"
        )
    return float(result)


def _bcast(*dims: int) -> int:
    result = 1
    for dim in dims:
        if dim not in (1, result):
            if result != 1:
                raise ShapeError(
                    f"operands could not be broadcast together: extents {result} and {dim}"
                )
            result = dim
    return result


def _same(a: int, b: int) -> int:
    if a != b:
        raise ShapeError(f"an extent does not fit its target: expected {a}, got {b}")
    return a


def _index(index: int, extent: int) -> int:
    if not -extent <= index < extent:
        raise BoundsError(f"index {index} is out of bounds for an axis of size {extent}")
    return index % extent


def _nonempty(reduced: int, results: int = 1) -> int:
    del results  # NumPy refuses to reduce nothing even where it gives no result
    if reduced == 0:
        raise ShapeError("zero-size array to a reduction which has no identity")
    return reduced


_HOST_FN: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": _divide(lambda a, b: a // b),
    "mod": _divide(lambda a, b: a % b),
    "truediv": _divide(lambda a, b: a / b),
    "pow": _power,
    "neg": operator.neg,
    "abs": abs,
    "max": max,
    "min": min,
    "float": float,
    "bcast": _bcast,
    "same": _same,
    "nonempty": _nonempty,
    "index": _index,
}


def _evaluate_host(
    node: Node,
    env: Mapping[Node, Number],
    shapes: Sequence[tuple[int, ...]],
    weak: Sequence[Number],
) -> Number:
    match node.op:
        case p.HostConst(value=value):
            return value
        case p.HostArg(index=index):
            return weak[index]
        case p.Dim(axis=axis):
            source = node.src[0].op
            assert isinstance(source, p.Input)
            return shapes[source.index][axis]
        case p.HostOp(fn=fn):
            args = [env[s] for s in node.src]
            if node.dtype is float:
                args = [float(a) for a in args]
            return checked(_HOST_FN[fn](*args))
        case _:
            raise TypeError(f"no host value for {node!r}")


# ---- arrays ----


def from_host(value: Number | complex, dtype: np.dtype[Any], mode: str) -> Array:
    """A Python number as a 0-d array of `dtype`, by one of FromHost's modes.

    Raises:
        HostRangeError: mode "check" and an integer that `dtype` cannot hold.
    """
    if dtype.kind in "iu" and isinstance(value, int):
        info = np.iinfo(dtype)
        if not info.min <= value <= info.max:
            if mode == "check":
                raise HostRangeError(f"Python integer {value} out of bounds for {dtype.name}")
            if mode == "saturate":
                value = min(max(value, info.min), info.max)
            else:
                value = (value - info.min) % 2**info.bits + info.min
    if kind_of(dtype) in "fc" and isinstance(value, int):
        try:
            value = float(value)
        except OverflowError:
            raise HostRangeError(f"Python integer too large to convert to {dtype.name}") from None
    with np.errstate(all="ignore"):
        floats = kind_of(dtype) in "fc"
        return np.array(value).astype(dtype) if floats else np.array(value, dtype)


def scalar(value: Number | complex, dtype: np.dtype[Any], mode: str) -> np.generic:
    """As `from_host`, a NumPy scalar."""
    return cast("np.generic", from_host(value, dtype, mode)[()])


def _check_broadcast(operands: Sequence[Array]) -> None:
    if len(operands) < 2:
        return
    rank = max(a.ndim for a in operands)
    for axis in range(-rank, 0):
        extents = [a.shape[axis] for a in operands if a.ndim >= -axis]
        try:
            _bcast(*extents)
        except ShapeError:
            raise ShapeError(misfit(a.shape for a in operands)) from None


def misfit(shapes: Iterable[tuple[Any, ...]]) -> str:
    """What NumPy says of operands that do not fit each other."""
    texts = " ".join(str(shape).replace(", ", ",") for shape in shapes)
    return f"operands could not be broadcast together with shapes {texts}"


def _elementwise(op: p.Elementwise, args: list[Array], node: Node) -> Array:
    _check_broadcast(args)
    row = ELEMENTWISE[op.row]
    try:
        result = row.numpy(*args)
    except ValueError as error:
        raised = next(cls for bit, (cls, _) in RAISED.items() if row.faults & bit)
        raise raised(str(error)) from None
    return np.asarray(result).astype(node.dtype, copy=False)


def _reduce(op: p.Reduce, args: list[Array], node: Node) -> Array:
    (x,) = args
    row = REDUCTIONS[op.row]
    if row.empty and not op.seeded and not all(x.shape[i] for i in op.axes):
        raise ShapeError(row.empty)
    if row.finds:  # one axis at most in NumPy
        kept = [i for i in range(x.ndim) if i not in op.axes]
        extents = [x.shape[i] for i in kept]
        flat = x.transpose(*kept, *op.axes).reshape(*extents, prod(x.shape[i] for i in op.axes))
        found = np.asarray(row.numpy(flat, axis=-1))
        return np.expand_dims(found, op.axes) if op.keepdims else found
    start = {"initial": row.identity_of(op.dtype)} if op.seeded else {}
    result = row.numpy.reduce(x, axis=op.axes, dtype=op.dtype, keepdims=op.keepdims, **start)
    return np.asarray(result).astype(node.dtype, copy=False)


def _broadcast_to(op: p.BroadcastTo, args: list[Any], node: Node) -> Array:
    del op, node
    x, shape = args[0], tuple(args[1:])
    for have, want in zip(x.shape, shape[len(shape) - x.ndim :], strict=True):
        if have != 1:
            _same(want, have)
    return np.broadcast_to(x, shape)


def _slice_of(start: int, count: int, step: int) -> slice:
    """The slice of `count` elements from `start` on."""
    if count <= 0:
        return slice(0, 0)
    stop = start + count * step
    return slice(start, stop if stop >= 0 else None, step)


def _slice(op: p.Slice, args: list[Any], node: Node) -> Array:
    del node
    index = [slice(None)] * args[0].ndim
    for axis, start, count, step in zip(op.axes, args[1::2], args[2::2], op.steps, strict=True):
        index[axis] = _slice_of(start, count, step)
    return cast("Array", args[0][tuple(index)])


def _squeeze(op: p.Squeeze, args: list[Array], node: Node) -> Array:
    del node
    for axis in op.axes:
        _same(args[0].shape[axis], 1)
    return np.squeeze(args[0], op.axes)


def _diagonal(op: p.Diagonal, args: list[Array], node: Node) -> Array:
    del node
    _same(args[0].shape[op.axis], args[0].shape[op.other])
    taken = np.diagonal(args[0], axis1=op.axis, axis2=op.other)  # the diagonal comes last
    return np.moveaxis(taken, -1, op.axis - (op.other < op.axis))


def _reshape(op: p.Reshape, args: list[Any], node: Node) -> Array:
    del op, node
    x, shape = args[0], tuple(args[1:])
    if x.size != prod(shape):
        text = ",".join(str(n) for n in shape)
        raise ShapeError(f"cannot reshape array of size {x.size} into shape ({text})")
    return cast("Array", x.reshape(shape))


def _update_slices(op: p.UpdateSlices, args: list[Any], node: Node) -> Array:
    del node
    result = np.empty(args[: op.rank], op.dtype)
    for value, starts, steps in op.parts(tuple(args)):
        index = map(_slice_of, starts, value.shape, steps)
        result[tuple(index)] = value
    return result


def _matmul(op: p.MatMul, args: list[Array], node: Node) -> Array:
    del op, node
    a, b = args
    _same(b.shape[-2], a.shape[-1])
    return cast("Array", np.matmul(a, b))


def _custom_call(op: p.CustomCall, args: list[Any], node: Node) -> Array:
    del node
    tensors, numbers, *_ = op.split(tuple(args))
    given = iter(tensors)
    every = [next(given) if g else None for g in op.given]
    results = RULES.find("evaluate", op.op)(op.op, every, numbers)
    return cast("Array", results[op.index])


def _cast(op: p.Cast, args: list[Array], node: Node) -> Array:
    del node
    (x,) = args
    if x.dtype.kind == "c" and op.dtype.kind not in "cb":
        x = np.real(x)  # as NumPy, which warns of it; kernels warn of nothing
    return x.astype(op.dtype)


_ARRAY_FN: dict[type[OpDef], Callable[[Any, list[Any], Node], Array]] = {
    p.Constant: lambda op, args, node: np.asarray(op.value),
    p.FromHost: lambda op, args, node: from_host(args[0], op.dtype, op.mode),
    p.Elementwise: _elementwise,
    p.Cast: _cast,
    p.Reinterpret: lambda op, args, node: args[0].view(op.dtype),
    p.Reduce: _reduce,
    p.Transpose: lambda op, args, node: args[0].transpose(op.perm),
    p.ExpandDims: lambda op, args, node: np.expand_dims(args[0], op.axes),
    p.BroadcastTo: _broadcast_to,
    p.Squeeze: _squeeze,
    p.Slice: _slice,
    p.Diagonal: _diagonal,
    p.Reshape: _reshape,
    p.UpdateSlices: _update_slices,
    p.MatMul: _matmul,
    p.CustomCall: _custom_call,
}


def compute(node: Node, args: list[Any]) -> Array:
    """The value of an array node from those of its sources."""
    return _ARRAY_FN[type(node.op)](node.op, args, node)


def host_function(fn: str) -> Callable[..., Any]:
    """What a HostOp does to Python numbers."""
    return _HOST_FN[fn]


def _evaluate(
    node: Node, env: dict[Node, Any], given: Sequence[Array], weak: Sequence[Number]
) -> Any:
    op = node.op
    if isinstance(op, p.Input):
        return given[op.index]
    if isinstance(op, p.Dim):
        source = node.src[0].op
        assert isinstance(source, p.Input)
        return given[source.index].shape[op.axis]
    if node.is_host:
        return _evaluate_host(node, env, (), weak)
    return compute(node, [env[s] for s in node.src])
