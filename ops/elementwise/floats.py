"""Rounding and tests of floats."""

from __future__ import annotations

import numpy as np

from opkiln.ops.defs import OpRow
from opkiln.ops.elementwise.presets import near

# fmt: off
ROWS: tuple[OpRow, ...] = (
    # Integers are their own floor: these rows hold for floats, and the front end skips the rest.
    near("floor", 1, np.floor, expr="ok_floor({0})", differentiable=False),
    near("ceil", 1, np.ceil, expr="ok_ceil({0})", differentiable=False),
    near("trunc", 1, np.trunc, expr="ok_trunc({0})", differentiable=False),
    near("rint", 1, np.rint, expr="ok_rint({0})", differentiable=False),
    # tests
    near("isnan", 1, np.isnan, expr="{0} != {0}", differentiable=False),
    near("isinf", 1, np.isinf, expr="ok_isinf({0})", differentiable=False),
    near("signbit", 1, np.signbit, expr="ok_signbit({0})", differentiable=False),
    near("isfinite", 1, np.isfinite, expr="ok_isfinite({0})", differentiable=False),
)
# fmt: on
