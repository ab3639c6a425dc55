"""FIELD-CASES, category numerics: faults that users of such systems met, by id.

F018 and the reductions of others are in tests/test_field_reductions.py. Of the gradients (F035 to
F037) the rules of rows are tested here; what a gradient transform adds comes with it: the shape of
a broadcast input's gradient (F035), outputs that nobody differentiates (F036), and reductions with
ties (F037).
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.together import Case, case, like_numpy, together
from tests.values import real_operands

import opkiln as ok
from opkiln.ops.table import ELEMENTWISE

Array = np.ndarray[Any, np.dtype[Any]]
INTS = ("int8", "int16", "int32", "int64")


def run(fn: Callable[..., Any], *args: Any) -> Any:
    return ok.compile(fn)(*args)


def check_same(got: Any, want: Any) -> None:
    np.testing.assert_array_equal(got, want)
    assert np.asarray(got).dtype == np.asarray(want).dtype


def test_F001_floor_division_rounds_down() -> None:
    pairs = [
        [np.tile(np.array(values, dtype), repeat) for values in ([-7, 7, -7, 7], [3, -3, -3, 3])]
        for dtype in INTS
        for repeat in (1, 17)
    ]
    for a, b in pairs:
        check_same(a // b, np.resize(np.array([-3, -3, 2, 2], a.dtype), a.shape))
        check_same(a % b, np.resize(np.array([2, -2, -1, 1], a.dtype), a.shape))
        check_same(np.fmod(a, b), np.resize(np.array([-1, 1, -1, 1], a.dtype), a.shape))
    like_numpy([case(lambda a, b: (a // b, a % b, np.fmod(a, b)), a, b) for a, b in pairs])
    like_numpy([case(lambda a: (a // 3, a % -3, np.fmod(a, -3)), a) for a, _ in pairs])
    identities = together([case(lambda a, b: a == (a // b) * b + a % b, a, b) for a, b in pairs])
    assert all(np.all(found) for found in identities)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_F002_division_by_zero_is_a_value_and_a_count(dtype: str) -> None:
    for op in (np.floor_divide, np.remainder):
        f = ok.compile(op)
        for n in (1, 100_000):
            a, b = np.full(n, 5, dtype), np.ones(n, dtype)
            f(a, b)  # counts nothing, whatever stands in the idle lanes behind the last element
            b[-1] = 0
            with np.errstate(all="ignore"):
                check_same(f(a, b), op(a, b))
        assert f.info().integer_faults == 2


@pytest.mark.parametrize("dtype", INTS)
def test_F002_the_lowest_integer_by_minus_one(dtype: str) -> None:
    low, one = np.full(3, np.iinfo(dtype).min, dtype), np.full(3, -1, dtype)
    f = ok.compile(np.floor_divide)
    check_same(f(low, one), low)
    assert f.info().integer_faults == 1
    check_same(run(np.remainder, low, one), np.zeros(3, dtype))


def test_F004_division_by_a_constant_at_the_ends_of_the_range() -> None:
    low, high = np.iinfo("int32").min, np.iinfo("int32").max
    n = np.array([24, 0, -1, low, low + 9, high], "int32")
    with np.errstate(all="ignore"):
        check_same(run(lambda n: (n + 9) // 10, n), (n + np.int32(9)) // np.int32(10))
        check_same(run(lambda n: -(-n // 10), n), -(-n // np.int32(10)))


@pytest.mark.parametrize("shape", [(), (33,)])
def test_F005_narrow_sums_wrap_before_they_widen(shape: tuple[int, ...]) -> None:
    x = np.full(shape, 128, "uint8")
    check_same(run(lambda x: (x + x).astype(np.int16), x), np.zeros(shape, "int16"))


def test_F006_negation_of_unsigned_then_compare() -> None:
    def f(x: Array) -> tuple[Array, Array]:
        v = -x
        return v, v < 4

    v, less = run(f, np.array([6], "uint8"))
    assert (int(v[0]), bool(less[0])) == (250, False)


def test_F008_signed_overflow_wraps_at_every_op() -> None:
    check_same(
        run(lambda x: (x + x).astype(np.int64), np.array([2**31 - 1], "int32")), np.array([-2])
    )
    for first, product in ((6, 120), (60, -80)):  # 60 * 5 * 4 is 1200, which wraps
        a, b, c = (np.array([v], "int8") for v in (first, 5, 4))
        check_same(run(lambda a, b, c: (a * b) * c, a, b, c), np.array([product], "int8"))
        check_same(run(lambda a, b, c: a * (b * c), a, b, c), np.array([product], "int8"))
    low = np.array([np.iinfo("int16").min], "int16")
    for wide in run(lambda x: (np.abs(x).astype(np.int32), (-x).astype(np.int32)), low):
        check_same(wide, low.astype("int32"))
    check_same(
        run(lambda x: x.sum(dtype=np.int32), np.full(3, 2**31 - 1, "int32")), np.int32(2147483645)
    )


def test_F009_unsigned_subtraction_wraps_with_and_without_fusion() -> None:
    zero, two = np.array([0], "uint32"), np.array([2], "uint32")
    for opt_level in (0, 2):
        f = ok.compile(lambda a, b: (a - b, (a - b) >> 1), opt_level=opt_level)
        difference, half = f(zero, two)
        assert (int(difference[0]), int(half[0])) == (4294967294, 2147483647)


def test_F010_64_bit_products_of_a_range_made_inside() -> None:
    def f(x: Array) -> Array:
        return np.arange(9) * 1_500_000_000 + x

    check_same(run(f, np.zeros(9, "int64")), np.arange(9) * 1_500_000_000)
    check_same(run(lambda x: x * 1_500_000_000, np.arange(9))[-1], np.int64(12_000_000_000))


@pytest.mark.parametrize("n", [1, 7, 8, 33])
def test_F011_float_to_unsigned_casts_agree_between_body_and_rest(n: int) -> None:
    x = np.resize(np.array([-1.0, -0.3, -2.2, 300.0, np.nan], "float32"), n)
    want = np.resize(np.array([255, 0, 254, 44, 0], "uint8"), n)
    check_same(run(lambda x: x.astype(np.uint8), x), want)
    wild = np.array([np.nan, np.inf, 3e9], "float32")
    got = run(lambda x: x.astype(np.int32), wild)
    assert (got == np.iinfo("int32").min).all()


def test_F013_integer_powers() -> None:
    check_same(run(lambda x: x**-1.0, np.array([2, 4], "int32")), np.array([0.5, 0.25]))
    for exponent in (-2, np.array([-2, 1])):
        with pytest.raises(ValueError, match="negative integer power"):
            run(lambda x, e: x**e, np.array([2, 3]), exponent)
    with pytest.raises(ValueError, match="negative"):
        run(lambda x: x**-2, np.array([2, 3]))
    out = np.array([7, 7])
    power = ok.compile(np.power)
    for _ in range(3):  # the first call, and those that find what it made
        with pytest.raises(ValueError, match="negative"):
            power(np.array([2, 3]), np.array([2, -1]), out=out)
        assert (out == 7).all()  # an error writes nothing
    for _ in range(3):
        assert power(np.array([2, 3]), np.array([2, 3]), out=out) is out
        check_same(out, np.array([4, 27]))


def test_F014_accumulators_widen_and_elements_do_not() -> None:
    x = np.array([200, 200, 200], "uint8")
    check_same(run(lambda x: x.sum(), x), np.uint64(600))
    check_same(run(lambda x: (x * x).sum(), x), np.uint64(192))
    check_same(run(lambda x: (x.astype(np.int64) ** 2).sum(), x), np.int64(120000))


def test_F015_scalars_stay_weak_inside_as_outside() -> None:
    x = np.ones(3, "float32")
    for h in (0.5, np.float32(0.5), np.float64(0.5), np.array(0.5, "float32")):
        check_same(run(lambda x, h: x * (2.0 * h), x, h), x * (2.0 * h))
        check_same(run(lambda x: x * (2.0 * h), x), x * (2.0 * h))  # noqa: B023
    with pytest.raises(OverflowError, match="300"):
        run(lambda x: x + 300, np.ones(3, "uint8"))
    with pytest.raises(OverflowError, match="300"):
        run(lambda x, h: x + h, np.ones(3, "uint8"), 300)
    assert run(lambda x, h: x < h, np.ones(3, "uint8"), 300).all()
    check_same(
        run(lambda x, h: np.clip(x, 0, h), np.full(2, 255, "uint8"), 300), np.full(2, 255, "uint8")
    )


def test_F016_nan_wins_in_any_order() -> None:
    for n in (3, 35):
        a = np.resize(np.array([1, math.nan, 3], "float32"), n)
        b = np.full(n, 2, "float32")
        one = [lambda a: np.maximum(a, 2), lambda a: a.max(), lambda a: np.clip(a, 0, 2)]
        both = [case(np.maximum, a, b), case(np.maximum, b, a)]
        results = like_numpy([*both, *(case(fn, a) for fn in one)])
        for found in results[:3]:  # by arrays in both orders, and by a constant
            check_same(found[:3], np.array([2, np.nan, 3], "float32"))
        assert np.isnan(results[3])
        check_same(results[4][:3], np.array([1, np.nan, 2], "float32"))
        assert run(lambda a: a.argmax(), a) == 1
    folded = run(lambda x: x + np.maximum(np.float32(np.nan), np.float32(2)), np.ones(1, "float32"))
    assert np.isnan(folded[0])


def test_F017_idle_lanes_never_enter_a_maximum() -> None:
    rng = np.random.default_rng(0)
    cases: list[Case] = []
    for shape in ((4,), (3, 5), (33,), (7, 130)):
        for x in (
            rng.integers(5, 250, shape).astype("uint8"),
            rng.integers(-9, -1, shape).astype("int8"),
        ):
            for axis in [None, *range(len(shape))]:
                cases.append(case(lambda x, axis=axis: x.max(axis=axis), x))
    like_numpy(cases, static="axis")


def test_F019_returning_an_intermediate_changes_nothing() -> None:
    a, b = np.random.default_rng(0).standard_normal((2, 64)).astype("float32")

    def one(a: Array, b: Array) -> Array:
        t = a * b
        return t - t

    def two(a: Array, b: Array) -> tuple[Array, Array]:
        t = a * b
        return t, t - t

    assert not run(one, a, b).any()
    t, d = run(two, a, b)
    assert not d.any()
    check_same(t, a * b)
    c = a * b * np.float32(0.9)  # close to the product, so that its lost digits count
    difference = run(lambda a, b, c: a * b - c, a, b, c)
    check_same(difference, a * b - c)
    check_same(run(lambda a, b, c: (a * b, a * b - c), a, b, c)[1], difference)


@pytest.mark.parametrize("n", [1, 33])
def test_F020_no_contraction(n: int) -> None:
    a = np.full(n, 1 + 2.0**-12, "float32")
    c = np.full(n, -(1 + 2.0**-11), "float32")
    assert not run(lambda a, c: a * a + c, a, c).any()


def test_F024_zero_is_not_removed() -> None:
    for dtype in ("float32", "float64"):
        x = np.array([-0.5], dtype)
        assert run(lambda x: 1 / (np.ceil(x) + 0.0), x)[0] == np.inf
        assert np.signbit(run(lambda x: -x, np.array([0.0], dtype)))[0]


def test_F026_which_zero_is_least_is_left_open() -> None:
    """NumPy itself decides by order and length; the value is 0, and the sign is not said."""
    for a, b in ((-0.0, 0.0), (0.0, -0.0)):
        x, y = np.array([a]), np.array([b])
        for found in run(lambda x, y: (np.minimum(x, y), np.maximum(x, y)), x, y):
            check_same(found, np.zeros(1))
    open_rows = {row.name for row in ELEMENTWISE.values() if row.ungated}
    assert {"minimum", "maximum", "clip"} <= open_rows


def test_F027_float_sums_are_as_good_as_numpys() -> None:
    x = np.ones(10**6, "uint8") / np.float32(255)
    exact = float(x.astype("float64").sum())
    assert abs(float(run(lambda x: x.sum(), x)) / exact - 1) < 1e-6
    for square in (x.reshape(1000, 1000), np.asfortranarray(x.reshape(1000, 1000))):
        for axis in (0, 1, None):
            got = run(lambda x: x.sum(axis=axis), square).astype("float64").sum()  # noqa: B023
            assert abs(got / exact - 1) < 1e-6
    tall = x.reshape(-1, 4)
    columns = run(lambda x: x.sum(axis=0), tall)
    assert (abs(columns / (exact / 4) - 1) < 1e-6).all()
    check_same(
        run(lambda x: x.sum(axis=0), np.asfortranarray(tall)), columns
    )  # the order is the same


def test_F029_denormals_survive_loading_and_running() -> None:
    code = """
import threading, numpy as np, opkiln as ok
f = ok.compile(lambda x: x * np.float32(1))
tiny = np.array([1e-40], "float32")
assert f(tiny)[0] != 0
seen = []
thread = threading.Thread(target=lambda: seen.append((tiny * np.float32(1))[0]))
thread.start(); thread.join()
assert (tiny * np.float32(1))[0] != 0 and seen[0] != 0
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_F030_float_remainder() -> None:
    def f(a: Array, b: Array) -> tuple[Array, Array]:
        return a % b, a // b

    a = np.array([-1e-20, 5, -5, 1.0, 7.5, -7.5, np.inf, 3, 0.0, -0.0])
    b = np.array([3, np.inf, np.inf, 0.1, -2.0, 2.0, 2, 0, 5, 5])
    with np.errstate(all="ignore"):
        want = f(a, b)
    got = run(f, a, b)
    check_same(got[0], want[0])
    check_same(got[1], want[1])
    check_same(run(lambda a, b: a % b, np.array([1e30], "float32"), np.array([3], "float32")),
         np.array([1e30], "float32") % np.float32(3))  # fmt: skip


def test_F031_one_value_one_result_whatever_the_length() -> None:
    functions: dict[str, Any] = {}
    for name in ("exp", "log", "sin", "cos", "tanh", "erf"):
        function = getattr(np, name, None) or getattr(ok.ops, name)
        functions[name] = ok.compile(lambda x, function=function: function(x), static="function")
    values = np.array([0.7, 0.3])  # 0.7 is close to log 2, where exp is easy
    for dtype, value in ((d, v) for d in ("float32", "float64") for v in values.astype(d)):
        wholes = together([case(f, np.full(67, value), name=n) for n, f in functions.items()])
        for (name, f), whole in zip(functions.items(), wholes, strict=True):
            for n in range(1, 68):
                assert (f(np.full(n, value)) == whole[0]).all(), (name, dtype, n)
            exact = getattr(math, name)(float(value))
            assert abs(float(whole[0]) - exact) <= 4 * np.spacing(abs(whole[0])), (name, dtype)


def test_F032_booleans_are_booleans() -> None:
    b = np.array([True, True, False])
    functions = [
        lambda b: b + b,
        lambda b: b * b,
        lambda b: b.sum(),
        lambda b: ~b,
        lambda b: np.where(~b, 1, 2),  # within a kernel, where nothing is stored and read back
        lambda b: np.where(~(b * b), 1, 2),
        lambda b: (b + b).astype(np.int32),
    ]
    results = like_numpy([case(fn, b) for fn in functions])
    check_same(results[2], np.int64(2))
    check_same(results[6], np.array([1, 1, 0], "int32"))
    for refused in (lambda b: b - b, lambda b: -b):
        with pytest.raises(TypeError):
            run(refused, b)


def test_F033_logical_is_not_bitwise() -> None:
    a, b = np.array([2, 0, 4], "int32"), np.array([1, 1, 4], "int32")
    x = np.array([0.5, np.nan, -0.0])
    both = [case(fn, a, b) for fn in (np.logical_and, np.logical_or, np.logical_xor)]
    like_numpy([*both, case(np.logical_not, x)])


def test_F034_64_bit_integers_never_pass_through_double() -> None:
    check_same(
        run(lambda x: x + (2**64 - 11), np.array([5], "uint64")),
        np.array([18446744073709551610], "uint64"),
    )
    check_same(
        run(lambda x, h: x + h, np.array([5], "uint64"), 2**64 - 11),
        np.array([18446744073709551610], "uint64"),
    )
    for x in (np.array([2**53, 2**53 + 1]), np.array([2**53 + 1, 2**53])):
        check_same(run(lambda x: x.max(), x), np.int64(2**53 + 1))
    check_same(run(lambda x: x.sum(), np.array([2**53 + 1])), np.int64(2**53 + 1))
    for big, small in ((2**63, -1), (2**53 + 1, 2**53)):
        assert run(lambda a, b: a > b, np.array([big], "uint64"), np.array([small]))[0]


def test_F035_gradient_rules_give_the_shape_of_the_result() -> None:
    """Of x (1, 5) by y (3, 5) the rule gives (3, 5), which a transform has to sum over axis 0."""
    x, y = np.full((1, 5), 2.0), np.arange(15.0).reshape(3, 5)
    g = np.ones((3, 5))
    by_x, by_y = gradient("multiply", g, x, y)
    assert by_x.shape == (3, 5)
    check_same(by_x.sum(axis=0, keepdims=True), y.sum(axis=0, keepdims=True))
    check_same(np.broadcast_to(by_y, (3, 5)), np.full((3, 5), 2.0))


def test_F036_no_upstream_gradient_is_a_zero() -> None:
    """What nobody differentiates has gradient 0, and a rule makes no NaN of it."""
    for row in ELEMENTWISE.values():
        if row.gradient is not None:
            for found in gradient(row.name, np.zeros(50), *real_operands(row, 50)):
                assert found is None or not np.any(found), row.name


def test_F037_ties_and_infinities_in_the_gradient_of_a_maximum() -> None:
    """The first of equal operands gets it all: finite, and it sums to what came from above."""
    for row in ("maximum", "minimum"):
        for a, b in (([1.0, 3, 3], [3.0, 3, 1]), ([-np.inf] * 3, [-np.inf] * 3)):
            x, y, g = (np.array(v, "float32") for v in (a, b, [1, 2, 3]))
            by_x, by_y = gradient(row, g, x, y)
            assert np.isfinite(by_x).all() and np.isfinite(by_y).all()
            check_same(by_x + by_y, g)
            assert by_x[1] == 2 and by_y[1] == 0


def gradient(name: str, g: Array, *operands: Array) -> Any:
    """The row's rule on arrays."""
    row = ELEMENTWISE[name]
    rule: Any = row.gradient
    return rule(g, row.numpy(*operands), *operands)
