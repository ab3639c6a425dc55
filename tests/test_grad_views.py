"""Backward rules of views, updates and products, on the primitives themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.test_grad import arrays, differences

from opkiln.ops import primitives as p
from opkiln.ops.rules import RULES
from opkiln.runtime.grad import backward_graph
from opkiln.runtime.graph import Graph, Node, host_const, make
from opkiln.runtime.infer import graph_input
from opkiln.runtime.reference import interpret

F64 = np.dtype(np.float64)


def consts(*values: int) -> list[Node]:
    return [host_const(v) for v in values]


def update(
    *pieces: tuple[Node, tuple[int, ...], tuple[int, ...]], shape: Any, disjoint: bool
) -> Node:
    op = p.UpdateSlices(F64, tuple(steps for _, _, steps in pieces), disjoint)
    places = [node for value, starts, _ in pieces for node in (value, *consts(*starts))]
    return make(op, *consts(*shape), *places)


def slice_of(x: Node, *axes: tuple[int, int, int, int]) -> Node:
    """Along (axis, start, count, step)."""
    op = p.Slice(tuple(a for a, *_ in axes), tuple(step for *_, step in axes))
    return make(op, x, *(n for _, start, count, _ in axes for n in consts(start, count)))


def own_extents(x: Node) -> Node:
    """A reshape to sizes that only a run knows."""
    return make(p.Reshape(), x, make(p.HostOp("mul"), *x.shape))


# Shapes of the inputs, and what is made of them.
CASES: dict[str, tuple[tuple[tuple[int, ...], ...], Callable[..., Node]]] = {
    "transpose": (((2, 3, 4),), lambda x: make(p.Transpose((2, 0, 1)), x)),
    "expand": (((2, 3),), lambda x: make(p.ExpandDims((0, 2)), x)),
    "squeeze": (((1, 3, 1),), lambda x: make(p.Squeeze((0, 2)), x)),
    "broadcast": (((3, 1),), lambda x: make(p.BroadcastTo(), x, *consts(2, 3, 4))),
    "reshape": (((2, 6),), lambda x: make(p.Reshape(), x, *consts(3, 2, 2))),
    "reshape to run-time sizes": (((2, 6),), own_extents),
    "slice": (((5, 6),), lambda x: slice_of(x, (0, 1, 3, 1), (1, 0, 3, 2))),
    "slice backwards": (((5, 6),), lambda x: slice_of(x, (1, 5, 3, -2))),
    "slice of nothing": (((5, 2),), lambda x: slice_of(x, (0, 2, 0, 1))),
    "diagonal": (((3, 3),), lambda x: make(p.Diagonal(0, 1), x)),
    "diagonal of two": (((3, 2, 3),), lambda x: make(p.Diagonal(2, 0), x)),
    "diagonal of two, the other way": (((3, 2, 3, 2),), lambda x: make(p.Diagonal(0, 2), x)),
    "concatenate": (
        ((2, 3), (2, 2)),
        lambda a, b: update(
            (a, (0, 0), (1, 1)), (b, (0, 3), (1, 1)), shape=(2, 5), disjoint=True
        ),
    ),
    "interleave": (
        ((3,), (3,)),
        lambda a, b: update((a, (0,), (2,)), (b, (5,), (-2,)), shape=(6,), disjoint=True),
    ),
    "assign": (
        ((4, 3), (2, 3)),
        lambda a, b: update(
            (a, (0, 0), (1, 1)), (b, (1, 0), (2, 1)), shape=(4, 3), disjoint=False
        ),
    ),
    "assign twice": (
        ((5,), (2,), (2,)),
        lambda a, b, c: update(
            (a, (0,), (1,)), (b, (1,), (1,)), (c, (2,), (1,)), shape=(5,), disjoint=False
        ),
    ),
    "matmul": (((3, 4), (4, 2)), lambda a, b: make(p.MatMul(), a, b)),
    "matmul of a batch": (((5, 3, 4), (4, 2)), lambda a, b: make(p.MatMul(), a, b)),
    "matmul of two batches": (((2, 1, 3, 4), (5, 4, 2)), lambda a, b: make(p.MatMul(), a, b)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_views_by_finite_differences(name: str) -> None:
    """Of the square of each view, so that a constant cotangent cannot hide a wrong place."""
    shapes, view = CASES[name]
    args = tuple(arrays(*shapes))
    inputs = tuple(graph_input(i, F64, len(s)) for i, s in enumerate(shapes))
    made = view(*inputs)
    graph = Graph(inputs, (make(p.Elementwise("multiply"), made, made),))
    (value,) = interpret(graph, args)
    g = np.random.default_rng(5).uniform(-1, 1, np.shape(value))
    back = backward_graph(graph, [True] * len(args), [True])
    given = [v for v, taken in zip((*args, value, g), back.inputs, strict=True) if taken]
    found = interpret(back.graph, given)
    for i, own in enumerate(found):
        assert own.shape == args[i].shape
        want = differences(lambda *a: (interpret(graph, a)[0] * g).sum(), args, i)
        np.testing.assert_allclose(own, want, rtol=1e-6, atol=1e-8)


def test_every_primitive_of_arrays_has_a_rule() -> None:
    """Or is declared to pass nothing on, or has its rule from the user: none can be forgotten."""
    missing = {
        op.__name__
        for op in vars(p).values()
        if isinstance(op, type) and issubclass(op, p.OpDef) and op is not p.OpDef
        if not any(("backward", c) in RULES._rules for c in op.__mro__)
    }
    assert missing == {
        "Input",
        "Constant",
        *(h.__name__ for h in p.HOST_OPS),
        "Reinterpret",
        "CustomCall",
    }
