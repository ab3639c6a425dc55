"""Trigonometric and hyperbolic functions."""

from __future__ import annotations

import numpy as np

from opkiln.ops.defs import OpRow
from opkiln.ops.elementwise.presets import transcendental

# fmt: off
ROWS: tuple[OpRow, ...] = (
    transcendental("tanh", 1, np.tanh, expr="ok_tanh({0})", cost=9,
          gradient=lambda g, y, a: (g * (1 - y * y),)),
    transcendental("sin", 1, np.sin, expr="ok_sin({0})", cost=12, domain=(-100.0, 100.0),
          gradient=lambda g, y, a: (g * np.cos(a),)),
    transcendental("cos", 1, np.cos, expr="ok_cos({0})", cost=12, domain=(-100.0, 100.0),
          gradient=lambda g, y, a: (-g * np.sin(a),)),
)
# fmt: on
