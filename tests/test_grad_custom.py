"""ok.custom_gradient: rules that the user defines, in every order, beside others and alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.test_grad import derived, summed

import opkiln as ok
from opkiln import errors

X = np.array([0.5, -2.0, 3.0])


@ok.custom_gradient
def limited(x: Any) -> Any:
    """The identity, with gradients of at most 1."""
    g = yield x
    yield np.clip(g, -1, 1)


@ok.custom_gradient
def product(x: Any, y: Any) -> Any:
    g = yield x * y
    yield g * y, g * x


@ok.custom_gradient
def cubed(x: Any) -> Any:
    """In the form of a pair."""
    return x**3, lambda g: g * 3 * x**2


@ok.custom_gradient
def both(x: Any, y: Any) -> Any:
    """Several results; cotangents that nothing sends are zeros of their dtype."""
    a, b = yield x + y, {"p": [x * y]}
    assert b["p"][0].dtype == x.dtype
    yield a + b["p"][0] * y, a + b["p"][0] * x


def test_the_rule_of_the_user_is_used() -> None:
    assert derived(lambda x: (limited(x) * 3).sum(), X).tolist() == [1, 1, 1]
    assert ok.grad(lambda x: (limited(x) * X).sum())(X).tolist() == [0.5, -1, 1]
    np.testing.assert_allclose(derived(lambda x: cubed(x).sum(), X), 3 * X**2, rtol=1e-15)


def test_T9_beside_ordinary_operations() -> None:
    for fn, want in (
        (lambda x: product(x, x).sum(), 2 * X),
        (lambda x: (product(x, x) + x * x).sum(), 4 * X),
        (lambda x: (x * x).sum(), 2 * X),
    ):
        assert derived(fn, X).tolist() == want.tolist()


def test_the_rule_reads_results_that_are_at_hand() -> None:
    """What it computes as its function does is taken from the function's result."""

    @ok.custom_gradient
    def sigmoid(x: Any) -> Any:
        y = 1 / (1 + np.exp(-x))
        g = yield y
        yield g * y * (1 - y)

    _, pull = ok.vjp(sigmoid, X)
    y = 1 / (1 + np.exp(-X))
    np.testing.assert_allclose(pull(np.ones(3))[0], y * (1 - y), rtol=1e-14)
    assert "exp" not in str(pull.func.lower(*pull.args, np.ones(3)).kernels[0])


def total(tree: Any) -> Any:
    a, b = tree
    return a.sum() + b["p"][0].sum()


def test_several_results_of_which_some_get_no_cotangent() -> None:
    for dtype in ("float32", "float64"):
        x, y = X.astype(dtype), (X + 1).astype(dtype)
        for fn, want in (
            (lambda x, y: both(x, y)[0].sum(), (np.ones(3), np.ones(3))),
            (lambda x, y: both(x, y)[1]["p"][0].sum(), (y, x)),
            (lambda x, y: total(both(x, y)), (1 + y, 1 + x)),
        ):
            got = derived(fn, x, y, argnums=(0, 1))
            for own, right in zip(got, want, strict=True):
                assert own.dtype == dtype
                np.testing.assert_allclose(own, right, rtol=1e-6)


def test_second_order() -> None:
    """Rules are traced as well, and where they apply a second time they do."""
    second = lambda fn: lambda x: ok.grad(lambda x: fn(x).sum())(x).sum()  # noqa: E731
    np.testing.assert_allclose(derived(second(cubed), X), 6 * X, rtol=1e-14)
    np.testing.assert_allclose(derived(second(lambda x: cubed(x) ** 2), X), 30 * X**4, rtol=1e-13)
    assert derived(second(lambda x: limited(x) * limited(x)), X).tolist() == [2.0, 0.0, 0.0]


def test_nested_rules() -> None:
    @ok.custom_gradient
    def outer(x: Any) -> Any:
        g = yield limited(x) * 2
        yield g * ok.grad(lambda x: (limited(x) * 5).sum())(x)

    assert derived(lambda x: outer(x).sum(), X).tolist() == [1, 1, 1]


def test_None_stops_the_gradient() -> None:
    @ok.custom_gradient
    def constant(x: Any) -> Any:
        yield x
        yield None

    assert derived(lambda x: (x * constant(x)).sum(), X).tolist() == X.tolist()
    with pytest.raises(errors.GradientError, match="only through"):
        derived(lambda x: constant(x).sum(), X)


def test_K35_on_arrays_the_function_runs_as_it_is() -> None:
    np.testing.assert_array_equal(product(X, 2.0), X * 2)
    np.testing.assert_array_equal(ok.compile(lambda x: cubed(x) + both(x, x)[0])(X), X**3 + 2 * X)
    assert "custom_output" not in str(ok.compile(cubed).lower(X).graph)


def test_refusals() -> None:
    @ok.custom_gradient
    def once(x: Any) -> Any:
        yield x

    @ok.custom_gradient
    def much(x: Any) -> Any:
        yield x
        yield x, x

    @ok.custom_gradient
    def wide(x: Any) -> Any:
        yield x
        yield x[None]

    @ok.custom_gradient
    def plain(x: Any) -> Any:
        return x

    @ok.custom_gradient
    def never(x: Any) -> Any:
        if x is None:
            yield x

    @ok.custom_gradient
    def thrice(x: Any) -> Any:
        g = yield x
        yield g
        yield g

    for fn, message in (
        (never, "never yields nothing"),
        (thrice, "thrice yields more than twice"),
        (once, "once yields its result and nothing else"),
        (much, "much gave 2 cotangents for the 1 arrays of argument 0"),
        (wide, "with 2 axes for one of float64 with 1"),
        (plain, "plain returned a"),
    ):
        with pytest.raises(errors.GradientError, match=message):
            derived(summed(fn), X)


def test_values_that_a_rule_does_not_know_of_are_refused() -> None:
    def loss(x: Any, w: Any) -> Any:
        @ok.custom_gradient
        def scaled(x: Any) -> Any:
            g = yield x * w
            yield g * w

        return scaled(x).sum()

    assert derived(loss, X, X).tolist() == X.tolist()
    with pytest.raises(errors.GradientError, match=r"argument w.*no argument of it"):
        derived(loss, X, X, argnums=1)
