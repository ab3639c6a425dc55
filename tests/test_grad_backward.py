"""Backward graphs: masks, what they keep, every size from one graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.test_grad import arrays, differences
from tests.tracing import traced

import opkiln as ok
from opkiln import errors
from opkiln.runtime.grad import Backward, backward_graph, backward_of, with_rule
from opkiln.runtime.graph import Graph
from opkiln.runtime.reference import interpret

Array = np.ndarray[Any, np.dtype[Any]]
A, B = arrays((42,), (42,))


def graph_of(fn: Callable[..., Any], *args: Any) -> Graph:
    return traced(fn, *args).graph


def backward(fn: Callable[..., Any], *args: Any, need: Any = None, has: Any = None) -> Backward:
    graph = graph_of(fn, *args)
    return backward_graph(graph, need or [True] * len(args), has or [True] * len(graph.outputs))


def run(made: Backward, *candidates: Any) -> list[Any]:
    """The gradients, one for each True of the output mask; what is not taken may be None."""
    given = [np.asarray(v) for v, taken in zip(candidates, made.inputs, strict=True) if taken]
    return interpret(made.graph, given)


def test_T1_product() -> None:
    made = backward(lambda x, y: x * y, A, B)
    assert made.inputs == (True, True, False, True) and made.outputs == (True, True)
    g = np.linspace(-1, 1, 42)
    dx, dy = run(made, A, B, None, g)
    np.testing.assert_array_equal(dx, g * B)
    np.testing.assert_array_equal(dy, g * A)


def test_T2_identity() -> None:
    made = backward(lambda x: x, A)
    assert made.inputs == (False, False, True)
    np.testing.assert_array_equal(run(made, None, None, B)[0], B)


def test_T3_a_sum_keeps_sizes_only() -> None:
    a, b = arrays((42,), (5, 42))
    made = backward(lambda a, b: a + b, a, b)
    assert len(made.values) == 4 and made.values == (False, False, False, True)
    sizes = made.precompute(a, b, a + b, b)
    assert len(sizes) == 2 and all(s.ndim == 1 and len(s) <= 2 for s in sizes)
    for whole in (b, np.ones((5, 42))):
        dx, dy = interpret(made.graph, made.arguments([whole], sizes))
        np.testing.assert_allclose(dx, whole.sum(0), rtol=1e-15)
        np.testing.assert_array_equal(dy, whole)
    one = backward(lambda a, b: a + b, a, b, need=(False, True))
    assert one.inputs == (False, True, False, True)  # the size of the result is its cotangent's


def test_T4_relu_keeps_its_result() -> None:
    made = backward(ok.ops.relu, A)
    assert made.values == made.inputs == (False, True, True)


def test_T25_results_in_place_of_computing_them_again() -> None:
    made = backward(lambda a: np.exp(a + 1), A)
    assert made.inputs == (False, True, True)
    assert [n.op.name for n in made.graph.nodes if n.src and not n.is_host] == ["multiply"]
    linear = backward(lambda a: a + 1, A)
    assert linear.inputs == (False, False, True) and linear.graph.outputs == linear.graph.inputs


def test_one_graph_serves_every_size() -> None:
    """F035: what is broadcast is known when it runs."""
    made = backward(lambda x, y: x * y + x, np.ones((2, 3)), np.ones((2, 3)))
    for shapes in (
        ((3, 4), (3, 4)), ((1, 4), (3, 4)), ((3, 1), (1, 4)), ((1, 1), (3, 4)), ((0, 4), (1, 4)),
        ((0, 1), (1, 0)), ((1, 1), (1, 1)),
    ):  # fmt: skip
        x, y = arrays(*shapes)
        g = arrays(np.broadcast_shapes(*shapes))[0]
        dx, dy = run(made, x, y, x * y + x, g)
        axes = [tuple(i for i in (0, 1) if v.shape[i] != g.shape[i]) for v in (x, y)]
        np.testing.assert_allclose(dx, (g * (y + 1)).sum(axes[0], keepdims=True), rtol=1e-14)
        np.testing.assert_allclose(dy, (g * x).sum(axes[1], keepdims=True), rtol=1e-14)
        assert dx.shape == x.shape and dy.shape == y.shape


def test_O9_every_mask_of_three_inputs_and_two_outputs() -> None:
    """Against central differences; what is not asked for is not given."""

    def fn(x: Any, y: Any, z: Any) -> Any:
        return np.tanh(x * y) + z, (np.exp(z) * x).sum(axis=1)

    args = tuple(arrays((3, 4), (4,), (3, 1)))
    outs = fn(*args)
    gs = arrays(outs[0].shape, outs[1].shape, low=-1)
    graph = graph_of(fn, *args)
    masks = itertools.product(
        itertools.product((False, True), repeat=3), itertools.product((False, True), repeat=2)
    )
    wanted = {
        (i, j): differences(lambda *a, j=j: (fn(*a)[j] * gs[j]).sum(), args, i)
        for i in range(3)
        for j in range(2)
    }
    for need, has in masks:
        made = backward_graph(graph, need, has)
        depends = [n and (has[0] or (has[1] and i != 1)) for i, n in enumerate(need)]
        assert made.outputs == tuple(depends) and bool(made) == any(depends)
        assert made.inputs[6] in (False, has[1]) and made.inputs[5] in (False, has[0])
        got = iter(run(made, *args, *outs, *gs))
        for i in (i for i, whether in enumerate(depends) if whether):
            want = sum(wanted[i, j] for j in range(2) if has[j])
            np.testing.assert_allclose(next(got), want, rtol=1e-6, atol=1e-8)


def test_K30_a_result_given_twice_and_an_input_given_back() -> None:
    def fn(x: Any, w: Any) -> Any:
        y = x * w
        return y, y, x

    graph = graph_of(fn, A, B)
    # equal results are one output of a traced graph: give it twice, as a subgraph may
    twice = Graph(graph.inputs, (graph.outputs[0], graph.outputs[0], graph.inputs[0]))
    g, h, k = (np.full(42, v) for v in (2.0, 3.0, 5.0))
    made = backward_graph(twice, (True, True), (True, True, True))
    dx, dw = run(made, A, B, A * B, A * B, A, g, h, k)
    np.testing.assert_allclose(dx, (g + h) * B + k, rtol=1e-15)
    np.testing.assert_allclose(dw, (g + h) * A, rtol=1e-15)
    assert made.values[0] and not any(made.inputs[2:5])  # what is given back is no result to keep
    made = backward_graph(twice, (False, True), (True, False, True))
    assert made.outputs == (False, True) and not made.inputs[7]
    assert backward_graph(twice, (True, True), (False, False, True)).outputs == (True, False)


def test_F036_results_without_cotangent() -> None:
    made = backward(lambda w, r: ((w * r).sum(), w.sum()), A, B, has=(True, False))
    np.testing.assert_array_equal(run(made, A, B, None, None, 2.0, None)[0], 2 * B)


def test_T26_inputs_without_gradient_get_none() -> None:
    made = backward(lambda a, b, c: a // (abs(b) + 0.1) * np.sin(c), A, B, A)
    assert made.outputs == (False, False, True)


def test_nothing_to_differentiate_is_empty() -> None:
    for made in (
        backward(lambda x: x > 1, A),
        backward(lambda x: x * 2, A, need=(False,)),
        backward(lambda x: x * 2, A, has=(False,)),
        backward(lambda x: x * 2, np.ones(3, int)),
    ):
        assert not made and made.graph.outputs == () and not any(made.inputs)


def test_errors_name_op_and_line() -> None:
    with pytest.raises(errors.GradientError, match=r"trigamma.*test_grad_backward\.py"):
        backward(lambda x: ok.ops.trigamma(x) * 2, A)


def test_equal_graphs_have_equal_backward_graphs() -> None:
    """K21: they share programs, whichever function or thread made them."""
    one, two = (backward(f, A, B) for f in (lambda x, y: x * y + x, lambda p, q: p * q + p))
    assert one.graph.digest == two.graph.digest
    masked = backward(lambda x, y: x * y + x, A, B, need=(True, False))
    assert masked.graph.digest != one.graph.digest  # K20


def test_T6_backward_graphs_are_graphs() -> None:
    first = backward(np.cos, A)
    again = backward_graph(first.graph, [True] * len(first.graph.inputs), [True])
    g = np.ones(42)
    taken = [A, g] if first.inputs == (True, False, True) else []
    given = [*taken, -np.sin(A), g]
    found = run(again, *given)
    np.testing.assert_allclose(found[0], -np.cos(A), rtol=1e-14)


def test_rules_of_ops_that_a_function_defines() -> None:
    """`with_rule` marks results; a rule that gives None passes nothing on."""

    def apply(session: Any, inputs: Any) -> Any:
        del session
        (x,) = inputs
        (y,) = with_rule("double", [x], [x * 2], lambda operands, gs: [gs[0] * 10])
        (z,) = with_rule("none", [x], [x * 3], lambda operands, gs: [None])
        return [y + z]

    made = backward_of(apply, [(A.dtype, 1)], [True], [True])
    assert made.inputs == (False, False, True)
    assert run(made, None, None, B)[0].tolist() == (B * 10).tolist()
