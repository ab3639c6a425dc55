"""FIELD-CASES, category layout, and those about sizes and values as arguments, by id.

F046 (copies of overlapping arguments), F049 and F050 (layouts that a custom op gets and gives)
speak of custom ops, which issue 6 brings. Here they are tested as far as they apply to what is
compiled; so is F051, since as_strided cannot be traced, and F053 without cumsum and flip.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opkiln as ok

Array = np.ndarray[Any, np.dtype[Any]]


def run(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return ok.compile(fn)(*args, **kwargs)


def check_same(got: Any, want: Any) -> None:
    np.testing.assert_array_equal(got, want)
    assert (np.asarray(got).dtype, np.shape(got)) == (np.asarray(want).dtype, np.shape(want))


def add(a: Any, b: Any) -> Any:
    """What most of these cases compile."""
    return a + b


@pytest.mark.parametrize("n", [8, 70])  # less than a step of a column loop, and more than two
def test_F040_a_fused_reduction_obeys_real_strides(n: int) -> None:
    rng = np.random.default_rng(0)
    big = rng.standard_normal((2 * n, 3 * n)).astype("float32")
    square, other = rng.standard_normal((2, n, n)).astype("float32")
    for a, b in ((square.T, other), (square.T, other.T), (big[::2, 1::3], other)):
        for axis in (0, 1, None):
            for name in ("max", "argmax"):
                got = run(lambda a, b: getattr(a + b, name)(axis=axis), a, b)  # noqa: B023
                check_same(got, getattr(a + b, name)(axis=axis))


@pytest.mark.parametrize("length", [1, 31, 3185])
def test_F041_every_row_is_right_not_only_the_first(length: int) -> None:
    x = np.random.default_rng(0).standard_normal((3, length)).astype("float32")

    def f(x: Array) -> Array:
        return (x - x.sum(axis=1, keepdims=True) / x.shape[1]).sum(axis=1)

    np.testing.assert_allclose(run(f, x), f(x.astype("float64")), atol=length * 1e-6)
    for axis in (0, 1):
        exact = x.astype("float64").sum(axis=axis)
        got = run(lambda x: x.sum(axis=axis), x)  # noqa: B023
        np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-4)


def test_F042_no_write_through_a_zero_stride() -> None:
    f, x = ok.compile(add), np.ones(3, "float32")
    f(x, x, out=np.empty(3, "float32"))  # refused on a warm call too
    read_only = np.broadcast_to(np.zeros(1, "float32"), (3,))
    writable = np.lib.stride_tricks.as_strided(np.zeros(1, "float32"), (3,), (0,))
    dense = np.zeros(3, "float32")
    dense.flags.writeable = False
    for out, message in ((read_only, "read-only"), (writable, "memory"), (dense, "read-only")):
        with pytest.raises(ValueError, match=message):
            f(x, x, out=out)
        assert not out.any()


@pytest.mark.parametrize("n", [6, 1003])
def test_F043_overlapping_out_reads_old_values(n: int) -> None:
    f = ok.compile(add)
    a = np.arange(float(n))
    want = a[1:] + a[:-1]
    f(a[1:], a[:-1], out=a[1:])
    check_same(a[1:], want)
    a = np.arange(float(n))
    f(a[::-1], a, out=a)
    check_same(a, np.full(n, n - 1.0))
    assert f.info().copies == 2
    a = np.arange(float(n))
    f(a, a, out=a)  # the same elements: written in place, without a copy
    check_same(a, 2 * np.arange(float(n)))
    assert f.info().copies == 2


def test_F044_aliasing_is_looked_at_on_each_call() -> None:
    f = ok.compile(lambda x, y: (x * 2, x + y))
    x, y = np.ones(4), np.ones(4)
    out = np.empty(4), np.empty(4)
    f(x, y, out=out)
    check_same(out[1], np.full(4, 2.0))
    base = np.arange(8.0)
    x, y = base[:4], base[2:6]
    want = x * 2, x + y
    first, second = (
        base[1:5],
        np.empty(4),
    )  # overlaps both inputs, with the shapes of the first call
    f(x, y, out=(first, second))
    check_same(first, want[0])
    check_same(second, want[1])


def test_F045_results_are_never_the_argument() -> None:
    x = np.arange(4.0)
    for f in (lambda x: x, lambda x: x.astype(np.float64), np.positive, lambda x: x.T):
        y = run(f, x)
        check_same(y, x)
        assert not np.shares_memory(x, y)


def test_F046_disjoint_halves_need_no_copy() -> None:
    f = ok.compile(lambda x, y: x + y)
    for n in (512, 4096 // 8):
        base = np.arange(2.0 * n).reshape(2, n)
        kept = base.copy()
        f(base[1], base[1], out=base[0])
        check_same(base, np.stack([2 * kept[1], kept[1]]))
    assert f.info().copies == 0


@pytest.mark.parametrize("shape", [(3, 4), (5, 300)])
@pytest.mark.parametrize("view", [np.s_[:, ::-1], np.s_[::-1, ::-2], np.s_[::2]])
def test_F047_negative_and_general_strides(view: Any, shape: tuple[int, int]) -> None:
    x = np.arange(shape[0] * shape[1], dtype="float32").reshape(shape)[view]
    check_same(run(add, x, x), x + x)
    for axis in (0, 1):
        check_same(run(lambda x: x.sum(axis=axis), x), x.sum(axis=axis))  # noqa: B023
    wide = np.zeros((2 * shape[0], 2 * shape[1]), "float32")
    out = wide[::2, ::2][: x.shape[0], : x.shape[1]][:, ::-1]
    run(add, x, x, out=out)
    check_same(out, x + x)
    assert not wide[1::2].any()
    assert not wide[:, 1::2].any()


def test_F047_a_reversed_array_leaves_by_dlpack() -> None:
    """NumPy exports negative strides; the result of ours is an array of its own."""
    x = np.arange(12.0).reshape(3, 4)
    got = run(add, x[:, ::-1], x[:, ::-1])
    check_same(np.from_dlpack(got[::-1, ::-2]), 2 * x[:, ::-1][::-1, ::-2])


def test_F049_a_transposed_producer_feeds_any_consumer() -> None:
    x = np.arange(12.0).reshape(3, 4)
    for view in (x.T, x[:, ::2].T, x[::-1].T):
        inner = ok.compile(lambda x: x * 2)(view)
        check_same(run(lambda x: (x * 2).sum(axis=1) + 1, view), inner.sum(axis=1) + 1)
        check_same(run(lambda x: x.sum(axis=1) + 1, inner), inner.sum(axis=1) + 1)


def test_F050_results_of_odd_order_feed_the_next() -> None:
    rng = np.random.default_rng(0)
    fortran = np.asfortranarray(rng.integers(0, 9, (2, 3, 4)).astype("f8"))
    permuted = rng.integers(0, 9, (2, 3, 2, 4, 3)).astype("f8").transpose(3, 0, 4, 2, 1)
    for x in (fortran, permuted):
        y = run(lambda x: x + 1, x)
        assert y.strides == (x + 1).strides
        check_same(
            run(lambda y: (y[:, None] + y).sum(axis=(0, 2)), y), (y[:, None] + y).sum((0, 2))
        )


def test_F051_as_strided_speaks_of_the_declared_layout() -> None:
    x = np.arange(8 * 16 * 25, dtype="f4").reshape(8, 5, 5, 16).transpose(0, 3, 1, 2)
    y, want = run(lambda x: x + 1, x), x + 1
    assert y.strides == want.strides
    window: dict[str, Any] = {"shape": (8, 4, 3), "strides": (1600, 64, 8)}
    got = run(lambda w: w + 2, np.lib.stride_tricks.as_strided(y, **window))
    check_same(got, np.lib.stride_tricks.as_strided(want, **window) + 2)


def test_F052_zero_size_arrays() -> None:
    for shape in ((0, 3), (3, 0), (0,)):
        x = np.zeros(shape, "float32")
        check_same(run(add, x, x), x + x)
        for axis in [None, *range(x.ndim)]:
            got = run(lambda x: x.sum(axis=axis), x)  # noqa: B023
            check_same(got, x.sum(axis=axis))
            assert not np.signbit(got).any()
            check_same(run(lambda x: x.prod(axis=axis), x), x.prod(axis=axis))  # noqa: B023
            with np.errstate(invalid="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                want = x.mean(axis=axis)
            check_same(run(lambda x: x.mean(axis=axis), x), want)  # noqa: B023
    check_same(run(lambda x: x.max(axis=1), np.zeros((0, 3), "float32")), np.zeros(0, "float32"))
    for axis in (None, 0):
        with pytest.raises(ValueError, match="max"):
            run(lambda x: x.max(axis=axis), np.zeros((0, 3), "float32"))  # noqa: B023
    out = np.empty((0, 3), "float32")
    assert run(add, np.zeros((0, 3), "float32"), np.zeros((0, 3), "float32"), out=out) is out


def test_F053_zero_dimensional_arrays() -> None:
    x = np.array(2.5)
    for axis in (None, 0, -1):
        for name in ("sum", "max", "argmin"):
            got = run(lambda x: getattr(x, name)(axis=axis), x)  # noqa: B023
            want = getattr(x, name)(axis=axis)
            check_same(got, want)
            assert type(got) is type(want)
    check_same(run(lambda x: x.mean(), x), x.mean())
    with pytest.raises(np.exceptions.AxisError):  # as NumPy
        run(lambda x: x.mean(axis=0), x)
    check_same(run(add, x, np.arange(3.0)), x + np.arange(3.0))
    assert type(run(add, x, x)) is np.float64
    out = np.array(0.0)
    assert run(add, x, x, out=out) is out
    assert out[()] == 5.0


def test_F054_outputs_of_different_shapes_keep_them() -> None:
    a, b = np.ones((2, 2, 2)), np.ones((2, 2))
    two, three = run(lambda a, b: (2 * a, 3 * b), a, b)
    assert (two.shape, three.shape) == ((2, 2, 2), (2, 2))


def test_F055_one_against_zero() -> None:
    for left, right in (((0,), (1,)), ((3, 0), (3, 1)), ((1, 0), (0, 1))):
        a, b = np.zeros(left), np.ones(right)
        check_same(run(add, a, b), a + b)
    with pytest.raises(ValueError, match="broadcast"):
        run(add, np.zeros(0), np.zeros(2))


def test_F056_one_program_serves_equal_lengths_and_ones() -> None:
    f = ok.compile(add)
    for left, right in (((4,), (4,)), ((4,), (1,)), ((1,), (4,)), ((1,), (1,))):
        a, b = np.arange(left[0], dtype="f4"), np.arange(10, 10 + right[0]).astype("f4")
        check_same(f(a, b), a + b)
    a, b = np.arange(12.0).reshape(3, 4), np.arange(4.0).reshape(1, 4)
    check_same(f(a, b), a + b)
    assert f.info().traces == 2  # one per rank


def test_F058_more_than_two_to_the_31_elements() -> None:
    x = np.broadcast_to(np.ones(1, "int8"), (2**31 + 1,))
    check_same(run(lambda x: x.sum(), x), np.int64(2147483649))


def test_F060_reductions_of_different_slices_stay_apart() -> None:
    t = np.arange(4.0)
    for first, second in (("max", "min"), ("max", "sum"), ("min", "max")):
        got = run(lambda a, b: getattr(a, first)() - getattr(b, second)(), t[1:4], t[1:3])  # noqa: B023
        check_same(got, getattr(t[1:4], first)() - getattr(t[1:3], second)())


def test_F077_scalars_are_arguments() -> None:
    f = ok.compile(lambda x, alpha: x * alpha)
    x = np.array([2.0, -3.0])
    for alpha in (2.0, 3.0, 3, True, float("nan"), float("nan"), 0.0, -0.0, 1, 1.0):
        with np.errstate(all="ignore"):
            want = x * alpha
        got = f(x, alpha)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))
    assert f.info().traces == 3  # a float, an int, True
    g = ok.compile(lambda x, n: x**n, static="n")
    for n in (2, 2.0, 3, True, 2):
        check_same(g(x, n), x**n)
    assert g.info().traces == 4


def test_F137_sizes_are_arguments() -> None:
    f = ok.compile(lambda x, y: np.tanh(x) * y + x)
    for n in range(1, 201):
        x = np.linspace(-1, 1, n).astype("f4")
        np.testing.assert_allclose(f(x, x), np.tanh(x) * x + x, rtol=1e-6)
    info = f.info()
    assert (info.traces, info.builds + info.disk_hits) == (1, 1)
    for b in range(8):
        for s in range(8):
            z = np.ones((b, s), "f4")
            np.testing.assert_allclose(f(z, z), np.tanh(z) * z + z, rtol=1e-6)
    info = f.info()
    # Another rank: a trace, and the kernel that is there already.
    assert (info.traces, info.builds + info.disk_hits, info.builds <= 1) == (2, 2, True)


def test_F134_static_arguments_are_compared_by_value() -> None:
    f = ok.compile(lambda x, axis: x.sum(axis=axis), static="axis")
    x = np.ones((2, 3))
    for axis in ((0, 1), (np.int64(0), np.int32(1)), (0, 1)):
        check_same(f(x, axis), x.sum())
    assert f.info().traces == 1
    with pytest.raises(TypeError, match="axis"):
        f(x, [0, 1])
