"""ok.torch_function: compiled functions in torch's autograd, against torch itself."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import opkiln as ok

torch = pytest.importorskip("torch")

SMOOTH = ok.torch_function(lambda x, w: (np.tanh(x * w) + np.exp(w), (x * w).sum(axis=1)))


def tensors(*shapes: tuple[int, ...]) -> list[Any]:
    generator = torch.Generator().manual_seed(3)
    made = [torch.rand(s, dtype=torch.float64, generator=generator) for s in shapes]
    return [t.requires_grad_() for t in made]


def test_gradcheck() -> None:
    for shapes in (((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (1, 4))):
        assert torch.autograd.gradcheck(SMOOTH, tensors(*shapes))


def test_double_backward() -> None:
    assert torch.autograd.gradgradcheck(SMOOTH, tensors((2, 3), (3,)))


def test_beside_operations_of_torch() -> None:
    def network(x: Any, w: Any, act: Any) -> Any:
        return (act(x * w) ** 2).sum()

    x, w = tensors((5,), (5,))
    want = torch.autograd.grad(network(x, w, torch.sigmoid), (x, w))
    got = torch.autograd.grad(network(x, w, ok.torch_function(ok.ops.expit)), (x, w))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_only_what_the_backward_reads_is_kept() -> None:
    """Of exp the result, of a sum nothing, of a product both operands."""
    x, y = tensors((4,), (4,))
    for fn, args, kept in (
        (np.exp, (x,), 1),
        (lambda x, y: x + y, (x, y), 0),
        (lambda x, y: x * y, (x, y), 2),
        (lambda x, y: x * y, (x, y.detach()), 1),
    ):
        result = ok.torch_function(fn)(*args)
        assert len(result.grad_fn.saved_tensors) == kept


def test_trees_integers_and_keywords() -> None:
    @ok.torch_function
    def fn(tree: Any, k: int, *, scale: Any) -> Any:
        return {"a": [tree["x"] * scale * k], "n": tree["x"] > 0}

    x, s = tensors((3,), ())
    result = fn({"x": x, "i": torch.arange(3)}, 2, scale=s)
    assert not result["n"].requires_grad
    result["a"][0].sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 2 * s.item(), dtype=torch.float64))
    torch.testing.assert_close(s.grad, 2 * x.detach().sum())


def test_without_gradients_it_is_the_compiled_function() -> None:
    double = ok.torch_function(lambda x: x * 2)
    x = torch.ones(3)
    assert not double(x).requires_grad
    with torch.no_grad():
        assert not double(x.requires_grad_()).requires_grad
    assert double(x).grad_fn is not None


def test_results_that_get_no_gradient() -> None:
    x, w = tensors((3, 4), (4,))
    SMOOTH(x, w)[1].sum().backward()
    torch.testing.assert_close(x.grad, w.detach().expand(3, 4))


def test_half_types() -> None:
    x = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    ok.torch_function(lambda x: np.exp(x).sum())(x).backward()
    assert x.grad.dtype == torch.bfloat16


def test_T5_a_sum_frees_what_it_was_made_of() -> None:
    """Forward temporaries are dead after the forward; the gradient comes of sizes alone."""
    add = ok.torch_function(lambda a, b: a + b)
    a, b = tensors((42,), (5, 42))
    left, right = a * 2, b * 2
    dead = [weakref.ref(left), weakref.ref(right)]
    result = add(left, right)
    del left, right
    assert [r() for r in dead] == [None, None]
    g = torch.rand(5, 42, dtype=torch.float64)
    result.backward(g)
    torch.testing.assert_close(a.grad, 2 * g.sum(0))
    torch.testing.assert_close(b.grad, 2 * g)


def test_static_parameters() -> None:
    summed = ok.torch_function(ok.compile(lambda x, axis: (x**2).sum(axis), static="axis"))
    (x,) = tensors((3, 4))
    for axis in (0, 1, 0):
        g = torch.autograd.grad(summed(x, axis).sum(), x)[0]
        torch.testing.assert_close(g, 2 * x)


class Layer:
    """Has a weight, and a function of torch as a method."""

    def __init__(self, weight: Any) -> None:
        self.weight = weight

    @ok.torch_function
    def scaled(self, x: Any) -> Any:
        return np.tanh(x * self.weight) * x


def test_binds_as_a_method() -> None:
    weights = [np.full(3, 1.28125), np.array([0.5, -1.0, 2.0])]
    for weight in weights:
        (x,) = tensors((3,))
        want = torch.tanh(x * torch.from_numpy(weight)) * x
        got = Layer(weight).scaled(x)  # its layer lives as long as the graph
        slopes = [torch.autograd.grad(r.sum(), x, create_graph=True)[0] for r in (got, want)]
        torch.testing.assert_close(*slopes)
        torch.testing.assert_close(*(torch.autograd.grad(s.sum(), x)[0] for s in slopes))
    layer = Layer(weights[0])
    assert layer.scaled.__self__ is layer
    assert layer.scaled.__func__ is Layer.scaled
    layer.scaled(x)
    gone = weakref.ref(layer)
    del layer, got, want, slopes
    gc.collect()
    assert gone() is None


def test_info_and_explain_cover_the_backward() -> None:
    fn = ok.torch_function(lambda x: np.tanh(x * 1.28125) * x)
    x = torch.ones(5, dtype=torch.float64)
    fn(x)
    fn(x)
    assert (fn.info().calls, fn.info().hits, fn.info().traces) == (2, 1, 1)
    assert [part.name for part in fn.explain()] == [fn.__qualname__]
    fn(x.requires_grad_()).sum().backward()
    assert (fn.info().calls, fn.info().builds + fn.info().disk_hits) == (4, 2)
    forward, backward = (part for part in fn.explain() if part)
    assert len(forward) == len(backward) == 1
    assert backward.name == f"backward({forward.name})"
