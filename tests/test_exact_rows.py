"""What the table's own loop cannot ask of exact rows: several results, operands of two kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.tracing import check
from tests.values import DTYPES, SPECIALS, kind_of, same_bits

import opkiln as ok
from opkiln.runtime import bodies

FLOATS = [np.dtype(np.float32), np.dtype(np.float64)]
Array = np.ndarray[Any, np.dtype[Any]]


def pairs(left: Array, right: Array) -> tuple[Array, Array]:
    """Every value of one beside every value of the other."""
    return np.repeat(left, right.size), np.tile(right, left.size)


def many(dtype: np.dtype[Any]) -> Array:
    """Special values, then floats of every exponent."""
    bits = np.random.default_rng(0).integers(0, 2**63, 3000, np.uint64) * np.uint64(2)
    every = bits.view(np.float64) if dtype.itemsize == 8 else bits.view(np.float32)
    return np.concatenate([SPECIALS[kind_of(dtype)](dtype), every.astype(dtype)])


def test_ufuncs_of_several_results() -> None:
    def several(x: Any, y: Any, i: Any, j: Any) -> Any:
        return np.frexp(x), np.modf(x), np.divmod(x, y), np.divmod(i, j), divmod(i, 7), np.modf(i)

    compiled = ok.compile(several)
    integers = pairs(SPECIALS["i"](np.dtype("i4")), SPECIALS["i"](np.dtype("i4")))
    for dtype in FLOATS:
        args = (many(dtype), np.roll(many(dtype), 1), *integers)
        with np.errstate(all="ignore"), ok.errstate(integer_divide="ignore"):
            for got, want in zip(compiled(*args), several(*args), strict=True):
                assert type(got) is tuple
                for one, other in zip(got, want, strict=True):
                    same_bits(one, other, dtype.name)


@pytest.mark.parametrize("count", ["i4", "i8"])
def test_ldexp_of_a_float_and_an_integer(count: str) -> None:
    """Rounded once where the result is subnormal, whatever the two exponents."""
    counts = [0, 1, -1, 30, -30, 149, -149, 1000, -1000, 1074, -1074, 2**31 - 1, -(2**31)]
    beyond = [] if count == "i4" else [2**63 - 1, -(2**63), 2**32, -(2**32)]
    compiled = ok.compile(np.ldexp)
    for dtype in FLOATS:
        args = pairs(many(dtype), np.array([*counts, *range(-200, 200, 7), *beyond], count))
        with np.errstate(all="ignore"):
            same_bits(compiled(*args), np.ldexp(*args), f"{dtype.name} {count}")


def test_bits_of_neighbours_and_steps() -> None:
    """Denser than the special values of the table: every exponent, both directions."""
    compiled = ok.compile(lambda x, y: (np.nextafter(x, y), np.spacing(x), np.heaviside(x, y)))
    for dtype in FLOATS:
        x, y = many(dtype), np.roll(many(dtype), 3)
        y[::4] = x[::4]
        with np.errstate(all="ignore"):
            want = np.nextafter(x, y), np.spacing(x), np.heaviside(x, y)
        for got, expected in zip(compiled(x, y), want, strict=True):
            same_bits(got, expected, dtype.name)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.kind in "iu"], ids=lambda d: d.name)
def test_integer_rows_where_they_wrap(dtype: np.dtype[Any]) -> None:
    """The lowest integer, zeros, shared powers of two; each result then used by a next op."""
    info = np.iinfo(dtype)
    shifts = [1 << k for k in range(8 * dtype.itemsize - (dtype.kind == "i"))]
    a, b = pairs(
        np.array([*SPECIALS[kind_of(dtype)](dtype), *shifts], dtype),
        np.array([6, 12, info.max, *shifts], dtype),
    )

    def chain(a: Any, b: Any) -> Any:
        g, m = np.gcd(a, b), np.lcm(a, b)
        return g, m, (g * m + a) * b - g, np.bitwise_count(m) + np.bitwise_count(a), np.fmax(m, a)

    with np.errstate(all="ignore"):
        for got, want in zip(ok.compile(chain)(a, b), chain(a, b), strict=True):
            same_bits(got, want, dtype.name)


def test_names_that_numpy_gives_twice() -> None:
    x, i = np.array([1.5, -2.5], np.float32), np.array([5, -3], np.int16)
    check(lambda x: (np.abs(x), np.conj(x), np.mod(x, 2), np.pow(x, 2), np.true_divide(x, 3)), x)
    check(lambda i: (np.bitwise_invert(i), np.bitwise_not(i), np.bitwise_left_shift(i, 2)), i)
    check(lambda i: (np.bitwise_right_shift(i, 1), np.degrees(i), np.radians(i), np.pow(i, 2)), i)


def test_a_section_defined_twice_is_refused(tmp_path: Any, monkeypatch: Any) -> None:
    """The later one would silently stand in for the other."""
    (tmp_path / "bodies").mkdir()
    (tmp_path / "bodies" / "a.h").write_text("//@ one :\n//@ one :\n")
    monkeypatch.setattr(bodies, "_HEADERS", str(tmp_path))
    with pytest.raises(ValueError, match="section one is defined twice"):
        bodies.sections.__wrapped__("bodies")
