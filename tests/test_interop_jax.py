"""JAX arrays: what goes in, what comes out, what is refused and with what advice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.interop import double, refused, total

import opkiln as ok
from opkiln.runtime import errors


@pytest.fixture(name="jnp")
def jax_numpy() -> Any:
    return pytest.importorskip("jax.numpy")


def test_values(jnp: Any) -> None:
    import jax

    for dtype in ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float32"):
        x = jnp.ones(3, dtype)
        result = double(x)
        assert isinstance(result, jax.Array)
        assert result.dtype == x.dtype
        np.testing.assert_array_equal(result, x + x)
    square = jnp.arange(12.0).reshape(3, 4)
    for x in (square, square.T, square[::-1, ::2], jnp.float32(2), jnp.ones((0, 3))):
        for _ in range(2):
            result = double(x)
            assert (type(result), result.shape) == (type(x), x.shape)
            np.testing.assert_array_equal(result, x + x)
    for other in (2, 2.0, np.float32(2), np.full(3, 2, np.float32)):
        assert isinstance(total(jnp.ones(3), other), jax.Array)
        assert isinstance(total(other, jnp.ones(3)), jax.Array)
    parts = ok.compile(lambda x: {"sum": x.sum(), "n": x.shape[0]})(jnp.ones(3))
    assert isinstance(parts["sum"], jax.Array)
    assert (parts["sum"].shape, parts["n"]) == ((), 3)


def test_keeps_to_its_32_bits(jnp: Any) -> None:
    import jax

    third = ok.compile(lambda x: x / 3)
    x = jnp.arange(3)
    assert third(np.asarray(x)).dtype == np.float64
    assert third(x).dtype == jnp.float32
    with jax.enable_x64(True):
        assert third(x).dtype == jnp.float64


def test_arrays_are_immutable(jnp: Any) -> None:
    x = jnp.ones(3)
    refused(x, errors.ReadOnlyError, "read-only", "returned", out=x)
    assert x.tolist() == [1, 1, 1]


def test_waits_for_its_arrays(jnp: Any) -> None:
    """F093: dispatch is asynchronous, so the memory is not ready when the array is there."""
    import jax

    @jax.jit
    def slow(x):
        return jax.lax.fori_loop(0, 500, lambda i, a: a + 1, x)

    x = jnp.zeros(200_000)
    slow(x).block_until_ready()
    for _ in range(3):
        np.testing.assert_array_equal(double(slow(x)), np.full(200_000, 1000, np.float32))


def test_refused(jnp: Any) -> None:
    import jax

    refused(jnp.ones(3, jnp.float8_e5m2), errors.UnsupportedDType, "bits", "float32")
    refused(jnp.ones(3, jnp.int4), errors.ArgumentError, "S4")
    gone = jnp.ones(3)
    gone.delete()
    refused(gone, errors.ArgumentError, "memory of a ArrayImpl")
    refused(jax.random.key(0), errors.ArgumentError, "PRNGKeyArray")
    for transform in (jax.jit, jax.vmap, jax.grad):
        with pytest.raises(errors.ArgumentError, match=r"tracing(.|\n)*pure_callback"):
            transform(double)(1.0 if transform is jax.grad else jnp.ones(3))
    called = jax.jit(lambda x: jax.pure_callback(double, x, x))(jnp.ones(3))
    assert called.tolist() == [2, 2, 2]


def test_captures(jnp: Any) -> None:
    w = jnp.arange(3.0)
    for f in (lambda x: x + w, lambda x: np.add(w, x)):
        assert ok.compile(f)(np.ones(3)).tolist() == [1, 2, 3]
    assert ok.compile(lambda x: w)(jnp.ones(1)).tolist() == [0, 1, 2]
    with pytest.raises(errors.TraceError, match=r"JAX(.|\n)*np\.add") as caught:
        ok.compile(lambda x: w + x)(np.ones(3))
    assert __file__ in str(caught.value)


def test_two_libraries_in_one_call(jnp: Any) -> None:
    torch = pytest.importorskip("torch")
    for x, y in ((torch.ones(3), jnp.ones(3)), (jnp.ones(3), torch.ones(3))):
        with pytest.raises(errors.ArgumentError, match=r"'y': (.|\n)*one library(.|\n)*convert"):
            total(x, y)
    out = torch.zeros(3)
    assert double(jnp.ones(3), out=out) is out
    assert out.tolist() == [2, 2, 2]
