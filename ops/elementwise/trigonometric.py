"""Trigonometric and hyperbolic functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from opkiln.ops.defs import OpRow
from opkiln.ops.elementwise.presets import transcendental


def _arctan2_gradient(g: Any, y: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """0 at the origin; squares of a and b might overflow, or vanish."""
    r = np.hypot(a, b)
    r = np.where(r == 0, 1, r)
    return g * (b / r / r), -g * (a / r / r)


# fmt: off
ROWS: tuple[OpRow, ...] = (
    transcendental("sin", 1, np.sin, expr="ok_sin({0})", cost=12, domain=(-100.0, 100.0),
          gradient=lambda g, y, a: (g * np.cos(a),)),
    transcendental("cos", 1, np.cos, expr="ok_cos({0})", cost=12, domain=(-100.0, 100.0),
          gradient=lambda g, y, a: (-g * np.sin(a),)),
    transcendental("tan", 1, np.tan, expr="ok_tan({0})", cost=13, domain=(-100.0, 100.0),
          gradient=lambda g, y, a: (g * (1 + y * y),)),
    transcendental("arcsin", 1, np.arcsin, expr="ok_arcsin({0})", cost=11, domain=(-1.0, 1.0),
          gradient=lambda g, y, a: (g / np.sqrt((1 - a) * (1 + a)),)),
    transcendental("arccos", 1, np.arccos, expr="ok_arccos({0})", cost=12, domain=(-1.0, 1.0),
          gradient=lambda g, y, a: (-g / np.sqrt((1 - a) * (1 + a)),)),
    transcendental("arctan", 1, np.arctan, expr="ok_arctan({0})", cost=14,
          gradient=lambda g, y, a: (g / (1 + a * a),)),
    transcendental("arctan2", 2, np.arctan2, expr="ok_arctan2({0}, {1})", cost=20,
          gradient=_arctan2_gradient),
    transcendental("sinh", 1, np.sinh, expr="ok_sinh({0})", cost=12, domain=(-80.0, 80.0),
          gradient=lambda g, y, a: (g * np.cosh(a),)),
    transcendental("cosh", 1, np.cosh, expr="ok_cosh({0})", cost=11, domain=(-80.0, 80.0),
          gradient=lambda g, y, a: (g * np.sinh(a),)),
    transcendental("tanh", 1, np.tanh, expr="ok_tanh({0})", cost=9,
          gradient=lambda g, y, a: (g * (1 - y * y),)),
    transcendental("arcsinh", 1, np.arcsinh, expr="ok_arcsinh({0})", cost=18,
          gradient=lambda g, y, a: (g / np.sqrt(a * a + 1),)),
    transcendental("arccosh", 1, np.arccosh, expr="ok_arccosh({0})", cost=18, domain=(1.0, 64.0),
          gradient=lambda g, y, a: (g / np.sqrt((a - 1) * (a + 1)),)),
    transcendental("arctanh", 1, np.arctanh, expr="ok_arctanh({0})", cost=16, domain=(-1.0, 1.0),
          gradient=lambda g, y, a: (g / ((1 - a) * (1 + a)),)),
)
# fmt: on
