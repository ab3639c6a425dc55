"""The reduction rows: what is combined, what fills idle lanes, what an empty input gives."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from opkiln.ops.defs import ReduceRow

DT = np.dtype[np.generic]
_NOTHING = "zero-size array to reduction operation {} which has no identity"
_NOTHING_TO_FIND = "attempt to get {} of an empty sequence"


@cache
def _widened(dtype: DT) -> DT:
    """NumPy's accumulator of sum and prod: integers narrower than a word widen to it."""
    # Asked of NumPy itself.
    accumulator: DT = np.add.reduce(np.zeros(1, dtype)).dtype
    return accumulator


def _same(dtype: DT) -> DT:
    return dtype


def _bool(dtype: DT) -> DT:
    del dtype
    return np.dtype(np.bool_)


_order = partial(ReduceRow, accumulate=_same, cost=2.0)
_truth = partial(ReduceRow, accumulate=_bool, accepts="b")  # operands by truth value
_bits = partial(ReduceRow, accumulate=_same, accepts="biu")
_find = partial(_order, finds=True, cost=3.0)


def _prod_gradient(g: Any, y: Any, a: Any, axes: tuple[int, ...]) -> Any:
    """The product of the others: y / a, but of a 0 that of the nonzero ones and of other zeros.

    The other of two zeros is written as their sum without the one: 0, whose derivative is 1.
    """
    zero = a == 0
    rest = np.where(zero, 1, a)
    many = zero.sum(axis=axes, keepdims=True)
    zeros = np.where(zero, a, 0)
    other = zeros.sum(axis=axes, keepdims=True) - zeros
    factor = np.where(many == 1, 1, np.where(many == 2, other, 0))
    others = np.where(many <= 2, rest.prod(axis=axes, keepdims=True), 0) * factor
    return g * np.where(zero, others, y / rest)


def _extreme_gradient(g: Any, y: Any, a: Any, axes: tuple[int, ...]) -> Any:
    """Shared evenly by the elements that attain it; NaN for all where it is NaN."""
    found = a == y
    share = g / found.sum(axis=axes, keepdims=True).astype(a.dtype)
    return np.where(found, share, np.where(np.isnan(y), y, 0))


# fmt: off
ROWS: tuple[ReduceRow, ...] = (
    ReduceRow("sum", np.add, "{0} + {1}", "zero", _widened, exactness="bound", on_bool="any",
              blocked=True, gradient=lambda g, y, a, axes: g),
    ReduceRow("prod", np.multiply, "{0} * {1}", "one", _widened, exactness="bound", on_bool="all",
              gradient=_prod_gradient),
    _order("max", np.maximum, "ok_max({0}, {1})", "lowest", empty=_NOTHING.format("maximum"),
           ungated="zero sign", gradient=_extreme_gradient),
    _order("min", np.minimum, "ok_min({0}, {1})", "highest", empty=_NOTHING.format("minimum"),
           ungated="zero sign", gradient=_extreme_gradient),
    _find("argmax", np.argmax, "({0} >= {1}) | ({0} != {0})", "lowest",
          empty=_NOTHING_TO_FIND.format("argmax")),
    _find("argmin", np.argmin, "({0} <= {1}) | ({0} != {0})", "highest",
          empty=_NOTHING_TO_FIND.format("argmin")),
    _truth("any", np.logical_or, "ok_or({0}, {1})", "zero", on_bool="any"),
    _truth("all", np.logical_and, "ok_and({0}, {1})", "ones", on_bool="all"),
    _truth("logical_xor", np.logical_xor, "ok_xor({0}, {1})", "zero",
           on_bool="logical_xor"),
    _bits("bitwise_and", np.bitwise_and, "{0} & {1}", "ones", on_bool="all"),
    _bits("bitwise_or", np.bitwise_or, "{0} | {1}", "zero", on_bool="any"),
    _bits("bitwise_xor", np.bitwise_xor, "{0} ^ {1}", "zero", on_bool="logical_xor"),
)
# fmt: on
