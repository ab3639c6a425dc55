"""What NumPy refuses is refused with NumPy's kind of error, ours derived from it, and the line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.tracing import A, run

import opkiln as ok
from opkiln.runtime.errors import IntegerPowerError, OpkilnError

I8 = np.arange(-3, 3)
B = I8 > 0
TEXT = np.array(["a"] * 6)
OBJECTS = np.array([1, "a", None, 2.0, [], {}], dtype=object)
RECORDS = np.zeros(6, [("x", "f4"), ("y", "i4")])

# What the user writes, NumPy's kind of error, and words that name what is wrong.
REFUSED: list[tuple[Callable[..., Any], type[Exception], str]] = [
    (lambda i: i + "a", TypeError, "a str"),
    (lambda i: "a" + i, TypeError, "a str"),
    (lambda i: np.add(i, "a"), TypeError, "a str"),
    (lambda i: np.add(i, b"a"), TypeError, "a bytes"),
    (lambda i: i * None, TypeError, "NoneType"),
    (lambda i: i - {}, TypeError, "a dict"),
    (lambda i: i * TEXT, TypeError, "dtype str"),
    (lambda i: np.add(TEXT, i), TypeError, "dtype str"),
    (lambda i: i + ["a"] * 6, TypeError, "dtype str"),
    (lambda i: i + OBJECTS, TypeError, "dtype object"),
    (lambda i: i + [None] * 6, TypeError, "dtype object"),
    (lambda i: i + RECORDS, TypeError, "dtype void"),
    (lambda i: np.where(i > 0, i, RECORDS), TypeError, "dtype void"),
    (lambda i: ~(i * 1.0), TypeError, "ufunc 'invert' not supported for the input types"),
    (lambda i: (i * 1.0) << 2, TypeError, "ufunc 'left_shift' not supported for the input types"),
    (lambda i: i >> 1.5, TypeError, "ufunc 'right_shift' not supported for the input types"),
    (lambda i: (i > 0) - (i < 2), TypeError, "numpy boolean subtract, the `-` operator, is not"),
    (lambda i: -(i > 0), TypeError, "The numpy boolean negative, the `-` operator, is not"),
    (lambda i: +(i > 0), TypeError, "'positive' did not contain a loop with signature matching"),
    (lambda i: np.sign(i > 0), TypeError, "'sign' did not contain a loop with signature matching"),
    (lambda i: np.gcd(i, 1.5), TypeError, "'gcd' did not contain a loop"),
    (lambda i: np.bitwise_count(i * 1.0), TypeError, "ufunc 'bitwise_count' not supported"),
    (lambda i: np.ldexp(i * 1.0, i * 1.0), TypeError, "ufunc 'ldexp' not supported"),
    (lambda i: i ** np.array(-1), ValueError, "ntegers to negative integer powers"),
    (lambda i: i**-2, ValueError, "Integers to negative integer powers are not allowed."),
    (lambda i: np.power(i, -2), ValueError, "Integers to negative integer powers"),
    (lambda i: np.add(i, 1.5, out=+i), TypeError, "from dtype('float64') to dtype('int64')"),
    (lambda i: np.add(i, i, out=i.astype(np.uint64)), TypeError, "casting rule 'same_kind'"),
    (lambda i: np.sin(i, out=+i), TypeError, "from dtype('float64') to dtype('int64')"),
    (lambda i: np.add(i, 1.5, dtype=np.int8), TypeError, "with casting rule 'same_kind'"),
    (lambda i: i.astype(np.int8, casting="safe"), TypeError, "according to the rule 'safe'"),
    (lambda i: i.astype(np.int8, casting="some"), ValueError, "casting must be one of"),
    (lambda i: np.add(i, i, dtype="nonsense"), TypeError, "nonsense"),
    (lambda i: i.astype(np.int8) + 300, OverflowError, "300 out of bounds for int8"),
    (
        lambda i: np.add(i.astype(np.uint8), 300, dtype=np.uint8),
        OverflowError,
        "300 out of bounds for uint8",
    ),
    (lambda i: np.add(i, 10**30, dtype=np.int64), OverflowError, "int64"),
]


def name_of(case: Any) -> str:
    fn, _, words = case
    return f"{fn.__code__.co_firstlineno}-{re.sub(r'[^a-z0-9]+', '-', words.lower())[:40]}"


@pytest.mark.parametrize("case", REFUSED, ids=name_of)
def test_refused_as_numpy_refuses(case: Any) -> None:
    fn, kind, words = case
    with pytest.raises(kind):
        fn(I8)
    with pytest.raises(kind) as caught:
        run(fn, I8)
    assert isinstance(caught.value, OpkilnError)
    text = str(caught.value)
    assert words in text
    assert f"test_bad_input.py:{fn.__code__.co_firstlineno}" in text


def test_numpys_own_complaints_pass_through() -> None:
    """A wrong number of operands or a keyword of no ufunc, which NumPy sees before us."""
    for fn, words in (
        (lambda x: np.add(x, *()), "from 2 to 3 positional arguments but 1"),
        (lambda x: np.add(x, x, x, x), "from 2 to 3 positional arguments but 4"),
        (lambda x: np.add(x, x, foo=1), "unexpected keyword argument 'foo'"),
        (lambda x: np.sqrt(), "from 1 to 2 positional arguments but 0"),
        (lambda x: np.clip(), "missing 1 required positional argument"),
    ):
        for call in (fn, ok.compile(fn)):
            with pytest.raises(TypeError, match=words) as caught:
                call(A)
            assert caught.tb is not None
            places = [entry.path.name for entry in caught.traceback]
            assert "test_bad_input.py" in places[1:]


@pytest.mark.parametrize("bad", [TEXT, OBJECTS, RECORDS], ids=["text", "objects", "records"])
def test_arguments_of_no_number(bad: Any) -> None:
    with pytest.raises(TypeError):
        bad * I8
    for args in ((bad, I8), (I8, bad)):
        with pytest.raises(TypeError, match=r"argument '[ab]'") as caught:
            ok.compile(lambda a, b: a * b)(*args)
        assert isinstance(caught.value, OpkilnError)
        assert str(bad.dtype) in str(caught.value)


def test_out_of_a_call_under_same_kind() -> None:
    """float64 into an integer out=; int64 into a narrower integer is NumPy's same kind."""
    compiled = ok.compile(lambda x: x * 1.5)
    out = np.zeros(6, np.int64)
    with pytest.raises(TypeError):
        np.multiply(I8, 1.5, out=out)
    with pytest.raises(TypeError) as caught:
        compiled(I8, out=out)
    assert isinstance(caught.value, OpkilnError)
    assert "int64" in str(caught.value)
    assert not out.any()


def test_integer_power_of_a_run_time_exponent() -> None:
    compiled = ok.compile(lambda a, b: a**b)
    assert (compiled(I8, abs(I8)) == I8 ** abs(I8)).all()
    with pytest.raises(ValueError, match="negative integer powers"):
        I8**I8
    with pytest.raises(IntegerPowerError, match=r"negative integer powers (?s:.*)test_bad_input"):
        compiled(I8, I8)


INTEGERS = [np.dtype(t) for t in "bhilBHIL"]


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_integer_division_never_traps(dtype: np.dtype[Any]) -> None:
    """By zero, and the lowest number by -1: NumPy's values, whatever the neighbours."""
    info = np.iinfo(dtype)
    values = [0, 1, 2, 7, info.max, info.min, info.min + 1, *([-1, -7] if info.min else [])]
    a = np.repeat(np.array(values, dtype), len(values))
    b = np.tile(np.array(values, dtype), len(values))

    def divided(a: Any, b: Any) -> Any:
        return (
            a // b, a % b, np.fmod(a, b), *np.divmod(a, b), np.gcd(a, b), np.lcm(a, b),
            np.reciprocal(b), a // 0, a % 0, (a // b) * 3 + b, np.fmod(a, 0),
        )  # fmt: skip

    compiled = ok.compile(divided)
    with np.errstate(all="ignore"), ok.errstate(integer_divide="ignore"):
        for at in (slice(None), slice(0, 1), slice(3, 8)):
            for got, want in zip(compiled(a[at], b[at]), divided(a[at], b[at]), strict=True):
                assert got.dtype == want.dtype
                np.testing.assert_array_equal(got, want)
    with pytest.raises(FloatingPointError), np.errstate(divide="raise"):
        np.reciprocal(b)
    with pytest.raises(FloatingPointError), ok.errstate(integer_divide="raise"):
        ok.compile(np.reciprocal)(b)


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_narrow_integers_wrap_inside_a_chain(dtype: np.dtype[Any]) -> None:
    """Each step of random fused chains wraps at the dtype's width, and so do shifts and casts."""
    rng = np.random.default_rng(dtype.num)
    info = np.iinfo(dtype)
    steps = [
        lambda v, w: v + w, lambda v, w: v - w, lambda v, w: v * w, lambda v, w: v * v,
        lambda v, w: -v, lambda v, w: abs(v), lambda v, w: v << w, lambda v, w: v >> 2,
        lambda v, w: v >> w, lambda v, w: v << 7, lambda v, w: ~v, lambda v, w: v ^ w,
        lambda v, w: np.square(v), lambda v, w: v**3, np.lcm,
        lambda v, w: v.astype(np.int8).astype(v.dtype), lambda v, w: np.where(v > w, v - 1, w + 1),
    ]  # fmt: skip
    programs = [rng.integers(0, len(steps), 12) for _ in range(20)]

    def chains(v: Any, w: Any) -> Any:
        results = []
        for program in programs:
            value = v
            for i, step in enumerate(program):
                value = steps[step](value, v if i % 3 else w)
            results.append(value)
        return results

    v, w = (rng.integers(info.min, info.max, 200, dtype, endpoint=True) for _ in range(2))
    w[:60] = np.arange(60) % 20 - (10 if info.min else 0)  # counts of shifts, in and out of range
    with np.errstate(all="ignore"):
        for got, want in zip(ok.compile(chains)(v, w), chains(v, w), strict=True):
            assert got.dtype == want.dtype == dtype
            np.testing.assert_array_equal(got, want)
