"""Rounding and tests of floats."""

from __future__ import annotations

import numpy as np

from opkiln.ops.defs import OpRow
from opkiln.ops.elementwise.presets import near
from opkiln.ops.signatures import Part

# fmt: off
ROWS: tuple[OpRow, ...] = (
    # Integers are their own floor: these rows hold for floats, and the front end skips the rest.
    near("floor", 1, np.floor, expr="ok_floor({0})", rounds=False, differentiable=False),
    near("ceil", 1, np.ceil, expr="ok_ceil({0})", rounds=False, differentiable=False),
    near("trunc", 1, np.trunc, expr="ok_trunc({0})", rounds=False, differentiable=False),
    near("rint", 1, np.rint, expr="ok_rint({0})", rounds=False, differentiable=False),
    # parts of floats
    near("fabs", 1, np.fabs, expr="ok_abs({0})", rounds=False,
          gradient=lambda g, y, a: (g * np.sign(a),)),
    near("frexp_mantissa", 1, Part(np.frexp, 0), expr="ok_frexp_mantissa({0})", cost=3,
          rounds=False, gradient=lambda g, y, a: (np.ldexp(g, -np.frexp(a)[1]),)),
    near("frexp_exponent", 1, Part(np.frexp, 1), expr="ok_frexp_exponent({0})", cost=3,
          differentiable=False),
    near("modf_fraction", 1, Part(np.modf, 0), expr="ok_fraction({0})", cost=2,
          gradient=lambda g, y, a: (g,)),
    near("modf_whole", 1, Part(np.modf, 1), expr="ok_trunc({0})", rounds=False,
          differentiable=False),
    near("ldexp", 2, np.ldexp, expr="ok_ldexp({0}, {1})", cost=5,
          gradient=lambda g, y, a, n: (np.ldexp(g, n), None)),
    near("nextafter", 2, np.nextafter, expr="ok_nextafter({0}, {1})", cost=2,
          exprs=(("float16", "ok_nextafter_f16({0}, {1})"),
                 ("bfloat16", "ok_nextafter_bf16({0}, {1})")),
          rounds=False, differentiable=False),
    near("spacing", 1, np.spacing, expr="ok_spacing({0})",
          exprs=(("float16", "ok_spacing_f16({0})"), ("bfloat16", "ok_spacing_bf16({0})")),
          rounds=False, differentiable=False),
    near("heaviside", 2, np.heaviside, expr="ok_heaviside({0}, {1})",
          gradient=lambda g, y, a, h: (None, np.where(a == 0, g, 0))),
    # units of angles
    near("deg2rad", 1, np.deg2rad, expr="ok_deg2rad({0})",
          gradient=lambda g, y, a: (np.deg2rad(g),)),
    near("radians", 1, np.radians, expr="ok_deg2rad({0})",
          gradient=lambda g, y, a: (np.radians(g),)),
    near("rad2deg", 1, np.rad2deg, expr="ok_rad2deg({0})",
          gradient=lambda g, y, a: (np.rad2deg(g),)),
    near("degrees", 1, np.degrees, expr="ok_rad2deg({0})",
          gradient=lambda g, y, a: (np.degrees(g),)),
    # tests
    near("isnan", 1, np.isnan, expr="{0} != {0}", differentiable=False),
    near("isinf", 1, np.isinf, expr="ok_isinf({0})", differentiable=False),
    near("signbit", 1, np.signbit, expr="ok_signbit({0})", differentiable=False),
    near("isfinite", 1, np.isfinite, expr="ok_isfinite({0})", differentiable=False),
)
# fmt: on
