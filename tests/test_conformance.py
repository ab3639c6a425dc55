"""Every row of the op table, on every dtype it takes, against NumPy.

Tested are values, special values, lengths and layouts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

import opkiln as ok
from opkiln.ops.defs import OpRow
from opkiln.ops.dtypes import SUPPORTED
from opkiln.ops.table import ELEMENTWISE

DTYPES = [row.numpy for row in SUPPORTED]
LENGTHS = (0, 1, 7, 16, 33, 131)
Array = np.ndarray[Any, np.dtype[Any]]


def function_of(row: OpRow) -> Callable[..., Any]:
    """What a user would write for this row."""
    return getattr(ok.ops, row.name) if not isinstance(row.numpy, np.ufunc) else row.numpy


def takes(row: OpRow, dtype: np.dtype[Any]) -> bool:
    """Whether NumPy has this op for the dtype, with a result that opkiln computes in."""
    try:
        operands, result = row.signature(row, (dtype,) * row.arity)
    except TypeError:
        return False
    if row.name == "reciprocal" and operands[0].kind != "f":
        return False  # refused with advice: NumPy itself truncates to 0 for all but 1 and -1
    return all(d in DTYPES for d in (*operands, result))


def specials(dtype: np.dtype[Any]) -> Array:
    """Values where ops go wrong, whatever the op."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low = [info.min, info.min + 1, -7, -1] if dtype.kind == "i" else [2, 3]
        return np.array([0, 1, 2, 3, 7, 8, 63, info.max - 1, info.max, *low], dtype)
    info = np.finfo(dtype)
    finite = [
        0.0,
        0.5,
        1.0,
        1.5,
        2.5,
        3.0,
        10.0,
        0.1,
        info.tiny,
        info.smallest_subnormal,
        info.max,
        1e5,
    ]
    return np.array([*finite, *(-v for v in finite), np.inf, -np.inf, np.nan], dtype)


def operands(row: OpRow, dtype: np.dtype[Any], seed: int = 0) -> list[Array]:
    """Random operands of the row's domain, all pairs of special values first."""
    rng = np.random.default_rng([seed, *row.name.encode()])
    special = specials(dtype)
    if row.exactness == "ulp":
        special = special[np.isfinite(special.astype(np.float64))]
    mixed = np.array(list(itertools.product(special, repeat=min(row.arity, 2)))).T.astype(dtype)
    result = []
    for i in range(row.arity):
        if dtype.kind == "f":
            body = rng.uniform(*row.domain, 2000).astype(dtype)
        elif dtype.kind == "b":
            body = rng.integers(0, 2, 2000).astype(dtype)
        else:
            info = np.iinfo(dtype)
            body = np.where(
                rng.random(2000) < 0.5,
                rng.integers(max(info.min, -20), 20, 2000).astype(dtype),
                rng.integers(info.min, info.max, 2000, dtype=dtype, endpoint=True),
            ).astype(dtype)
        head = mixed[min(i, len(mixed) - 1)] if i < 2 else np.roll(mixed[0], 1)
        result.append(np.concatenate([head, body]))
    if row.name == "power" and dtype.kind in "iu":
        result[1] = result[1] % 40  # a negative exponent is an error, tested apart
    return result


def reference(row: OpRow, args: tuple[Array, ...]) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(function_of(row)(*args))


def assert_same_bits(got: Array, want: Array, what: str, *, zero_sign: bool = True) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype, what
    assert got.shape == want.shape, what
    if got.dtype.kind == "f":
        nan = np.isnan(want)
        np.testing.assert_array_equal(np.isnan(got), nan, err_msg=what)
        got, want = got[~nan], want[~nan]
        if zero_sign:
            np.testing.assert_array_equal(np.signbit(got), np.signbit(want), err_msg=what)
    np.testing.assert_array_equal(got, want, err_msg=what)


MP = {
    "exp": mpmath.exp, "log": mpmath.log, "tanh": mpmath.tanh, "sin": mpmath.sin, "cos": mpmath.cos,
    "erf": mpmath.erf,
    "exp2": lambda x: mpmath.power(2, x),
    "expm1": mpmath.expm1,
    "log2": lambda x: mpmath.log(x, 2),
    "log1p": mpmath.log1p, "power": mpmath.power,
}  # fmt: skip


def ulp_error(row: OpRow, got: Array, args: tuple[Array, ...]) -> float:
    """Largest distance from the true value in units of the last place, over a sample."""
    worst = 0.0
    pick = np.random.default_rng(1).permutation(got.size)[:400]
    info = np.finfo(got.dtype)
    with mpmath.workdps(60):
        for i in pick:
            values = [mpmath.mpf(float(a[i])) for a in args]
            if row.name in ("log", "log2", "power") and values[0] <= 0:
                continue
            if row.name == "log1p" and values[0] <= -1:
                continue
            true = MP[row.name](*values)
            if abs(true) > float(info.max) or not np.isfinite(got[i]):
                assert abs(true) >= float(info.max) * (1 - 1e-7), (row.name, values, got[i])
                continue
            unit = max(
                float(np.spacing(got.dtype.type(abs(float(true))))), float(info.smallest_subnormal)
            )
            worst = max(worst, float(abs(mpmath.mpf(float(got[i])) - true) / unit))
    return worst


def every_row(operands: dict[str, tuple[Array, ...]]) -> dict[str, Any]:
    """All rows in one traced function: their kernels make one translation unit."""
    return {name: function_of(ELEMENTWISE[name])(*args) for name, args in operands.items()}


def bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_every_row_on_every_dtype(dtype: np.dtype[Any]) -> None:
    rows = [row for row in ELEMENTWISE.values() if takes(row, dtype) and row.name != "where"]
    assert len(rows) >= (20 if dtype.kind == "b" else 30)
    compiled = ok.compile(every_row)
    for n in LENGTHS:
        args = {row.name: tuple(a[:n] for a in operands(row, dtype)) for row in rows}
        got = compiled(args)
        for row in rows:
            compare(
                row, got[row.name], reference(row, args[row.name]), f"{row.name} {dtype.name} n={n}"
            )
    args = {row.name: tuple(operands(row, dtype, seed=1)) for row in rows}
    got = compiled(args)
    for row in rows:
        assert got[row.name].size >= 20
        compare(row, got[row.name], reference(row, args[row.name]), f"{row.name} {dtype.name}")
        if row.exactness == "ulp" and got[row.name].dtype.kind == "f":
            assert ulp_error(row, got[row.name], args[row.name]) <= row.ulp, (
                f"{row.name} {dtype.name}"
            )
    assert compiled.info().builds + compiled.info().disk_hits == 1

    # The same bits whatever the stride and the cut: backwards, spread out, one element at a time.
    spread = compiled(
        {name: tuple(np.repeat(a, 3)[::3][::-1] for a in ops) for name, ops in args.items()}
    )
    for name, value in spread.items():
        np.testing.assert_array_equal(bits(value), bits(got[name][::-1]), err_msg=name)
    for at in range(0, 120, 13):
        single = compiled({name: tuple(a[at : at + 1] for a in ops) for name, ops in args.items()})
        for name, value in single.items():
            np.testing.assert_array_equal(bits(value), bits(got[name][at : at + 1]), err_msg=name)


def compare(row: OpRow, got: Array, want: Array, what: str) -> None:
    """Exact rows to the bit; of the others the dtype here, their error in `ulp_error`."""
    if row.exactness == "exact" or want.dtype.kind != "f":
        assert_same_bits(got, want, what, zero_sign=row.ungated != "zero sign")
    else:
        assert got.dtype == want.dtype, what
