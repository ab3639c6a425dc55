"""FIELD-CASES about reductions, by id: faults that users of such systems met."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.together import Case, case, like_numpy, together

import opkiln as ok

Array = np.ndarray[Any, np.dtype[Any]]
NAMES = ("max", "min", "argmax", "argmin")


def reducing(name: str, axis: int | None) -> Callable[..., Any]:
    """A function of its own, so that cases share no kernel."""
    return lambda x: getattr(np, name)(x, axis=axis)


def test_F008_integer_reductions_wrap_in_the_width_of_the_result() -> None:
    low, high = np.array([6, 5, 4], np.int8), np.full(3, 2**31 - 1, np.int32)
    full = np.full(70, 2**62 + 1)
    results = like_numpy(
        [
            case(lambda x: x.prod(dtype=np.int8), low * np.int8(2)),  # 960 is 3 * 256 + 192
            case(lambda x: np.multiply.reduce(x, dtype=np.int32), high),
            case(lambda x: x.sum(dtype=np.int32), high),
            case(lambda x: (x.sum(), x.prod()), full),
            case(lambda x: x.sum(dtype=np.uint8), np.full(300, 255, np.uint8)),
        ]
    )
    assert results[0] == np.int8(-64)


def test_F014_means_and_products_widen_and_elements_do_not() -> None:
    x = np.array([200, 200, 200], np.uint8)
    results = like_numpy(
        [
            case(lambda x: (x.prod(), (x * x).prod()), x),
            case(lambda x: (x.mean(), (x * x).mean()), x),
            case(lambda x: (x.var(), x.std(), np.var(x.astype(np.int64) ** 2)), x),
            case(lambda x: (x * x).max(), x),
        ]
    )
    assert results[1] == (np.float64(200), np.float64(64))


def test_F016_nan_wins_in_every_reduction() -> None:
    cases: list[Case] = []
    for n in (3, 35):
        for dtype in ("float32", "float64"):
            x = np.resize(np.array([1, np.nan, 3], dtype), n)
            cases += [case(reducing(name, None), x) for name in NAMES]
            cases.append(case(lambda x: (np.ptp(x), x.sum(), x.prod(), x.any(), x.all()), x))
    results = like_numpy(cases)
    for found, index in zip(results[2::5], results[3::5], strict=True):
        assert found == 1 and index == 1


def test_F017_idle_lanes_never_enter_an_order() -> None:
    rng = np.random.default_rng(0)
    cases: list[Case] = []
    for shape in ((4,), (3, 5), (33,), (7, 130)):
        for x in (
            rng.integers(5, 250, shape).astype(np.uint8),
            rng.integers(-9, -1, shape).astype(np.int8),
        ):
            for axis in [None, *range(len(shape))]:
                cases += [case(reducing(name, axis), x) for name in NAMES]
    results = like_numpy(cases)
    for c, got in zip(cases, results, strict=True):
        if got.dtype == c.args[0].dtype:
            assert not np.any(got == 0)


def test_F018_the_first_true_and_the_first_false() -> None:
    rng = np.random.default_rng(0)
    find = ok.compile(lambda x: [f(x, axis=a) for f in (np.argmax, np.argmin) for a in (0, 1)])
    for n in range(1, 8):
        for x in (rng.random((n, 32)) < 0.5, np.zeros((n, 32), bool), np.ones((n, 32), bool)):
            want = [f(x, axis=a) for f in (np.argmax, np.argmin) for a in (0, 1)]
            for got, expected in zip(find(x), want, strict=True):
                np.testing.assert_array_equal(got, expected)
                assert got.dtype == np.int64
    mask = np.arange(600) % 599 == 598  # as a comparison inside, in lanes as wide as its operands
    assert ok.compile(lambda x: (x > 0).argmax())(mask.astype(np.float64)) == 598


def test_F019_an_index_does_not_depend_on_what_else_is_returned() -> None:
    a, b = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)

    def one(a: Array, b: Array) -> Any:
        t = a * b
        return (t - t).argmax()

    def two(a: Array, b: Array) -> Any:
        t = a * b
        return t, (t - t).argmax()

    alone, (t, beside) = together([case(one, a, b), case(two, a, b)])
    assert alone == beside == 0
    np.testing.assert_array_equal(t, a * b)


def test_F032_booleans_reduce_as_numpys() -> None:
    b = np.array([True, True, False])
    results = like_numpy(
        [
            case(lambda b: (b.sum(), b.prod(), b.mean(), b.var()), b),
            case(lambda b: (b.max(), b.min(), b.any(), b.all()), b),
            case(lambda b: (b.sum(dtype=bool), b.prod(dtype=bool), np.add.reduce(b + b)), b),
            case(lambda b: np.where((b + b).all(), 1, (b * b).any()), b),
        ]
    )
    assert results[0][0] == 2


def test_F034_order_of_64_bit_integers_is_exact() -> None:
    for dtype in ("int64", "uint64"):
        x = np.array([2**53, 2**53 + 1, 2**53], dtype)
        results = like_numpy([case(reducing(name, None), x) for name in NAMES])
        assert results[2] == 1
    top = np.array([0, 2**63, 2**64 - 1], np.uint64)
    assert together([case(reducing("argmax", None), top)]) == [2]


@pytest.mark.parametrize("n", [8, 33])
def test_F040_an_index_obeys_real_strides(n: int) -> None:
    rng = np.random.default_rng(n)
    big = rng.standard_normal((2 * n, 3 * n + 1)).astype(np.float32)
    left, right = big[:n, :n].T, big[::2, 1::3]

    def both(axis: int) -> Callable[..., Any]:
        return lambda a, b: ((a + b).argmax(axis=axis), (a + b).max(axis=axis), b.argmin(axis))

    like_numpy([case(both(axis), left, right) for axis in (0, 1)])


def test_F041_every_batch_of_a_pooled_mean_is_right() -> None:
    x = np.random.default_rng(0).standard_normal((3, 65, 7, 7))
    for row in (1, 31, 3185):
        flat = x.reshape(3, 3185)[:, :row]
        guarded = np.full((3, row + 2), 1e30)  # what a wrong stride would read
        guarded[:, 1:-1] = flat
        for rows in (flat, guarded[:, 1:-1]):
            got = ok.compile(lambda x: (x - x.mean(1, keepdims=True)).sum(1))(rows)
            assert np.abs(got).max() < 1e-10
    pooled = ok.compile(lambda x: x.mean((2, 3)).sum(1))(x)
    np.testing.assert_allclose(pooled, x.mean((2, 3)).sum(1), rtol=1e-12)


@pytest.mark.filterwarnings("ignore:Mean of empty", "ignore:Degrees of freedom")
def test_F052_reductions_of_zero_size_arrays() -> None:
    cases: list[Case] = []
    for shape in ((0, 3), (3, 0), (0,)):
        x = np.zeros(shape, np.float32)
        for axis in [None, *range(x.ndim)]:
            cases += [case(reducing(n, axis), x) for n in ("sum", "prod", "mean", "any", "all")]
            if x.size or (axis is not None and x.shape[axis]):
                cases += [case(reducing(name, axis), x) for name in NAMES]
    like_numpy(cases)
    out = np.full(3, 7, np.float32)
    assert ok.compile(lambda x: x.prod(0))(np.zeros((0, 3), np.float32), out=out) is out
    assert out.tolist() == [1, 1, 1]
    for name in NAMES:
        for shape, axis in (((0, 3), 0), ((0, 3), None), ((3, 0), 1)):
            with pytest.raises(ValueError, match=r"zero-size|empty sequence"):
                ok.compile(reducing(name, axis))(np.zeros(shape, np.float32))


def test_F053_reductions_of_a_scalar_are_scalars() -> None:
    x = np.array(2.5)
    cases = [case(reducing(n, axis), x) for n in ("sum", *NAMES) for axis in (None, 0, -1)]
    cases += [case(reducing(n, None), x) for n in ("mean", "var", "std", "ptp", "count_nonzero")]
    for got in like_numpy(cases):
        assert isinstance(got, np.generic)
    with pytest.raises(np.exceptions.AxisError):
        ok.compile(reducing("mean", 0))(x)


def test_F060_orders_of_different_slices_stay_apart() -> None:
    t = np.arange(4.0)
    (got,) = like_numpy([case(lambda a, b: a.max() - b.min(), t[1:4], t[1:3])])
    assert got == 2


def test_numpys_own_functions_compile() -> None:
    """Their defaults, np._NoValue among them, are static."""
    x = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
    exact = (np.max, np.amin, np.argmax, np.any, np.all, np.ptp, np.count_nonzero)
    like_numpy([case(fn, x) for fn in exact])
    near = (np.sum, np.prod, np.mean, np.var, np.std, np.nansum)
    for fn, got in zip(near, together([case(fn, x) for fn in near]), strict=True):
        np.testing.assert_allclose(got, fn(x), rtol=1e-5)
    mean = ok.compile(np.mean, static="axis")
    np.testing.assert_allclose(mean(x, 1, keepdims=True), x.mean(1, keepdims=True), rtol=1e-5)
