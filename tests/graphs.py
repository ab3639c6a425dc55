"""Small graphs built by hand, for the tests of the stages after tracing."""

from __future__ import annotations

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.table import ELEMENTWISE
from opkiln.runtime.graph import Graph, Node
from opkiln.runtime.infer import graph_input, make

F4, F8, I4, I8, U1, BOOL = (np.dtype(t) for t in ("f4", "f8", "i4", "i8", "u1", "?"))


def inputs(*specs: tuple[np.dtype[np.generic], int]) -> tuple[Node, ...]:
    """One input per (dtype, rank)."""
    return tuple(graph_input(i, dtype, rank) for i, (dtype, rank) in enumerate(specs))


def apply(row: str, *args: Node) -> Node:
    """A row on operands that are cast as its signature wants."""
    spec = ELEMENTWISE[row]
    dtypes, _ = spec.signature(spec, tuple(a.dtype for a in args))
    cast = [a if a.dtype == d else make(p.Cast(d), a) for a, d in zip(args, dtypes, strict=True)]
    return make(p.Elementwise(row), *cast)


def fold(row: str, x: Node, *axes: int, keepdims: bool = False) -> Node:
    """A reduction in the operand's dtype."""
    return make(p.Reduce(row, axes, keepdims, x.dtype), x)


def const(value: float, dtype: np.dtype[np.generic]) -> Node:
    """A 0-d constant."""
    return make(p.Constant(dtype.type(value)))


def softmax() -> Graph:
    """max, exp, sum, divide over the last axis: one kernel of three loops."""
    (x,) = inputs((F4, 2))
    e = apply("exp", apply("subtract", x, fold("max", x, 1, keepdims=True)))
    return Graph((x,), (apply("divide", e, fold("sum", e, 1, keepdims=True)),))


def standardise() -> Graph:
    """Mean and deviation over the first axis, by symbolic size."""
    (x,) = inputs((F4, 2))
    n = make(p.FromHost(F4, "check"), x.shape[0])
    centred = apply("subtract", x, apply("divide", fold("sum", x, 0), n))
    deviation = apply("sqrt", apply("divide", fold("sum", apply("square", centred), 0), n))
    return Graph((x,), (apply("divide", centred, deviation),))


def chain() -> Graph:
    """tanh(x*y+z)*x-y."""
    x, y, z = inputs((F4, 1), (F4, 1), (F4, 1))
    t = apply("tanh", apply("add", apply("multiply", x, y), z))
    return Graph((x, y, z), (apply("subtract", apply("multiply", t, x), y),))
