"""The functions that NumPy lacks: against mpmath, SciPy, torch, and at the special values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from tests import truth
from tests.special_truth import TRUE, sample

import opkiln as ok
from opkiln.ops.table import ELEMENTWISE

Array = np.ndarray[Any, np.dtype[Any]]
DTYPES = [np.float32, np.float64]
INF, NAN = np.inf, np.nan


def every_function(operands: dict[str, Array]) -> dict[str, Any]:
    """All functions in one trace: their kernels make one translation unit."""
    return {name: getattr(ok.ops, name)(x) for name, x in operands.items()}


@pytest.fixture(scope="module")
def compiled() -> Callable[[dict[str, Array]], dict[str, Array]]:
    return ok.compile(every_function)


@pytest.mark.parametrize("dtype", DTYPES)
def test_within_the_declared_distance_of_the_truth(compiled: Any, dtype: Any) -> None:
    """The kernels, and the references that serve eager calls and the interpreter."""
    operands = {name: sample(name, dtype, 400) for name in TRUE}
    for results in (compiled(operands), every_function(operands)):
        for name, x in operands.items():
            got, row = results[name], ELEMENTWISE[name]
            assert got.dtype == dtype
            error, at = truth.worst(row, got, (x,), np.arange(x.size))
            assert error <= row.ulp, (name, error, at)


# x and what the function gives there, with the sign of a zero.
SPECIAL: dict[str, list[tuple[float, float]]] = {
    "erfc": [(0.0, 1), (-0.0, 1), (INF, 0.0), (-INF, 2), (NAN, NAN), (1e30, 0.0), (-1e30, 2)],
    "erfinv": [
        *[(0.0, 0.0), (-0.0, -0.0), (1, INF), (-1, -INF)],
        *[(1.5, NAN), (-1e30, NAN), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    ],
    "lgamma": [
        *[(0.0, INF), (-0.0, INF), (1, 0.0), (2, 0.0), (-1, INF), (-2, INF), (-1e30, INF)],
        *[(INF, INF), (-INF, INF), (NAN, NAN)],
    ],
    "digamma": [
        *[(0.0, -INF), (-0.0, INF), (-1, NAN), (-7, NAN), (-1e30, NAN)],
        *[(INF, INF), (-INF, NAN), (NAN, NAN)],
    ],
    "trigamma": [(0.0, INF), (-0.0, INF), (-1, INF), (INF, 0.0), (-INF, NAN), (NAN, NAN)],
    "sinc": [(0.0, 1), (-0.0, 1), (1, -0.0), (1e30, 0.0), (INF, NAN), (NAN, NAN)],
    "expit": [(0.0, 0.5), (INF, 1), (-INF, 0.0), (NAN, NAN), (1e30, 1), (-1e30, 0.0)],
    "logit": [
        *[(0.0, -INF), (-0.0, -INF), (0.5, 0.0), (1, INF)],
        *[(-1e-30, NAN), (1.5, NAN), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    ],
    "softplus": [(INF, INF), (-INF, 0.0), (NAN, NAN), (1e30, 1e30), (-1e30, 0.0)],
    "log_sigmoid": [(INF, -0.0), (-INF, -INF), (NAN, NAN), (-1e30, -1e30), (1e30, -0.0)],
    "gelu": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -0.0), (NAN, NAN), (1e30, 1e30)],
    "gelu_tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -0.0), (NAN, NAN), (-1e30, -0.0)],
    "silu": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -0.0), (NAN, NAN), (-1e30, -0.0)],
    "hard_swish": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -0.0), (NAN, NAN), (3, 3)],
    "relu": [(INF, INF), (-INF, 0.0), (NAN, NAN), (-1, 0.0), (1e-45, 1e-45)],
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(compiled: Any, dtype: Any) -> None:
    operands = {name: np.array([x for x, _ in rows], dtype) for name, rows in SPECIAL.items()}
    for results in (compiled(operands), every_function(operands)):
        for name, rows in SPECIAL.items():
            want = np.array([y for _, y in rows], dtype)
            np.testing.assert_array_equal(results[name], want, err_msg=name)
            kept = ~np.isnan(want) if name != "relu" else want != 0
            np.testing.assert_array_equal(
                np.signbit(results[name])[kept], np.signbit(want)[kept], err_msg=name
            )


def test_scipy_and_torch_agree(compiled: Any) -> None:
    """On a grid over the whole range; SciPy's own error is a few units here and there."""
    scipy = pytest.importorskip("scipy.special")
    torch = pytest.importorskip("torch")
    of = torch.nn.functional

    def by_torch(function: Any) -> Callable[[Array], Array]:
        return lambda x: function(torch.from_numpy(x)).numpy()

    others: dict[str, Callable[[Array], Array]] = {
        "erf": scipy.erf,
        "erfc": scipy.erfc,
        "erfinv": scipy.erfinv,
        "lgamma": scipy.gammaln,
        "digamma": scipy.digamma,
        "trigamma": lambda x: scipy.polygamma(1, x),
        "sinc": np.sinc,
        "expit": scipy.expit,
        "logit": scipy.logit,
        "log_sigmoid": scipy.log_expit,
        "softplus": lambda x: -scipy.log_expit(-x),
        "relu": by_torch(of.relu),
        "gelu": by_torch(of.gelu),
        "gelu_tanh": by_torch(lambda x: of.gelu(x, approximate="tanh")),
        "silu": by_torch(of.silu),
        "hard_swish": by_torch(of.hardswish),
    }
    # torch loses the tails of gelu to cancellation, the others what lies near a zero
    slack = {"gelu": 1e-15, "gelu_tanh": 1e-15, "lgamma": 1e-13, "digamma": 1e-13, "sinc": 1e-15}
    operands = {name: np.sort(sample(name, np.float64, 20_000, seed=1)) for name in TRUE}
    operands["relu"] = operands["hard_swish"]
    for name in ("lgamma", "digamma", "trigamma"):  # the neighbourhood of the poles is SciPy's own
        x = operands[name]
        operands[name] = x[(x > 0) | (abs(x - np.rint(x)) > 1e-2)]
    for name, got in compiled(operands).items():
        np.testing.assert_allclose(
            got,
            others[name](operands[name]),
            rtol=2e-13,
            atol=slack.get(name, 1e-300),
            err_msg=name,
        )


def test_gradients_are_the_derivatives() -> None:
    """Each row's rule over arrays and over traced values, against mpmath's numerical derivative."""
    names = [name for name in TRUE if ELEMENTWISE[name].gradient]
    operands = {name: sample(name, np.float64, 60, seed=2) for name in names}
    x = operands["hard_swish"]
    operands["hard_swish"] = x[abs(abs(x) - 3) > 1e-3]  # off the corners

    def slopes(operands: dict[str, Array]) -> dict[str, Any]:
        found = {}
        for name, x in operands.items():
            rule: Any = ELEMENTWISE[name].gradient
            found[name] = rule(2.0, getattr(ok.ops, name)(x), x)[0]
        return found

    for results in (slopes(operands), ok.compile(slopes)(operands)):
        for name, x in operands.items():
            with mp.workdps(40):
                want = [2 * float(mp.diff(TRUE[name], mp.mpf(float(v)))) for v in x]
            np.testing.assert_allclose(results[name], want, rtol=1e-11, atol=1e-13, err_msg=name)


def test_dtypes() -> None:
    """Half and single stay, integers become float64, as does a number; complex is refused."""
    f = ok.compile(ok.ops.erfc)
    for dtype, result in ((np.int8, "f8"), (np.uint64, "f8"), (np.bool_, "f8"), ("f4", "f4")):
        x = np.ones(3, dtype)
        assert f(x).dtype == ok.ops.erfc(x).dtype == result
        np.testing.assert_allclose(f(x), ok.ops.erfc(x), rtol=3e-7)
    assert ok.ops.erfc(np.ones(3, np.float16)).dtype == np.float16
    assert ok.ops.erfc(1) == pytest.approx(0.15729920705028513, rel=1e-15)
    for bad in (1j, "a", None):
        with pytest.raises(TypeError, match="real numbers"):
            ok.ops.erfc(bad)


def test_sinc_by_its_numpy_name() -> None:
    x = np.array([0, 1, 2.5, -3.25], np.float32)
    got = ok.compile(np.sinc)(x)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, ok.ops.sinc(x))


def test_relu_keeps_integers_and_refuses_bool() -> None:
    f = ok.compile(ok.ops.relu)
    for dtype in (np.int8, np.int64, np.uint16):
        x = np.arange(5).astype(dtype) - np.array(2).astype(dtype)
        assert f(x).dtype == dtype
        np.testing.assert_array_equal(f(x), np.maximum(x, 0))
        np.testing.assert_array_equal(ok.ops.relu(x), np.maximum(x, 0))
    for call in (f, ok.ops.relu):
        with pytest.raises(TypeError):
            call(np.ones(3, np.bool_))


def test_a_byte_swapped_operand_gives_a_native_result() -> None:
    x = np.array([0.5, -2.0], ">f4")
    got = ok.ops.erf(x)
    np.testing.assert_array_equal(got, ok.ops.erf(x.astype(np.float32)))
    assert got.dtype.isnative
