"""What most rows share: a signature rule, the kinds they take, how exact they are."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from opkiln.ops import signatures as sig
from opkiln.ops.defs import OpRow

# Fault bits, as in native/include/opkiln/kernel.h.
DIVISION_BY_ZERO, NEGATIVE_POWER, DIVISION_OVERFLOW, INVALID_CHOICE = 1, 2, 4, 8
RAISING = NEGATIVE_POWER | INVALID_CHOICE  # those that end in an exception

# The row computes in the dtypes that NumPy's resolver names.
same = partial(OpRow, signature=sig.by_ufunc)
flag = partial(OpRow, signature=sig.logical, differentiable=False)
transcendental = partial(OpRow, signature=sig.by_result, exactness="ulp", ulp=4.0, accepts="f")
near = partial(same, accepts="f")  # rounding and sign functions of floats


def power_gradient(g: Any, y: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """Of a ** b: x ** 0 is 1 for every x, and 0 ** x is 0 beside every x > 0."""
    by_a = np.where(b == 0, 0, g * b * a ** (b - 1))
    return by_a, np.where((a == 0) & (b >= 0), 0, g * y * np.log(a))
