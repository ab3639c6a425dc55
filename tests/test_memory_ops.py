"""Slices, reshapes, updates of slices and matrix products: what the interpreter makes of them."""

import numpy as np
import pytest

from opkiln.ops import primitives as p
from opkiln.runtime.errors import BoundsError, ShapeError
from opkiln.runtime.graph import Graph, Node, host_const, make
from opkiln.runtime.infer import graph_input, guards, numel
from opkiln.runtime.reference import evaluate_host, interpret

F64 = np.dtype(np.float64)


def run(node: Node, *arrays: np.ndarray) -> np.ndarray:
    inputs = tuple(graph_input(i, a.dtype, a.ndim) for i, a in enumerate(arrays))
    return interpret(Graph(inputs, (node,)), arrays)[0]


def host(*values: int) -> tuple[Node, ...]:
    return tuple(host_const(v) for v in values)


def zeros(*shape: int) -> Node:
    """Of known extents."""
    return make(p.BroadcastTo(), make(p.Constant(np.float64(0))), *host(*shape))


@pytest.mark.parametrize(
    ("start", "count", "step", "expected"),
    [(1, 3, 2, [1, 3, 5]), (5, 3, -2, [5, 3, 1]), (5, 6, -1, [5, 4, 3, 2, 1, 0]), (-1, 0, -1, [])],
)
def test_slice(start: int, count: int, step: int, expected: list[int]) -> None:
    x = graph_input(0, F64, 2)
    node = make(p.Slice((1,), (step,)), x, *host(start, count))
    array = np.tile(np.arange(6.0), (2, 1))
    np.testing.assert_array_equal(run(node, array), [expected, expected])


def test_squeeze_and_its_guard() -> None:
    x = graph_input(0, F64, 2)
    node = make(p.Squeeze((0,)), x)
    np.testing.assert_array_equal(run(node, np.ones((1, 3))), np.ones(3))
    (guard,) = guards(node)
    assert evaluate_host([guard], [(1, 3)]) == [1]
    with pytest.raises(ShapeError):
        evaluate_host([guard], [(2, 3)])
    with pytest.raises(ShapeError, match="squeeze"):
        make(p.Squeeze((0,)), zeros(2, 3))


@pytest.mark.parametrize(("axis", "other"), [(0, 2), (2, 0), (1, 0), (0, 1), (2, 1)])
def test_diagonal(axis: int, other: int) -> None:
    array = np.arange(27.0).reshape(3, 3, 3)
    names = ["i", "j", "k"]
    names[other] = names[axis]
    kept = [n for i, n in enumerate(names) if i != other]
    expected = np.einsum(f"{''.join(names)}->{''.join(kept)}", array)
    node = make(p.Diagonal(axis, other), graph_input(0, F64, 3))
    np.testing.assert_array_equal(run(node, array), expected)


def test_reshape_and_its_guard() -> None:
    x = graph_input(0, F64, 2)
    node = make(p.Reshape(), x, *host(3, 2))
    array = np.arange(6.0).reshape(2, 3).T
    np.testing.assert_array_equal(run(node, array), array.reshape(3, 2))
    with pytest.raises(ShapeError, match=r"size 8 into shape \(3,2\)"):
        run(node, np.ones((2, 4)))
    with pytest.raises(ShapeError):
        evaluate_host(guards(node), [(2, 4)])
    assert guards(make(p.Reshape(), x, *x.shape[::-1])) == ()  # as many elements in any order


def test_update_slices_in_order() -> None:
    x, y = graph_input(0, F64, 1), graph_input(1, F64, 1)
    op = p.UpdateSlices(F64, ((1,), (-2,)), False)
    node = make(op, *x.shape, x, *host(0), y, *host(4))
    np.testing.assert_array_equal(run(node, np.arange(5.0), np.array([7.0, 8])), [0, 1, 8, 3, 7])


def test_matmul_broadcasts_and_refuses() -> None:
    a, b = graph_input(0, F64, 3), graph_input(1, F64, 2)
    node = make(p.MatMul(), a, b)
    x, y = np.arange(24.0).reshape(2, 3, 4), np.arange(8.0).reshape(4, 2)
    np.testing.assert_array_equal(run(node, x, y), x @ y)
    with pytest.raises(ShapeError):
        run(node, x, y.T)
    with pytest.raises(ShapeError, match="size 4 is different from 5"):
        make(p.MatMul(), zeros(2, 3, 5), zeros(4, 2))


def test_an_index_is_within_its_axis() -> None:
    x = graph_input(0, F64, 1)
    index = make(p.HostOp("index"), host_const(-2), x.shape[0])
    assert evaluate_host([index], [(5,)]) == [3]
    with pytest.raises(BoundsError, match="index -2 is out of bounds for an axis of size 1"):
        evaluate_host([index], [(1,)])


def test_the_number_of_elements_does_not_depend_on_the_order() -> None:
    x = graph_input(0, F64, 3)
    n, m, k = x.shape
    assert numel((n, m, *host(3), k, *host(4))) is numel((*host(2), k, *host(6), m, n))
    assert numel(()) is host_const(1)
