"""Random programs of slices, reshapes, updates and the like: compiled, interpreted and in NumPy.

Values are integers, so that all three agree to the bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.graphs import apply, fold
from tests.together import case, together

import opkiln as ok
from opkiln.ops import primitives as p
from opkiln.runtime.graph import Graph, Node, host_const, make
from opkiln.runtime.infer import broadcast_shapes, graph_input
from opkiln.runtime.reference import interpret
from opkiln.runtime.trace.tracer import wrap

Array = np.ndarray[Any, Any]
DTYPES = (np.dtype(np.int64), np.dtype(np.int8), np.dtype(np.float64), np.dtype(np.complex64))
PROGRAMS, STEPS = 64, 9


class Value(NamedTuple):
    """A node and what NumPy makes of it."""

    node: Node
    array: Array


def spread(x: Array, rng: Random) -> Array:
    """The same values in another layout."""
    match rng.choice(("C", "F", "backwards", "apart", "inner", "unaligned", "swapped")):
        case "F" if x.ndim:
            return np.asfortranarray(x)
        case "backwards" if x.ndim:
            return np.ascontiguousarray(x[::-1])[::-1]
        case "apart" if x.ndim:
            return np.repeat(x, 2, axis=-1)[..., ::2]
        case "inner" if x.ndim:
            return np.pad(x, [(2, 1)] * x.ndim)[(slice(2, -1),) * x.ndim]
        case "unaligned":
            memory = np.empty(x.nbytes + 1, np.uint8)
            moved = memory[1:].view(x.dtype).reshape(x.shape)
            moved[...] = x
            return moved
        case "swapped":
            return x.astype(x.dtype.newbyteorder())
        case _:
            return x


class Builder:
    """Draws one program; extents and starts are constants or symbols at random."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.dtype = rng.choice(DTYPES)
        self.steps: Counter[str] = Counter()
        self.arrays: list[Array] = []
        self.values: list[Value] = []
        for index in range(rng.randint(1, 3)):
            shape = tuple(rng.choice((0, 1, 2, 3, 4, 5, 6)) for _ in range(rng.randint(0, 4)))
            drawn = [rng.randint(-9, 9) for _ in range(prod(shape))]
            given = spread(np.array(drawn, self.dtype).reshape(shape), rng)
            self.arrays.append(given)
            node = graph_input(index, self.dtype, len(shape))
            self.values.append(Value(node, given.astype(self.dtype)))
        for _ in range(STEPS):
            name = rng.choice(list(STEP))
            found = STEP[name](self, rng.choice(self.values[-4:]))
            if found is not None and found.array.size < 4000 and found.array.ndim <= 5:
                self.steps[name] += 1
                self.values.append(found)
        ends = self.values[len(self.arrays) :] or self.values
        chosen = [*rng.sample(ends, min(len(ends), rng.randint(0, 2))), ends[-1]]
        self.outputs = tuple(dict.fromkeys(v.node for v in chosen))
        self.want = {v.node: v.array for v in self.values}

    def host(self, value: int, *known: tuple[Node, int]) -> Node:
        """A host value: a constant, or a sum with an extent whose value is known."""
        if not known or self.rng.random() < 0.5:
            return host_const(value)
        node, extent = self.rng.choice(known)
        return make(p.HostOp("add"), node, host_const(value - extent))

    def sizes(self, shape: tuple[int, ...], x: Value) -> tuple[Node, ...]:
        dims = list(zip(x.node.shape, x.array.shape, strict=True))
        return tuple(self.host(n, *dims) for n in shape)

    # *** steps: None where the operand does not fit ***

    def slice(self, x: Value) -> Value | None:
        return self.sliced(x, range(x.array.ndim))

    def sliced(self, x: Value, axes: range) -> Value | None:
        taken = sorted(self.rng.sample(axes, self.rng.randint(1, len(axes)))) if axes else []
        if not taken:
            return None
        index: list[Any] = [slice(None)] * x.array.ndim
        src: list[Node] = []
        steps = []
        for axis in taken:
            extent, dim = x.array.shape[axis], x.node.shape[axis]
            step = self.rng.choice((1, 1, 1, 2, 3, -1, -2, 7))
            some = slice(
                self.rng.choice((None, self.rng.randint(-5, 5))),
                self.rng.choice((None, self.rng.randint(-5, 5))),
                step,
            )
            start, stop, _ = some.indices(extent)
            count = len(range(start, stop, step))
            index[axis] = some
            steps.append(step)
            src += [self.host(start, (dim, extent)), self.host(count, (dim, extent))]
        node = make(p.Slice(tuple(taken), tuple(steps)), x.node, *src)
        return Value(node, x.array[tuple(index)])

    def pick(self, x: Value) -> Value | None:
        axes = [i for i, n in enumerate(x.array.shape) if n]
        if not axes:
            return None
        axis = self.rng.choice(axes)
        extent, dim = x.array.shape[axis], x.node.shape[axis]
        index = self.rng.randint(-extent, extent - 1)
        start = make(p.HostOp("index"), host_const(index), dim)
        one = make(p.Slice((axis,), (1,)), x.node, start, host_const(1))
        return Value(make(p.Squeeze((axis,)), one), np.take(x.array, index, axis))

    def transpose(self, x: Value) -> Value:
        perm = self.rng.sample(range(x.array.ndim), x.array.ndim)
        return Value(make(p.Transpose(tuple(perm)), x.node), x.array.transpose(perm))

    def expand(self, x: Value) -> Value:
        axis = self.rng.randint(0, x.array.ndim)
        return Value(make(p.ExpandDims((axis,)), x.node), np.expand_dims(x.array, axis))

    def squeeze(self, x: Value) -> Value | None:
        axes = tuple(i for i, n in enumerate(x.array.shape) if n == 1)
        return Value(make(p.Squeeze(axes), x.node), x.array.squeeze(axes)) if axes else None

    def broadcast(self, x: Value) -> Value:
        shape = tuple(self.rng.randint(2, 3) if n == 1 else n for n in x.array.shape)
        shape = (*(self.rng.randint(1, 3) for _ in range(self.rng.randint(0, 1))), *shape)
        node = make(p.BroadcastTo(), x.node, *self.sizes(shape, x))
        return Value(node, np.broadcast_to(x.array, shape))

    def diagonal(self, x: Value) -> Value | None:
        shape = x.array.shape
        pairs = [(i, j) for i, n in enumerate(shape) for j, m in enumerate(shape) if i != j]
        pairs = [(i, j) for i, j in pairs if shape[i] == shape[j]]
        if not pairs:
            return None
        axis, other = self.rng.choice(pairs)
        taken = np.moveaxis(np.diagonal(x.array, 0, axis, other), -1, axis - (other < axis))
        return Value(make(p.Diagonal(axis, other), x.node), taken)

    def reshape(self, x: Value) -> Value:
        size, shape = x.array.size, []
        while size > 1 and self.rng.random() < 0.8:
            shape.append(self.rng.choice([n for n in range(1, size + 1) if size % n == 0]))
            size //= shape[-1]
        shape.append(size)
        self.rng.shuffle(shape)
        target = tuple(shape) if x.array.size else (0, self.rng.randint(0, 4))
        return Value(make(p.Reshape(), x.node, *self.sizes(target, x)), x.array.reshape(target))

    def unary(self, x: Value) -> Value:
        row, fn = self.rng.choice([("negative", np.negative), ("square", np.square)])
        return Value(apply(row, x.node), fn(x.array))

    def binary(self, x: Value) -> Value | None:
        row, fn = self.rng.choice([("add", np.add), ("multiply", np.multiply)])
        fitting = [y for y in self.values if fits(x.array, y.array)]
        y = self.rng.choice(fitting)
        broadcast_shapes(x.node.shape, y.node.shape)
        return Value(apply(row, x.node, y.node), fn(x.array, y.array))

    def matmul(self, x: Value) -> Value | None:
        """With what fits, or with its own transpose."""
        if x.array.ndim < 2 or self.dtype.kind in "fc":
            return None
        rank = x.array.ndim
        turned = make(p.Transpose((*range(rank - 2), rank - 1, rank - 2)), x.node)
        fitting = [Value(turned, np.swapaxes(x.array, -1, -2))]
        for y in self.values:
            if y.array.ndim > 1 and y.array.shape[-2] == x.array.shape[-1]:
                fitting += [y] if fits(x.array[..., :0, :0], y.array[..., :0, :0]) else []
        y = self.rng.choice(fitting)
        return Value(make(p.MatMul(), x.node, y.node), x.array @ y.array)

    def sum(self, x: Value) -> Value | None:
        if not x.array.ndim or self.dtype.kind == "c":
            return None
        many = self.rng.randint(1, min(2, x.array.ndim))
        axes = tuple(sorted(self.rng.sample(range(x.array.ndim), many)))
        keepdims = self.rng.random() < 0.5
        node = fold("sum", x.node, *axes, keepdims=keepdims)
        return Value(node, np.sum(x.array, axes, self.dtype, keepdims=keepdims))

    def concatenate(self, x: Value) -> Value | None:
        axes = range(x.array.ndim)
        if not axes:
            return None
        axis = self.rng.choice(axes)
        others = [y for y in self.values if alike(x.array, y.array, axis)]
        parts = [x, *self.rng.choices(others, k=self.rng.randint(0, 2))]
        size = sum(y.array.shape[axis] for y in parts)
        extents = [*x.node.shape]
        extents[axis] = host_const(size)
        src: list[Node] = []
        at = 0
        for y in parts:
            src += [y.node, *(host_const(at if i == axis else 0) for i in axes)]
            at += y.array.shape[axis]
        op = p.UpdateSlices(self.dtype, ((1,) * len(axes),) * len(parts), True)
        return Value(make(op, *extents, *src), np.concatenate([y.array for y in parts], axis))

    def assign(self, x: Value) -> Value | None:
        """x with a part of it overwritten by another part, backwards or not."""
        part = self.sliced(x, range(x.array.ndim))
        if part is None:
            return None
        assert isinstance(part.node.op, p.Slice)
        starts, steps = [host_const(0)] * x.array.ndim, [1] * x.array.ndim
        where = [list(range(n)) for n in x.array.shape]
        for axis in part.node.op.axes:
            count, extent = part.array.shape[axis], x.array.shape[axis]
            most = (extent - 1) // max(count - 1, 1) if extent else 1
            step = self.rng.randint(1, max(most, 1))
            first = self.rng.randint(0, max(extent - 1 - step * (count - 1), 0))
            if self.rng.random() < 0.4:
                first, step = first + step * (count - 1), -step
            starts[axis], steps[axis] = host_const(first), step
            where[axis] = [first + step * i for i in range(count)]
        result = x.array.copy()
        value = self.unary(part) if self.rng.random() < 0.5 else part
        if part.array.size:
            result[np.ix_(*where)] = value.array
        op = p.UpdateSlices(self.dtype, ((1,) * x.array.ndim, tuple(steps)), False)
        whole = [host_const(0)] * x.array.ndim
        return Value(make(op, *x.node.shape, x.node, *whole, value.node, *starts), result)


STEP: dict[str, Callable[[Builder, Value], Value | None]] = {
    name: getattr(Builder, name)
    for name in (
        "slice", "pick", "transpose", "expand", "squeeze", "broadcast", "diagonal", "reshape",
        "unary", "binary", "sum", "matmul", "concatenate", "assign",
    )
}  # fmt: skip


def fits(a: Array, b: Array) -> bool:
    try:
        return np.broadcast_shapes(a.shape, b.shape) is not None
    except ValueError:
        return False


def alike(a: Array, b: Array, axis: int) -> bool:
    return a.ndim == b.ndim and all(
        n == m for i, (n, m) in enumerate(zip(a.shape, b.shape, strict=True)) if i != axis
    )


def traced(outputs: tuple[Node, ...]) -> Callable[..., Any]:
    """A function whose trace is the graph."""

    def fn(*arrays: Any) -> Any:
        return tuple(wrap(arrays[0].session, node) for node in outputs)

    return fn


@pytest.mark.parametrize("opt_level", [2, 1, 0])
def test_random_programs(opt_level: int) -> None:
    made = [Builder(1000 * opt_level + i) for i in range(PROGRAMS)]
    steps: Counter[str] = sum((b.steps for b in made), Counter())
    assert min(steps[name] for name in STEP) >= 5, steps
    cases = [case(ok.compile(traced(b.outputs), opt_level=opt_level), *b.arrays) for b in made]
    for b, c, results in zip(made, cases, together(cases), strict=True):
        native = [a.astype(b.dtype) for a in b.arrays]
        inputs = tuple(graph_input(i, a.dtype, a.ndim) for i, a in enumerate(native))
        graph = Graph(inputs, b.outputs)
        for got, ref, node in zip(results, interpret(graph, native), b.outputs, strict=True):
            want = b.want[node]
            for name, other in (("NumPy", want), ("the interpreter", ref)):
                np.testing.assert_array_equal(got, other, f"{name}: {graph}", strict=True)
        assert c.fn.info().fallbacks == 0
