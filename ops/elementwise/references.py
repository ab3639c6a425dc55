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


def rounded(function: Function) -> Function:
    """The function in long double, where the machine has one, its result rounded to `kept`."""

    def reference(x: Any) -> Any:
        given = np.asarray(x)
        result_type = kept(given.dtype)
        with np.errstate(all="ignore"):
            result = np.asarray(function(given.astype(np.longdouble)))
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
    return np.where(x < 0, e, 1) / (1 + e)


def _times_expit(x: Array, y: Array) -> Any:
    """Give x / (1 + e^-y), whose limit at -inf is 0."""
    return np.where(y == -np.inf, -0.0, x * _expit(y))


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
    lost = np.where(np.isfinite(t), wide - t, 0)
    tail = np.exp(-x * x / 2)
    near = _erfc(t) - 2 / _ROOT_PI * tail * lost
    far = tail * _erfcx(np.maximum(wide, 4))
    return np.where(x == -np.inf, -0.0, x * np.where(wide > 4, far, near) / 2)


def _gelu_tanh(x: Array) -> Any:
    # 2 sqrt(2 / pi); neither this nor 0.044715 is a float64.
    slope = np.longdouble("1.5957691216057307117597842397375274")
    return _times_expit(x, slope * x * (1 + np.longdouble("0.044715") * x * x))


def _hard_swish(x: Array) -> Any:
    return np.where(x == -np.inf, -0.0, x * np.clip(x + 3, 0, 6) / 6)


def _softplus(x: Array) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _log_sigmoid(x: Array) -> Any:
    return -_softplus(-x)


def _logit(x: Array) -> Any:
    return np.where(abs(x - 0.5) < 0.25, 2 * np.arctanh(2 * x - 1), np.log(x / (1 - x)))


def relu(x: Any) -> Any:
    """max(x, 0), NaN where x is NaN; refused for bool, as +x is."""
    return np.maximum(np.positive(x), 0)


erf, erfc, expit, logit = rounded(_erf), rounded(_erfc), rounded(_expit), rounded(_logit)
silu, gelu, gelu_tanh = rounded(_silu), rounded(_gelu), rounded(_gelu_tanh)
hard_swish, softplus = rounded(_hard_swish), rounded(_softplus)
log_sigmoid = rounded(_log_sigmoid)
