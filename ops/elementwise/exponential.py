"""Roots, exponentials and logarithms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from opkiln import ops
from opkiln.ops import signatures as sig
from opkiln.ops.defs import OpRow
from opkiln.ops.elementwise.presets import transcendental


def _along(g: Any, a: Any, b: Any) -> tuple[Any, Any]:
    return g * a, g * b


def _shares(g: Any, a: Any, b: Any, scale: float) -> tuple[Any, Any]:
    """Of the logarithm of a sum of two powers of e ** scale; half each where both are infinite."""
    gap = np.where(a == b, 0, a - b) * scale
    return g * ops.expit(gap), g * ops.expit(-gap)


# fmt: off
ROWS: tuple[OpRow, ...] = (
    OpRow("sqrt", 1, np.sqrt, sig.by_result, "ok_sqrt({0})", accepts="f", cost=3,
          domain=(0.0, 64.0),
          gradient=lambda g, y, a: (g / (y + y),)),
    transcendental("cbrt", 1, np.cbrt, expr="ok_cbrt({0})", cost=17, domain=(-1e6, 1e6),
          gradient=lambda g, y, a: (g / (3 * y * y),)),
    transcendental("hypot", 2, np.hypot, expr="ok_hypot({0}, {1})", cost=11,
          gradient=lambda g, y, a, b: _along(g / np.where(y == 0, 1, y), a, b)),
    transcendental("exp", 1, np.exp, expr="ok_exp({0})", cost=8, domain=(-80.0, 80.0),
          gradient=lambda g, y, a: (g * y,)),
    transcendental("exp2", 1, np.exp2, expr="ok_exp2({0})", cost=8, domain=(-100.0, 100.0),
          gradient=lambda g, y, a: (g * y * math.log(2.0),)),
    transcendental("expm1", 1, np.expm1, expr="ok_expm1({0})", cost=8, domain=(-40.0, 80.0),
          gradient=lambda g, y, a: (g * (y + 1),)),
    transcendental("log", 1, np.log, expr="ok_log({0})", cost=8, domain=(1e-6, 1e6),
          gradient=lambda g, y, a: (g / a,)),
    transcendental("log2", 1, np.log2, expr="ok_log2({0})", cost=8, domain=(1e-6, 1e6),
          gradient=lambda g, y, a: (g / (a * math.log(2.0)),)),
    transcendental("log10", 1, np.log10, expr="ok_log10({0})", cost=9, domain=(1e-6, 1e6),
          gradient=lambda g, y, a: (g / (a * math.log(10.0)),)),
    transcendental("log1p", 1, np.log1p, expr="ok_log1p({0})", cost=10, domain=(-0.99, 1e6),
          gradient=lambda g, y, a: (g / (a + 1),)),
    transcendental("logaddexp", 2, np.logaddexp, expr="ok_logaddexp({0}, {1})", cost=40,
          unit="operand",
          gradient=lambda g, y, a, b: _shares(g, a, b, 1.0)),
    transcendental("logaddexp2", 2, np.logaddexp2, expr="ok_logaddexp2({0}, {1})", cost=40,
          unit="operand",
          gradient=lambda g, y, a, b: _shares(g, a, b, math.log(2.0))),
)
# fmt: on
