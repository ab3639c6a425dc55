"""The op table: every elementwise and reduction row by name, checked for duplicates once."""

from __future__ import annotations

from typing import Any

import numpy as np

from opkiln.ops import elementwise, reduce
from opkiln.ops.defs import OpRow, ReduceRow, Signature
from opkiln.ops.dtypes import SUPPORTED


def _index(rows: tuple[Any, ...]) -> dict[str, Any]:
    table = {row.name: row for row in rows}
    if len(table) != len(rows):
        names = [row.name for row in rows]
        raise ValueError(
            f"op table: rows defined twice: {sorted({n for n in names if names.count(n) > 1})}"
        )
    return table


ELEMENTWISE: dict[str, OpRow] = _index(elementwise.ROWS)
REDUCTIONS: dict[str, ReduceRow] = _index(reduce.ROWS)

# How a traced NumPy call finds its row.
REDUCTION_OF: dict[np.ufunc, ReduceRow] = {row.numpy: row for row in reduce.ROWS if not row.finds}
BY_UFUNC: dict[np.ufunc, OpRow] = {
    row.numpy: row for row in elementwise.ROWS if isinstance(row.numpy, np.ufunc)
}


def resolved(row: OpRow, *operands: Any) -> Signature | None:
    """The row's signature on these dtypes, or None where NumPy has no loop or opkiln no dtype.

    int and float stand for weak scalars.
    """
    try:
        signature = row.signature(row, operands)
    except TypeError:
        return None
    known = {dtype.numpy for dtype in SUPPORTED}
    return signature if known.issuperset((*signature[0], signature[1])) else None
