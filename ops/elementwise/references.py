"""What functions that NumPy lacks mean: over arrays, in the widest float, without SciPy.

They serve eager calls and the interpreter, and are written for clearness and accuracy, not speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from opkiln.ops.signatures import kept

Array = npt.NDArray[Any]
Function = Callable[[Array], Any]

_where: Callable[..., Any] = np.where  # whose own type asks for more than is known here


def rounded(function: Function) -> Function:
    """The function in long double, where the machine has one, its result rounded to `kept`."""

    def reference(x: Any) -> Any:
        given = np.asarray(x)
        result_type = kept(given.dtype)
        with np.errstate(all="ignore"):
            result = np.asarray(function(given.astype(result_type).astype(np.longdouble)))
            return result.astype(result_type)[()]

    reference.__name__ = reference.__qualname__ = function.__name__.strip("_")
    return reference


def _each(function: Callable[[float], float]) -> Function:
    """A float64 function of the mathematics library over an array."""
    return np.vectorize(function, otypes=[np.float64])


_erf, _erfc = _each(math.erf), _each(math.erfc)


_ROOT_PI = np.longdouble("1.7724538509055160272981674833411451")


def _expit(x: Array) -> Any:
    e: Array = np.exp(-np.abs(x))
    return _where(x < 0, e, 1) / (1 + e)


def _times_expit(x: Array, y: Array) -> Any:
    """Give x / (1 + e^-y), whose limit at -inf is 0."""
    return _where(y == -np.inf, -0.0, x * _expit(y))


def _silu(x: Array) -> Any:
    return _times_expit(x, x)


def _erfcx(t: Array) -> Any:
    """e^(t^2) erfc(t) for t of 4 and more, by the continued fraction of Laplace."""
    below = t
    for k in range(40, 0, -1):
        below = t + k / 2 / below
    return 1 / (_ROOT_PI * below)


def _gelu(x: Array) -> Any:
    """Give x erfc(t) / 2 with t = -x / sqrt(2); what rounding t lost is put back."""
    wide = -x * np.sqrt(np.longdouble(0.5))
    t = wide.astype(np.float64)
    lost = _where(np.isfinite(t), wide - t, 0)
    tail = np.exp(-x * x / 2)
    near = _erfc(t) - 2 / _ROOT_PI * tail * lost
    far = tail * _erfcx(np.maximum(wide, 4))
    return _where(x == -np.inf, -0.0, x * _where(wide > 4, far, near) / 2)


def _gelu_tanh(x: Array) -> Any:
    # 2 sqrt(2 / pi); neither this nor 0.044715 is a float64.
    slope = np.longdouble("1.5957691216057307117597842397375274")
    return _times_expit(x, slope * x * (1 + np.longdouble("0.044715") * x * x))


def _hard_swish(x: Array) -> Any:
    return _where(x == -np.inf, -0.0, x * np.clip(x + 3, 0, 6) / 6)


def _softplus(x: Array) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _log_sigmoid(x: Array) -> Any:
    return -_softplus(-x)


def _logit(x: Array) -> Any:
    return _where(abs(x - 0.5) < 0.25, 2 * np.arctanh(2 * x - 1), np.log(x / (1 - x)))


def _erfinv(x: Array) -> Any:
    """Halley's steps on erf, of |x| above 1/2 on erfc, from the estimate of Winitzki."""
    a = np.abs(x).astype(np.float64)
    lg, c = np.log1p(-a * a), 0.147
    half = 2 / (np.pi * c) + lg / 2
    y = _where(a < 0.1, a * np.sqrt(np.pi) / 2, np.sqrt(np.sqrt(half * half - lg / c) - half))
    for _ in range(4):
        error = _where(a < 0.5, _erf(y) - a, (1 - a) - _erfc(y))
        step = error * np.sqrt(np.pi) / 2 * np.exp(y * y)
        y = y - step / (1 + y * step)
    return np.copysign(_where(a == 1, np.inf, y), x)


# Stirling's formula and its derivatives hold from here to the last place of a long double.
_FAR = 16
_BERNOULLI = [1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510]


def _stirling(x: Array, order: int) -> Any:
    """The part of log Gamma (order 0) or of its first or second derivative in powers of 1 / x."""
    total = np.zeros_like(x)
    for k, b in reversed(list(enumerate(_BERNOULLI, 1))):
        factor = [1 / (2 * k * (2 * k - 1)), -1 / (2 * k), 1][order]
        total = total / (x * x) + b * factor
    return total / x ** (1 + order)


def _below(x: Array, term: Function) -> Any:
    """The sum of term(x), term(x + 1) and so on, up to where Stirling's formula holds."""
    steps = _where(x < _FAR, _FAR, 0)
    return sum(_where(k < steps, term(x + k), 0) for k in range(_FAR))


def _raised(x: Array) -> Any:
    return _where(x < _FAR, x + _FAR, x)


def _lgamma_above(x: Array) -> Any:
    y = _raised(x)
    far = (y - 0.5) * (np.log(y) - 1) + (np.log(2 * _ROOT_PI**2) - 1) / 2 + _stirling(y, 0)
    return _where(x == np.inf, x, far - _below(x, np.log))


def _from_zero(z: Array, zero: float, slope: Function) -> Any:
    """A function at `zero` + z by the integral of its slope, which keeps the relative error."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    slopes = [slope(zero + z * (1 + t) / 2) for t in nodes]
    return z * np.tensordot(weights, slopes, 1) / 2 + 0.0  # log 1 is 0.0, not -0.0


def _off(x: Array) -> Any:
    """The distance to the nearest integer."""
    return x - np.rint(x)


def _lgamma(x: Array) -> Any:
    a = np.abs(x)
    sine = np.abs(np.sin(_ROOT_PI**2 * _off(a)))
    below = -np.log(a * sine / _ROOT_PI**2) - _lgamma_above(a)
    small = _lgamma_above(x + 1) - np.log(a)
    result = _where(a < 0.5, small, _where(x < 0, below, _lgamma_above(x)))
    for zero in (1, 2):
        z = np.clip(x - zero, -0.25, 0.25)
        result = _where(np.abs(z) < 0.25, _from_zero(z, zero, _digamma_above), result)
    return _where((x == -np.inf) | ((x < 0) & (_off(x) == 0)), np.inf, result)


_ZERO = (1.4616321449683622, 9.549995429965697e-17)  # of digamma, as a sum


def _digamma_above(x: Array) -> Any:
    y = _raised(x)
    far = np.log(y) - 1 / (2 * y) + _stirling(y, 1)
    return _where(x == np.inf, x, far - _below(x, np.reciprocal))


def _digamma(x: Array) -> Any:
    turn = _ROOT_PI**2
    below = _digamma_above(1 - x) - turn / np.tan(turn * _off(x))
    small = _digamma_above(x + 1) - 1 / x
    result = _where(np.abs(x) < 0.5, small, _where(x < 0, below, _digamma_above(x)))
    z = np.clip(x - _ZERO[0] - _ZERO[1], -0.25, 0.25)
    result = _where(np.abs(z) < 0.25, _from_zero(z, _ZERO[0], _trigamma_above), result)
    return _where((x < 0) & ~(np.abs(_off(x)) > 0), np.nan, result)


def _trigamma_above(x: Array) -> Any:
    y = _raised(x)
    far = 1 / y + 1 / (2 * y * y) + _stirling(y, 2)
    return far + _below(x, lambda x: 1 / (x * x))


def _trigamma(x: Array) -> Any:
    below = (_ROOT_PI**2 / np.sin(_ROOT_PI**2 * _off(x))) ** 2 - _trigamma_above(1 - x)
    small = _trigamma_above(x + 1) + 1 / (x * x)
    return _where(np.abs(x) < 0.5, small, _where(x < 0, below, _trigamma_above(x)))


def _sinc(x: Array) -> Any:
    """Of integers exactly 0 or 1, which sin(pi * x) misses."""
    turn = _ROOT_PI**2
    sine = np.sin(turn * _off(x)) * _where(np.rint(x) % 2 == 0, 1, -1)
    return _where(x == 0, 1, sine / (turn * x))


def relu(x: Any) -> Any:
    """max(x, 0), NaN where x is NaN; refused for bool, as +x is."""
    return np.maximum(np.positive(x), 0)


erf, erfc, expit, logit = rounded(_erf), rounded(_erfc), rounded(_expit), rounded(_logit)
silu, gelu, gelu_tanh = rounded(_silu), rounded(_gelu), rounded(_gelu_tanh)
hard_swish, softplus = rounded(_hard_swish), rounded(_softplus)
log_sigmoid, erfinv, sinc = rounded(_log_sigmoid), rounded(_erfinv), rounded(_sinc)
lgamma, digamma, trigamma = rounded(_lgamma), rounded(_digamma), rounded(_trigamma)
