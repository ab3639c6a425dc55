"""Operands to test rows with, by kind of dtype, and results compared to the bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import opkiln as ok
from opkiln.ops.defs import OpRow
from opkiln.ops.dtypes import SUPPORTED, dtype_row
from opkiln.ops.elementwise.presets import INVALID_CHOICE, NEGATIVE_POWER
from opkiln.ops.table import resolved

DTYPES = [row.numpy for row in SUPPORTED]
Array = np.ndarray[Any, np.dtype[Any]]


def function_of(row: OpRow) -> Callable[..., Any]:
    """What a user would write for this row."""
    return row.numpy if isinstance(row.numpy, np.ufunc) else getattr(ok.ops, row.name)


def takes(row: OpRow, *dtypes: Any) -> bool:
    """Whether opkiln answers operands of these dtypes (or of Python's int or float)."""
    return resolved(row, *dtypes) is not None


def dtypes_of(row: OpRow, dtype: np.dtype[Any]) -> tuple[np.dtype[Any], ...] | None:
    """The operands' dtypes where the row is asked for `dtype`, or None where NumPy has no loop.

    All of that dtype, unless no dtype serves all operands of the row: ldexp takes int64 beside it.
    """
    if row.name == "where":
        return (np.dtype(np.bool_), dtype, dtype)
    wanted = (dtype,) * row.arity if is_uniform(row) else (dtype, np.dtype(np.int64))
    return wanted if takes(row, *wanted) else None


@cache
def is_uniform(row: OpRow) -> bool:
    """Whether there is a dtype that all operands of the row have."""
    signatures = [resolved(row, *(dtype,) * row.arity) for dtype in DTYPES]
    return any(len(set(signature[0])) == 1 for signature in signatures if signature)


def kind_of(dtype: np.dtype[Any]) -> str:
    """The kind by opkiln's own table: NumPy calls bfloat16 void."""
    return dtype_row(dtype).kind


def finfo(dtype: np.dtype[Any]) -> Any:
    """np.finfo, or that of ml_dtypes for its types."""
    try:
        return np.finfo(dtype)
    except ValueError:
        import ml_dtypes

        return ml_dtypes.finfo(dtype)


def is_rounded(row: OpRow, result: np.dtype[Any], args: tuple[Array, ...] = ()) -> bool:
    """Whether the row may differ from NumPy in this result: integers of such rows are exact."""
    over = "c" if any(kind_of(a.dtype) == "c" for a in args) else "f"
    return row.exactness_of(over) != "exact" and kind_of(result) in "fc"


def leaves_zero_sign(row: OpRow, dtype: np.dtype[Any]) -> bool:
    """Whether the installed NumPy does not say which zero the row gives over this dtype.

    Of two equal values nextafter gives the second, as C's. NumPy before 2.5 gave the first of two
    halves.
    """
    old = row.name == "nextafter" and np.lib.NumpyVersion(np.__version__) < "2.5.0"
    return row.ungated == "zero sign" or (old and dtype == np.float16)


def _integers(dtype: np.dtype[Any]) -> Array:
    info = np.iinfo(dtype)
    low = [info.min, info.min + 1, -7, -1] if info.min else [2, 3]
    return np.array([0, 1, 2, 3, 7, 8, 63, info.max - 1, info.max, *low], dtype)


def _floats(dtype: np.dtype[Any]) -> Array:
    info = finfo(dtype)
    finite = [0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 10.0, 0.1, 1e5]
    finite += [float(v) for v in (info.tiny, info.smallest_subnormal, info.max)]
    with np.errstate(over="ignore"):  # 1e5 is none of float16
        return np.array([*finite, *(-v for v in finite), np.inf, -np.inf, np.nan]).astype(dtype)


def _complexes(dtype: np.dtype[Any]) -> Array:
    part = _floats(np.empty(0, dtype).real.dtype)[[0, 1, 2, 4, 12, 14, -4, -3, -2, -1]]
    pairs = np.array(list(itertools.product(part, repeat=2)), part.dtype)
    return np.ascontiguousarray(pairs).view(dtype)[:, 0]


def _times(dtype: np.dtype[Any]) -> Array:
    return _integers(np.dtype(np.int64)).view(dtype)  # the lowest is NaT


# Where ops go wrong, whatever the op, by kind of dtype: a new kind has its own.
SPECIALS: dict[str, Callable[[np.dtype[Any]], Array]] = {
    "b": lambda dtype: np.array([False, True]),
    "i": _integers,
    "u": _integers,
    "f": _floats,
    "c": _complexes,
    "m": _times,
    "M": _times,
}


def ordinary(row: OpRow, dtype: np.dtype[Any], n: int, rng: np.random.Generator) -> Array:
    """Random values: floats of the row's domain, integers small and of the whole range."""
    kind = kind_of(dtype)
    if kind == "f":
        return rng.uniform(*row.domain, n).astype(dtype)
    if kind == "c":
        return (rng.uniform(*row.domain, n) + 1j * rng.uniform(-4, 4, n)).astype(dtype)
    if kind == "b":
        return rng.integers(0, 2, n).astype(dtype)
    whole = dtype if kind in "iu" else np.dtype(np.int64)
    info = np.iinfo(whole)
    small = rng.integers(max(info.min, -20), 20, n).astype(whole)
    wide = rng.integers(info.min, info.max, n, dtype=whole.name, endpoint=True)
    return np.where(rng.random(n) < 0.5, small, wide).astype(whole).view(dtype)


def operands(
    row: OpRow, dtypes: tuple[np.dtype[Any], ...], seed: int = 0, n: int = 2000
) -> tuple[Array, ...]:
    """All pairs of special values of the first two operands, then `n` ordinary values."""
    rng = np.random.default_rng([seed, *row.name.encode()])
    special = [SPECIALS[kind_of(dtype)](dtype) for dtype in dtypes]
    grids = np.meshgrid(*(np.arange(len(s)) for s in special[:2]), indexing="ij")
    heads = [s[g.ravel()] for s, g in zip(special, grids, strict=False)]
    heads += [np.resize(np.roll(s, 1), heads[0].size) for s in special[2:]]
    found = [
        np.concatenate([head, ordinary(row, dtype, n, rng)])
        for head, dtype in zip(heads, dtypes, strict=True)
    ]
    if row.faults & NEGATIVE_POWER and kind_of(dtypes[1]) in "iu":
        found[1] = found[1] % 40  # a negative exponent is an error, tested apart
    if row.faults & INVALID_CHOICE:  # and so is an index that names no choice
        found = [found[0] % 40, found[1] * 0 + 40]
    return tuple(found)


def real_operands(row: OpRow, n: int) -> list[Array]:
    """Operands to differentiate at: float64 in the domain where NumPy takes that, else int64."""
    rng = np.random.default_rng([7, *row.name.encode()])
    float64, int64 = np.dtype(np.float64), np.dtype(np.int64)
    choices = itertools.product((float64, int64), repeat=row.arity)
    dtypes = next(dtypes for dtypes in choices if takes(row, *dtypes))
    found = [
        rng.uniform(*row.domain, n) if dtype == float64 else rng.integers(-9, 10, n)
        for dtype in dtypes
    ]
    return [found[0] > 0, *found[1:]] if row.name == "where" else found


def parts(array: Array) -> Array:
    """What carries the bits of a value: both parts of a complex number, the integer of a time."""
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag])
    return array.view(np.int64) if array.dtype.kind in "mM" else array


def same_bits(got: Any, want: Any, what: str, *, zero_sign: bool = True) -> None:
    """Equal dtype, shape and values; NaN at the same places, zeros of the same sign."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype, f"{what}: {got.dtype} for {want.dtype}"
    assert got.shape == want.shape, what
    got, want = parts(got), parts(want)
    if kind_of(want.dtype) == "f":
        nan = np.isnan(want)
        np.testing.assert_array_equal(np.isnan(got), nan, err_msg=what)
        got, want = got[~nan], want[~nan]
        if zero_sign:
            np.testing.assert_array_equal(np.signbit(got), np.signbit(want), err_msg=what)
    np.testing.assert_array_equal(got, want, err_msg=what)


def bits(array: Any) -> Array:
    """The bytes of an array, in its order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
