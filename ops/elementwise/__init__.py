"""The elementwise rows: facts per op, for tracing, emission, interpreter, tests and docs."""

from __future__ import annotations

from opkiln.ops.defs import OpRow
from opkiln.ops.elementwise import (
    arithmetic,
    complex,
    exponential,
    floats,
    logic,
    order,
    special,
    trigonometric,
)

_REAL: tuple[OpRow, ...] = (
    *arithmetic.ROWS,
    *logic.ROWS,
    *order.ROWS,
    *floats.ROWS,
    *exponential.ROWS,
    *trigonometric.ROWS,
    *special.ROWS,
)
ROWS: tuple[OpRow, ...] = (*map(complex.over_complex, _REAL), *complex.ROWS)
