"""Arithmetic rows."""

from __future__ import annotations

import numpy as np

from opkiln.ops import signatures as sig
from opkiln.ops.defs import OpRow
from opkiln.ops.elementwise.presets import (
    DIVISION_BY_ZERO,
    DIVISION_OVERFLOW,
    NEGATIVE_POWER,
    near,
    power_gradient,
    same,
)

# fmt: off
ROWS: tuple[OpRow, ...] = (
    same("add", 2, np.add, expr="{0} + {1}", exprs=(("b", "ok_or({0}, {1})"),),
          gradient=lambda g, y, a, b: (g, g)),
    same("subtract", 2, np.subtract, expr="{0} - {1}", accepts="iuf",
          gradient=lambda g, y, a, b: (g, -g)),
    same("multiply", 2, np.multiply, expr="{0} * {1}", exprs=(("b", "ok_and({0}, {1})"),),
          gradient=lambda g, y, a, b: (g * b, g * a)),
    OpRow("divide", 2, np.true_divide, sig.by_result, "{0} / {1}", accepts="f", cost=2,
          gradient=lambda g, y, a, b: (g / b, -g * y / b)),
    same("floor_divide", 2, np.floor_divide, expr="ok_floordiv({0}, {1}, {f})", accepts="iuf",
          faults=DIVISION_BY_ZERO | DIVISION_OVERFLOW, cost=20, domain=(-40.0, 40.0),
          differentiable=False),
    same("remainder", 2, np.remainder, expr="ok_mod({0}, {1}, {f})", accepts="iuf",
          faults=DIVISION_BY_ZERO, cost=20, domain=(-40.0, 40.0),
          gradient=lambda g, y, a, b: (g, -g * (a // b))),
    same("fmod", 2, np.fmod, expr="ok_fmod({0}, {1}, {f})", accepts="iuf",
          faults=DIVISION_BY_ZERO, cost=20, domain=(-40.0, 40.0),
          gradient=lambda g, y, a, b: (g, -g * np.trunc(a / b))),
    same("power", 2, np.power, expr="ok_pow({0}, {1})",
          exprs=(("i", "ok_ipow({0}, {1}, {f})"), ("u", "ok_ipow({0}, {1}, {f})")),
          faults=NEGATIVE_POWER, exactness="ulp", ulp=4.0, cost=24, accepts="iuf",
          domain=(0.05, 8.0),
          gradient=power_gradient),
    same("negative", 1, np.negative, expr="-{0}", rounds=False, accepts="iuf",
          gradient=lambda g, y, a: (-g,)),
    same("positive", 1, np.positive, expr="{0}", rounds=False, accepts="iuf", cost=0,
          gradient=lambda g, y, a: (g,)),
    same("absolute", 1, np.absolute, expr="ok_abs({0})", exprs=(("b", "{0}"), ("u", "{0}")),
          rounds=False, gradient=lambda g, y, a: (g * np.sign(a),)),
    same("sign", 1, np.sign, expr="ok_sign({0})", rounds=False, differentiable=False, accepts="iuf",
          exprs=(("bfloat16", "ok_copysign(ok_sign({0}), {0})"),)),  # ml_dtypes keeps -0.0
    near("copysign", 2, np.copysign, expr="ok_copysign({0}, {1})", rounds=False,
          gradient=lambda g, y, a, b: (g * np.sign(a) * np.sign(y), None)),
    same("square", 1, np.square, expr="{0} * {0}", accepts="iuf",
          gradient=lambda g, y, a: (g * (a + a),)),
    same("reciprocal", 1, np.reciprocal, expr="ok_recip({0}, {f})", exprs=(("f", "1 / {0}"),),
          accepts="iuf", faults=DIVISION_BY_ZERO, cost=2, domain=(0.1, 8.0),
          gradient=lambda g, y, a: (-g * y * y,)),
    same("gcd", 2, np.gcd, expr="ok_gcd({0}, {1})", accepts="iu", cost=100, differentiable=False),
    same("lcm", 2, np.lcm, expr="ok_lcm({0}, {1})", accepts="iu", cost=120, differentiable=False),
)
# fmt: on
