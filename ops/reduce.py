"""The reduction rows: what is combined, what fills idle lanes, what an empty input gives."""

from __future__ import annotations

import numpy as np

from opkiln.ops.defs import ReduceRow

DT = np.dtype[np.generic]


def _widen_sum(dtype: DT) -> DT:
    """NumPy's accumulator of sum: integers narrower than a word widen to it."""
    # Asked of NumPy itself, once per dtype and trace.
    accumulator: DT = np.add.reduce(np.zeros(1, dtype)).dtype
    return accumulator


def _same(dtype: DT) -> DT:
    return dtype


ROWS: tuple[ReduceRow, ...] = (
    ReduceRow(
        "sum", np.add, "{0} + {1}", "zero", "identity", _widen_sum, gradient=lambda g, y, a: (g,)
    ),
    ReduceRow(
        "max", np.maximum, "ok_max({0}, {1})", "lowest", "error", _same, exactness="exact", cost=2
    ),
)
