"""ok.stop_gradient: values as they are, constants to every gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

import opkiln as ok

X = np.array([[1.0, 2.0, 2.0], [3.0, 4.0, -1.0]])
T = np.eye(2, 3)


def entropy(s: Any, stop: Any) -> Any:
    s = s - stop(s.max(axis=1, keepdims=True))
    return (np.log(np.exp(s).sum(axis=1)) - (s * T).sum(axis=1)).mean()


def test_it_is_a_constant() -> None:
    assert ok.grad(lambda x: (x * ok.stop_gradient(x)).sum())(X).tolist() == X.tolist()
    assert ok.grad(lambda x: ok.stop_gradient(x * x).sum())(X).tolist() == np.zeros((2, 3)).tolist()
    found = ok.grad(lambda x: (x * ok.stop_gradient({"a": [x, 2.0]})["a"][0]).sum())(X)
    assert found.tolist() == X.tolist()


def test_it_changes_no_value() -> None:
    assert ok.stop_gradient(X) is X
    kept: Any = ok.stop_gradient((1.5, None))
    assert kept == (1.5, None)
    assert ok.compile(lambda x: ok.stop_gradient(x) + 1)(X).tolist() == (X + 1).tolist()


def test_in_higher_orders() -> None:
    """Of x * x * c the second derivative is 2 c, and c has none."""

    def cubic(x: Any) -> Any:
        return (x * x * ok.stop_gradient(x)).sum()

    twice = ok.grad(lambda x: ok.grad(cubic)(x).sum())
    assert twice(X).tolist() == (2 * X).tolist()


def test_a_softmax_whose_maximum_is_stopped() -> None:
    """The gradient is the same, and nothing is computed of that of the maximum."""
    stopped = ok.grad(lambda s: entropy(s, ok.stop_gradient))
    whole = ok.grad(lambda s: entropy(s, lambda v: v))
    e = np.exp(X - X.max(axis=1, keepdims=True))
    want = (e / e.sum(axis=1, keepdims=True) - T) / 2
    np.testing.assert_allclose(stopped(X), want, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(whole(X), want, rtol=1e-13, atol=1e-15)
    assert "equal" in str(whole.lower(X).kernels[0])
    assert "equal" not in str(stopped.lower(X).kernels[0])
