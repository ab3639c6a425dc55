"""What most rows share: a signature rule, the kinds they take, how exact they are."""

from __future__ import annotations

from functools import partial

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
