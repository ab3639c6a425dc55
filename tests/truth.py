"""The true values of rows that round: mpmath's function by row, and distances from it in ulp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
from tests import special_truth
from tests.values import Array, finfo, is_rounded, kind_of

from opkiln.ops.defs import OpRow
from opkiln.ops.table import ELEMENTWISE

DIGITS = 60


def _atan2(y: Any, x: Any) -> Any:
    if y == 0:
        raise ValueError("mpmath knows no -0.0: tests/test_bodies.py compares these with C")
    return mpmath.atan2(y, x)


# One entry for each row of exactness "ulp": adding such a row means adding its truth.
TRUTH: dict[str, Callable[..., Any]] = {
    "power": mpmath.power,
    "float_power": mpmath.power,
    "exp": mpmath.exp,
    "exp2": lambda x: mpmath.power(2, x),
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log2": lambda x: mpmath.log(x, 2),
    "log10": mpmath.log10,
    "log1p": mpmath.log1p,
    "logaddexp": lambda x, y: mpmath.log(mpmath.exp(x) + mpmath.exp(y)),
    "logaddexp2": lambda x, y: mpmath.log(mpmath.power(2, x) + mpmath.power(2, y), 2),
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
    "hypot": mpmath.hypot,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "tan": mpmath.tan,
    "arcsin": mpmath.asin,
    "arccos": mpmath.acos,
    "arctan": mpmath.atan,
    "arctan2": _atan2,
    "sinh": mpmath.sinh,
    "cosh": mpmath.cosh,
    "tanh": mpmath.tanh,
    "arcsinh": mpmath.asinh,
    "arccosh": mpmath.acosh,
    "arctanh": mpmath.atanh,
    **special_truth.TRUE,
}


def lacking() -> list[str]:
    """Rows that round and have no entry above, entries that no such row has."""
    wanted = {row.name for row in ELEMENTWISE.values() if row.exactness != "exact"}
    return sorted(wanted ^ set(TRUTH))


def true_value(row: OpRow, operands: tuple[Any, ...]) -> Any:
    """The value to DIGITS digits: mpf or mpc; None outside the function's real domain.

    Raises:
        AssertionError: the row has no entry in TRUTH.
    """
    assert row.name in TRUTH, f"row {row.name} rounds: add its function to TRUTH in tests/truth.py"
    is_complex = any(isinstance(x, (complex, np.complexfloating)) for x in operands)
    with mpmath.workdps(DIGITS):
        args = [mpmath.mpc(x) if is_complex else mpmath.mpf(float(x)) for x in operands]
        try:
            value = TRUTH[row.name](*args)
        except (ValueError, ZeroDivisionError, OverflowError):  # a pole, or beyond mpmath
            return None
        if not is_complex and isinstance(value, mpmath.mpc):
            return value.real if value.imag == 0 else None
        return value if is_complex else mpmath.mpf(value)


def unit(value: Any, dtype: np.dtype[Any]) -> Any:
    """One unit in the last place of `value` in `dtype`, which is that of the power of 2 below."""
    info = finfo(dtype)
    with mpmath.workdps(DIGITS):
        if value == 0:
            return mpmath.mpf(float(info.smallest_subnormal))
        exponent = mpmath.frexp(abs(value))[1] - 1  # 2 ** exponent <= |value|
        return mpmath.ldexp(1, max(int(exponent), int(info.minexp)) - int(info.nmant))


def size(row: OpRow, *operands: float) -> float:
    """What the units of the row's error are of, where that is larger than the result."""
    if callable(row.unit):
        return row.unit(*operands)
    return max(map(abs, operands)) if row.unit == "operand" else 0.0


def distance(got: Any, true: Any, dtype: np.dtype[Any], size: Any = 0) -> float:
    """How far `got` is from the true value in units of the last place; of complex ones by norm.

    The unit is that of the true value, or of `size` if that is larger.
    """
    info = finfo(dtype)
    with mpmath.workdps(DIGITS):
        value: Any = mpmath.mpc(got) if kind_of(dtype) == "c" else mpmath.mpf(float(got))
        largest = mpmath.mpf(float(info.max))
        if not mpmath.isfinite(value):  # right where rounding to nearest overflows, or nearly
            return 0.0 if abs(true) >= largest * (1 - mpmath.mpf(2) ** -int(info.nmant)) else np.inf
        if abs(true) > largest:
            return float(abs(abs(value) - largest) / unit(largest, dtype))
        return float(abs(value - true) / unit(max(abs(true), size), dtype))


def worst(row: OpRow, got: Array, operands: tuple[Array, ...], picks: Array) -> tuple[float, Any]:
    """The largest distance over the picked elements, and the operands it is at."""
    assert is_rounded(row, got.dtype)
    found: tuple[float, Any] = (0.0, None)
    for i in picks:
        values = tuple(a[i] for a in operands)
        if not all(np.isfinite(np.asarray(values).astype(np.complex128))):
            continue
        true = true_value(row, values)
        if true is not None and mpmath.isfinite(true):
            error = distance(got[i], true, got.dtype, size(row, *map(float, values)))
            found = max(found, (error, values), key=lambda f: f[0])
    return found


def slopes(row: OpRow, args: list[Array], i: int) -> Array:
    """The derivative of the true function by operand `i`, at each element."""
    result: list[float] = []
    for values in zip(*args, strict=True):
        with mpmath.workdps(DIGITS):
            point = [mpmath.mpf(float(v)) for v in values]
            at = point[i]
            result.append(
                float(mpmath.diff(lambda x: TRUTH[row.name](*point[:i], x, *point[i + 1 :]), at))  # noqa: B023
            )
    return np.array(result)
