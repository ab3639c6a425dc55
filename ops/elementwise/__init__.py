"""The elementwise rows: facts per op, for tracing, emission, interpreter, tests and docs."""

from __future__ import annotations

from opkiln.ops.defs import OpRow
from opkiln.ops.elementwise import (
    arithmetic,
    exponential,
    floats,
    logic,
    order,
    special,
    trigonometric,
)

ROWS: tuple[OpRow, ...] = (
    *arithmetic.ROWS,
    *logic.ROWS,
    *order.ROWS,
    *floats.ROWS,
    *exponential.ROWS,
    *trigonometric.ROWS,
    *special.ROWS,
)
