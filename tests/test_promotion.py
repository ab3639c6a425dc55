"""Result dtypes, values, error classes are NumPy's, for every row, dtypes and kind of scalar."""

# ruff: noqa: PLW0108  a lambda gives the traced function a line

import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.tracing import check, outcome, refused, run

from opkiln.ops.dtypes import SUPPORTED
from opkiln.ops.table import ELEMENTWISE

DTYPES = [row.numpy for row in SUPPORTED]
SCALARS: list[Any] = [
    True,
    1,
    0,
    -1,
    2,
    300,
    2**40,
    2.0,
    0.5,
    -1.5,
    1e40,
    np.int8(3),
    np.uint64(3),
    np.float32(2.5),
    np.float64(2.5),
    np.bool_(True),
]


def sample(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return (
        np.array([1, 0, 2, 3], dtype) if dtype.kind != "b" else np.array([True, False, True, True])
    )


OPERATOR_OF = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "power": operator.pow,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "left_shift": operator.lshift,
    "right_shift": operator.rshift,
    "negative": operator.neg,
    "invert": operator.invert,
    "absolute": abs,
}


def check_agrees(fn: Callable[..., Any], *args: Any) -> None:
    expected = outcome(fn, *args)
    if isinstance(expected, type):
        with pytest.raises(expected):
            run(fn, *args)
    else:
        found = run(fn, *args)
        assert found.dtype == expected.dtype, (args, found.dtype, expected.dtype)
        np.testing.assert_allclose(
            *(np.asarray(v, np.complex128) for v in (found, expected)), rtol=1e-5, err_msg=str(args)
        )


UFUNCS = [row for row in ELEMENTWISE.values() if isinstance(row.numpy, np.ufunc)]
UNARY, BINARY = ([row for row in UFUNCS if row.arity == n] for n in (1, 2))


@pytest.mark.parametrize("row", BINARY, ids=lambda row: row.name)
def test_promotion_of_pairs(row: Any) -> None:
    for fn in {row.numpy, OPERATOR_OF.get(row.name, row.numpy)}:
        for a, b in itertools.product(DTYPES, DTYPES):
            check_agrees(fn, sample(a), sample(b))
            check_agrees(fn, sample(a)[0], sample(b))


@pytest.mark.parametrize("row", BINARY, ids=lambda row: row.name)
def test_promotion_with_scalars(row: Any) -> None:
    for fn in {row.numpy, OPERATOR_OF.get(row.name, row.numpy)}:
        for dtype, scalar in itertools.product(DTYPES, SCALARS):
            check_agrees(lambda x, s=scalar, fn=fn: fn(x, s), sample(dtype))
            check_agrees(lambda x, s=scalar, fn=fn: fn(s, x), sample(dtype))


@pytest.mark.parametrize("row", BINARY, ids=lambda row: row.name)
def test_promotion_with_run_time_scalars(row: Any) -> None:
    for dtype, scalar in itertools.product(DTYPES, [1, 3, -1, 300, 2.0, -1.5, 1e40]):
        if row.name == "power" and scalar in (1, -1):
            continue  # an exponent known while tracing decides more than one that is not
        check_agrees(row.numpy, sample(dtype), scalar)
        check_agrees(row.numpy, scalar, sample(dtype))


@pytest.mark.parametrize("row", UNARY, ids=lambda row: row.name)
def test_promotion_of_one(row: Any) -> None:
    for dtype in DTYPES:
        for fn in {row.numpy, OPERATOR_OF.get(row.name, row.numpy)}:
            check_agrees(fn, sample(dtype))
            check_agrees(fn, sample(dtype)[1])
    for scalar in (3, 2.5):
        check_agrees(row.numpy, scalar)


def test_promotion_of_where_and_clip() -> None:
    for a, b in itertools.product(DTYPES, DTYPES):
        check_agrees(lambda x, y: np.where(x != 1, x, y), sample(a), sample(b))
        check_agrees(lambda x, y: np.clip(x, y, y), sample(a), sample(b))
    for a, s in itertools.product(DTYPES, SCALARS):
        check_agrees(lambda x, s=s: np.where(x != 1, x, s), sample(a))
        check_agrees(lambda x, s=s: np.where(x != 1, s, x), sample(a))
    for a, hi in itertools.product(DTYPES, [2, -1, 300, 2**70, 2.5]):
        check_agrees(lambda x, hi=hi: np.clip(x, 0, hi), sample(a))
        check_agrees(lambda x, hi=hi: x.clip(max=hi), sample(a))


@pytest.mark.parametrize("bound", [0, -1, 2, 300, -300, 2**31, 2**63 - 1, -(2**63), 2**63, 2.5])
def test_clip_by_a_run_time_number(bound: int | float) -> None:
    """NumPy drops a bound beyond its own end of the range and refuses one beyond the other end."""
    for a in DTYPES:
        check_agrees(lambda x, k: np.clip(x, k, None), sample(a), bound)
        check_agrees(lambda x, k: np.clip(x, None, k), sample(a), bound)
        check_agrees(lambda x, k: np.clip(x, k, x), sample(a), bound)
        check_agrees(
            lambda x, k, y: np.clip(x, k, y), sample(a), bound, sample(np.dtype(np.uint64))
        )
        check_agrees(lambda x, k: np.clip(x, k, k), sample(a), bound)


def test_clip_makes_an_array_of_its_first_operand() -> None:
    for a in DTYPES:
        for n in (1, -(2**63), 2**63, 255, 2.5):
            check_agrees(lambda x, n=n: np.clip(n, x, None), sample(a))
            check_agrees(lambda x, n=n: np.clip(n, x, x), sample(a))
            check_agrees(lambda x, k: np.clip(k, x, None), sample(a), n)
            check_agrees(lambda x, k: np.clip(k, k, x), sample(a), n)
    check_agrees(lambda x, k: np.clip(~k, None, x), sample(np.dtype(np.uint32)), 3)
    same_kind = check(lambda x, k: np.clip(k, x, 7), np.array([1, 9], np.uint8), 300)
    assert same_kind.dtype == np.int64


def test_weak_scalars_follow_numpy() -> None:
    u8, f4 = np.array([1, 200], np.uint8), np.array([1.5, -2], np.float32)
    with refused(OverflowError, "300", "uint8"):
        run(lambda x: x + 300, u8)
    assert check(lambda x: x < 300, u8).all()
    assert check(lambda x: x == 2**70, u8).sum() == 0
    assert check(lambda x: x > -(2**70), u8).all()
    check(lambda x: np.clip(x, -5, 300), u8)
    check(lambda x: x + 1e40, f4)  # inf, no warning
    check(lambda x: x * 2 + 2**70, f4)
    check_agrees(lambda x: np.where(x > 1, x, 300), u8)  # NumPy 2.4 wraps here, 2.5 refuses
    check(lambda x: 2**64 - 11 + x, np.array([5], np.uint64))
    check(lambda x: x + np.float64(0.1), f4)
    check(lambda x: x + np.float32(0.1), np.array([1, 2], np.int8))
    assert np.signbit(run(lambda x: x * -0.0, np.float32([1]))[0])
    assert not np.signbit(run(lambda x: x * 0.0, np.float32([1]))[0])


def test_run_time_scalars_follow_numpy() -> None:
    """F015, F077: weak at run time as in the source; a NumPy function makes them strong."""
    u8, f4 = np.array([1, 200], np.uint8), np.array([1.5, -2], np.float32)
    check(lambda x, h: x * (2.0 * h), f4, 0.1)
    check(lambda x, h: x * np.sqrt(h), f4, 2.0)
    check(lambda x, h: x * np.sqrt(h), f4, 2)
    check(lambda x, h: x + h, f4, 1e40)
    check(lambda x, h: (x < h, h < x, x == h, x != h), u8, 300)
    check(lambda x, h: (x < h, h < x), np.array([2**63, 1], np.uint64), -1)
    check(lambda x, h: (x < h, h < x), np.array([-1, 1]), 2**63)
    check(lambda x, h: (x < h, h >= x), np.array([2**63 + 1, 1], np.uint64), 2**63)
    check(lambda x, h: np.clip(x, h, h + 500), u8, -300)
    check_agrees(lambda x, h: np.where(x > 1, x, h), u8, 300)
    check(lambda x, h: np.where(h > 2, x, -x), f4, 3)
    check(lambda h, k: (h + k, h - 2, 3 * h, h // 2, h % 3, h / 4, -h, abs(-h), h**2, 2.0**h), 7, 2)
    check(lambda h, k: (h + k, 1 - h, h // 2, h % 3, -h, h**0.5, divmod(h, 2)), 7.5, 2)
    check(lambda x, h: x + h, np.array([5], np.uint64), 2**63)
    check(lambda x, h: x**h, f4, 3)
    check(lambda x, h: np.logical_and(x, h), f4, 0.5)
    with pytest.raises(OverflowError, match="300"):
        run(lambda x, h: x + h, u8, 300)
    with pytest.raises(OverflowError, match="int64"):
        run(lambda x, h: x + (h + 2**62), np.array([1]), 2**62)
    with pytest.raises(ZeroDivisionError):
        run(lambda x, h: x + (1 // h), np.array([1]), 0)
    with pytest.raises(OverflowError):
        run(lambda x, h: x + (h + 1), np.array([5], np.uint64), 2**63)


def test_numpy_scalars_and_ranks() -> None:
    for value in (np.float32(3), np.array(3.0), np.int8(3), np.bool_(True)):
        check(lambda x: (x + 1, x * x if x.dtype.kind != "b" else x & x), value)
    assert type(run(lambda x: x.sum(), np.ones(3))) is np.float64
    assert type(run(lambda x: x + 1, np.float32(3))) is np.float32
