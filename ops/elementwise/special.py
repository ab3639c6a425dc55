"""Special functions and activations, which NumPy lacks."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from opkiln import ops
from opkiln.ops import signatures as sig
from opkiln.ops.defs import OpRow
from opkiln.ops.elementwise import references as ref
from opkiln.ops.elementwise.presets import power_gradient

special = partial(OpRow, signature=sig.inexact, exactness="ulp", ulp=4.0, accepts="f")

_SLOPE = 2 / math.sqrt(math.pi)


def _gelu_slope(a: Any) -> Any:
    density = np.exp(a * a * -0.5) * (1 / math.sqrt(2 * math.pi))
    return ops.erfc(a * -math.sqrt(0.5)) * 0.5 + a * density


def _gelu_tanh_slope(a: Any) -> Any:
    slope = math.sqrt(8 / math.pi)
    s = ops.expit(slope * a * (1 + 0.044715 * a * a))
    return s + a * s * (1 - s) * slope * (1 + 3 * 0.044715 * a * a)


def _silu_slope(y: Any, a: Any) -> Any:
    s = ops.expit(a)
    return s + y * (1 - s)


def _hard_swish_slope(a: Any) -> Any:
    return np.where(a <= -3, 0, np.where(a >= 3, 1, (a + a + 3) / 6))


def _sinc_slope(y: Any, a: Any) -> Any:
    """Near 0, where cos(pi x) - sinc(x) cancels, by its series."""
    s: Any = (a * math.pi) ** 2
    near: Any = a * (-(math.pi**2) / 3) * (1 - s / 10 * (1 - s / 28 * (1 - s / 54 * (1 - s / 88))))
    far: Any = (np.cos(a * math.pi) - y) / ops.where(s < 0.04, 1, a)
    return ops.where(s < 0.04, near, far)


def _lgamma_unit(x: float) -> float:
    """of the result; of x < 0 of log Gamma(-x) or 1, if larger."""  # noqa: D403
    return max(math.lgamma(-x), 1.0) if x < 0 else 0.0


def _digamma_unit(x: float) -> float:
    """of the result; of x < 0 of log(1 - x) or 1, if larger."""  # noqa: D403
    return max(math.log(1 - x), 1.0) if x < 0 else 0.0


# fmt: off
ROWS: tuple[OpRow, ...] = (
    special("erf", 1, ref.erf, expr="ok_erf({0})", cost=14, domain=(-5.0, 5.0),
          gradient=lambda g, y, a: (g * _SLOPE * np.exp(-a * a),)),
    special("erfc", 1, ref.erfc, expr="ok_erfc({0})", cost=18, domain=(-5.0, 9.0),
          gradient=lambda g, y, a: (g * -_SLOPE * np.exp(-a * a),)),
    special("erfinv", 1, ref.erfinv, expr="ok_erfinv({0})", cost=16, domain=(-1.0, 1.0),
          gradient=lambda g, y, a: (g * (math.sqrt(math.pi) / 2) * np.exp(y * y),),
          doc="the inverse of erf"),
    special("lgamma", 1, ref.lgamma, expr="ok_lgamma({0})", cost=30, domain=(-4.5, 40.0),
          unit=_lgamma_unit,
          gradient=lambda g, y, a: (g * ops.digamma(a),),
          doc="log |Gamma(x)|. Near its zeros below 0, where two logarithms cancel, the error is "
              "an absolute one."),
    special("digamma", 1, ref.digamma, expr="ok_digamma({0})", cost=30, domain=(-4.5, 40.0),
          unit=_digamma_unit,
          gradient=lambda g, y, a: (g * ops.trigamma(a),),
          doc="The derivative of log |Gamma(x)|. Near its zeros below 0, where a logarithm and a "
              "cotangent cancel, the error is an absolute one."),
    special("trigamma", 1, ref.trigamma, expr="ok_trigamma({0})", cost=30, domain=(-4.5, 40.0),
          doc="The derivative of digamma. No gradient: the next derivative is no row."),
    # what NumPy has, but not as this kind of ufunc
    special("sinc", 1, ref.sinc, expr="ok_sinc({0})", cost=10, domain=(-20.0, 20.0),
          gradient=lambda g, y, a: (g * _sinc_slope(y, a),), doc="sin(pi x) / (pi x); np.sinc"),
    OpRow("float_power", 2, np.float_power, sig.by_ufunc, "ok_pow({0}, {1})", exactness="ulp",
          ulp=4.0, accepts="f", cost=24, domain=(0.05, 8.0),
          gradient=power_gradient),
    # sigmoids, and what is made of them
    special("expit", 1, ref.expit, expr="ok_expit({0})", cost=10, domain=(-80.0, 20.0),
          gradient=lambda g, y, a: (g * y * (1 - y),), doc="1 / (1 + e^-x)"),
    special("logit", 1, ref.logit, expr="ok_logit({0})", cost=14, domain=(0.0, 1.0),
          gradient=lambda g, y, a: (g / (a * (1 - a)),), doc="log(x / (1 - x))"),
    special("softplus", 1, ref.softplus, expr="ok_softplus({0})", cost=12, domain=(-80.0, 20.0),
          gradient=lambda g, y, a: (g * ops.expit(a),), doc="log(1 + e^x)"),
    special("log_sigmoid", 1, ref.log_sigmoid, expr="-ok_softplus(-{0})", cost=12,
          domain=(-20.0, 80.0),
          gradient=lambda g, y, a: (g * ops.expit(-a),), doc="log(1 / (1 + e^-x))"),
    # activations
    OpRow("relu", 1, ref.relu, sig.like_positive, "ok_relu({0})", accepts="iuf",
          ungated="zero sign",
          gradient=lambda g, y, a: (np.where(y > 0, g, 0),), doc="max(x, 0)"),
    special("gelu", 1, ref.gelu, expr="ok_gelu({0})", cost=18, domain=(-13.0, 9.0),
          gradient=lambda g, y, a: (g * _gelu_slope(a),),
          doc="x times the normal distribution function: x erfc(-x / sqrt(2)) / 2"),
    special("gelu_tanh", 1, ref.gelu_tanh, expr="ok_gelu_tanh({0})", cost=16, domain=(-9.0, 9.0),
          gradient=lambda g, y, a: (g * _gelu_tanh_slope(a),),
          doc="x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, the approximation of gelu"),
    special("silu", 1, ref.silu, expr="ok_silu({0})", cost=10, domain=(-80.0, 20.0),
          gradient=lambda g, y, a: (g * _silu_slope(y, a),), doc="x / (1 + e^-x)"),
    special("hard_swish", 1, ref.hard_swish, expr="ok_hard_swish({0})", cost=3,
          gradient=lambda g, y, a: (g * _hard_swish_slope(a),), doc="x clip(x + 3, 0, 6) / 6"),
)
# fmt: on
