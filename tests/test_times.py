"""datetime64 and timedelta64 through the whole of opkiln, against NumPy to the bit."""

from __future__ import annotations

import datetime
import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opkiln as ok

Array = np.ndarray[Any, np.dtype[Any]]

LOW, HIGH = -(2**63), 2**63 - 1
COUNTS = np.array([LOW, LOW + 1, -86400, -7, -1, 0, 1, 2, 3, 60, 86399, 2**40, HIGH], np.int64)
PAIRS = np.array(list(itertools.product(COUNTS, repeat=2))).T
A, B = PAIRS[0].copy(), PAIRS[1].copy()
DATES, SPANS, YEARS = (np.arange(3).view(d) for d in ("M8[s]", "m8[s]", "M8[Y]"))
NUMBERS = np.array([0.0, 1.5, -2.5, np.nan, np.inf, 1e300, -0.0, 3.0])

TWO_SPANS: dict[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "divide": np.divide, "floor_divide": np.floor_divide,
    "remainder": np.remainder, "equal": np.equal, "not_equal": np.not_equal, "less": np.less,
    "less_equal": np.less_equal, "greater": np.greater, "greater_equal": np.greater_equal,
    "maximum": np.maximum, "minimum": np.minimum,
    "where": lambda a, b: np.where(a > b, a, b),
    "negative": lambda a, b: -a, "absolute": lambda a, b: abs(b), "sign": lambda a, b: np.sign(a),
    "positive": lambda a, b: +a,
    "isnat": lambda a, b: np.isnat(a), "isnan": lambda a, b: np.isnan(a),
    "isfinite": lambda a, b: np.isfinite(b), "isinf": lambda a, b: np.isinf(a),
    "clip": lambda a, b: np.clip(a, np.timedelta64(-3, "s"), b),
    "days": lambda a, b: a + np.timedelta64(1, "s") - 5,
}  # fmt: skip
TWO_DATES: dict[str, Callable[..., Any]] = {
    name: TWO_SPANS[name]
    for name in (
        "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "maximum",
        "minimum", "where", "subtract", "isnat", "isnan", "isfinite", "isinf",
    )
}  # fmt: skip


def same(got: Any, want: Any, what: str) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype, what
    assert got.shape == want.shape, what
    if want.dtype.kind in "mM":
        got, want = got.view(np.int64), want.view(np.int64)
    np.testing.assert_array_equal(got, want, err_msg=what)


def check(functions: dict[str, Callable[..., Any]], *args: Any) -> None:
    """All functions in one program, whole and by cut."""

    def every(*values: Any) -> dict[str, Any]:
        return {name: function(*values) for name, function in functions.items()}

    with np.errstate(all="ignore"):
        compiled = ok.compile(every)
        for given in (args, tuple(a[::-2] for a in args), tuple(a[:1] for a in args)):
            got = compiled(*given)
            for name, function in functions.items():
                same(got[name], function(*given), f"{name} {[a.dtype for a in args]}")
    assert compiled.info().fallbacks == 0


@pytest.mark.parametrize("units", [("s", "s"), ("D", "h"), ("7ms", "5us")], ids="-".join)
def test_two_time_spans(units: tuple[str, str]) -> None:
    # Small enough that no unit overflows; the common unit of the third pair is 1 us.
    scale = 1 if units[0] == units[1] else 2**24
    a, b = (np.where(x == LOW, LOW, x // scale) for x in (A, B))
    check(TWO_SPANS, a.view(f"m8[{units[0]}]"), b.view(f"m8[{units[1]}]"))


@pytest.mark.parametrize("units", [("s", "s"), ("D", "ns"), ("M", "Y")], ids="-".join)
def test_two_dates(units: tuple[str, str]) -> None:
    scale = 1 if units[0] == units[1] else 2**50
    a, b = (np.where(x == LOW, LOW, x // scale) for x in (A, B))
    functions = TWO_DATES | {"later": lambda a, b: a + np.timedelta64(3, units[0])}
    check(functions, a.view(f"M8[{units[0]}]"), b.view(f"M8[{units[1]}]"))


def test_a_date_and_a_span() -> None:
    functions = {
        "add": np.add, "subtract": np.subtract, "radd": lambda a, b: b + a,
        "int": lambda a, b: a + 5, "since": lambda a, b: a - np.datetime64("2020-02-29T12", "s"),
        "past": lambda a, b: a < np.datetime64("2001-01-01"),
    }  # fmt: skip
    check(functions, A.view("M8[s]"), B.view("m8[s]"))


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i4", "i8", "u8", "f4", "f8"])
def test_a_span_and_a_number(dtype: str) -> None:
    functions: dict[str, Callable[..., Any]] = {
        "multiply": np.multiply, "rmultiply": lambda a, b: b * a,
        "divide": np.divide, "floor_divide": np.floor_divide,
        "half": lambda a, b: a / 2, "third": lambda a, b: a // -3, "scaled": lambda a, b: 1.5 * a,
    }  # fmt: skip
    numbers = NUMBERS if dtype[0] == "f" else np.array([0, 1, 2, -1, 7, 100, -100, 5])
    if dtype == "?":
        del functions["divide"], functions["floor_divide"]  # of bool NumPy has none
    small = COUNTS[np.abs(COUNTS // 2) < 2**52]  # as exact as float64 holds
    a = np.repeat(np.append(small, LOW), len(numbers))
    with np.errstate(all="ignore"):
        b = np.tile(numbers.astype(dtype), len(small) + 1)
        scaled = b * a.astype("f8") if dtype[0] == "f" else np.zeros(1)
    # Out of range of int64 a float's cast is left open.
    inside = ~(np.isfinite(scaled) & (np.abs(scaled) > 2.0**62)) if dtype[0] == "f" else slice(None)
    if dtype == "u8":
        b = b % 100
    check(functions, a[inside].view("m8[ms]"), b[inside])


def test_casts() -> None:
    spans = np.append(COUNTS[(np.abs(COUNTS // 2) < 2**44)], LOW).view("m8[s]")
    check(
        {
            to: lambda x, to=to: x.astype(to)
            for to in ("m8[ms]", "m8[m]", "m8[D]", "m8[7s]", "m8[us]", "i8", "f8", "f4", "?", "m8")
        },
        spans,
    )
    check(
        {to: lambda x, to=to: x.astype(to) for to in ("M8[ms]", "M8[D]", "M8[W]", "i8", "M8[3h]")},
        spans.view("M8[s]"),
    )
    check({to: lambda x, to=to: x.astype(to) for to in ("M8[Y]", "M8[3M]")}, spans.view("M8[M]"))
    check({"m8[s]": lambda x: x.astype("m8[s]")}, np.array([1.9, -1.9, np.nan, np.inf, 0.0]))
    check({"m8[s]": lambda x: x.astype("m8[s]")}, np.array([1, 0, 200], np.uint8))


def test_reductions() -> None:
    functions: dict[str, Callable[..., Any]] = {
        "max": lambda x: x.max(axis=0), "min": lambda x: x.min(axis=0),
        "all of it": lambda x: x.max(), "argmax": lambda x: x.argmax(axis=0),
        "argmin": lambda x: x.argmin(axis=0), "any": lambda x: x.any(axis=1),
        "all": lambda x: x.all(axis=0), "ptp": lambda x: x.max(axis=0) - x.min(axis=0),
    }  # fmt: skip
    table = COUNTS[:12].reshape(4, 3).T.copy()
    check(functions, table.view("M8[s]"))
    functions |= {
        "sum": lambda x: x.sum(axis=0), "mean": lambda x: x.mean(axis=0), "of all": np.mean,
        "nanmean": lambda x: np.nanmean(x, axis=0, keepdims=True),
        "of some": lambda x: np.mean(x, axis=0, where=x > np.timedelta64(-80000, "s")),
    }  # fmt: skip
    check(functions, table.view("m8[3s]"))
    with pytest.warns(RuntimeWarning, match="empty"):
        check({"mean": np.mean}, np.empty(0, "m8[ms]"))
    check({"sum": lambda x: x.sum(), "keep": lambda x: x.sum(keepdims=True)}, table[2:].view("m8"))


@pytest.mark.parametrize("dtype", ["M8[s]", "m8[3ms]", "M8"])
def test_composites(dtype: str) -> None:
    functions: dict[str, Callable[..., Any]] = {
        "choose": lambda x, i: np.choose(i, [x, x, x.copy()]),
        "imag": lambda x, i: x.imag,
        "zeros": lambda x, i: np.zeros_like(x),
        "full": lambda x, i: np.full_like(x, 7),
        "imag of": lambda x, i: np.imag(x),
        "and": lambda x, i: np.logical_and(x, i > 1),
        "or": lambda x, i: np.logical_or(i, x),
        "xor": lambda x, i: np.logical_xor(x, x),
        "span": lambda x, i: x.astype("m8", casting="unsafe"),
    }
    if dtype[0] == "m":
        functions["no cast"] = lambda x, i: x.astype("m8", casting="no")
    check(functions, COUNTS.view(dtype), np.arange(len(COUNTS)) % 3)


def test_one_kernel_serves_every_unit(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPKILN_CACHE_DIR", str(tmp_path))
    f = ok.compile(lambda x, y: (x - y) * 2)
    for unit in ("ns", "s", "D"):
        now, then = (
            np.array([7, 5], f"M8[{unit}]"),
            np.array([2, LOW], np.int64).view(f"M8[{unit}]"),
        )
        same(f(now, then), (now - then) * 2, unit)
    info = f.info()
    assert (info.builds, info.programs) == (1, 3)


def test_layouts_and_results() -> None:
    f = ok.compile(lambda x, y: x + y)
    days, hours = np.arange(12).view("M8[D]").reshape(3, 4), np.arange(4).astype("m8[h]")
    want = days + hours
    same(f(days, hours), want, "broadcast")
    same(f(days.astype(">M8[D]"), hours.astype(">m8[h]")), want, "byte-swapped")
    assert f(days.T.copy().T, hours).flags.f_contiguous
    one = f(np.datetime64("2000-01-01"), np.timedelta64(1, "h"))
    assert type(one) is np.datetime64
    assert one == np.datetime64("2000-01-01T01")
    out = np.empty((3, 4), "M8[s]")
    assert f(days, hours, out=out) is out  # same-kind: a finer unit
    same(out, want.astype("M8[s]"), "out=")
    same(f(days[:0], hours), want[:0], "empty")
    held = np.arange(4).astype("m8[D]")
    same(ok.compile(lambda x: x + held)(days), days + held, "captured")
    with ok.config.scope(disable=True):
        same(f(days, hours), want, "plain")


@pytest.mark.parametrize(
    ("function", "given", "kind", "text"),
    [
        (np.add, (DATES, DATES), TypeError, "cannot use operands with types"),
        (np.multiply, (DATES, 2), TypeError, "cannot use operands with types"),
        (np.multiply, (SPANS, SPANS), TypeError, "cannot use operands with types"),
        (np.sqrt, (SPANS,), TypeError, "not supported for the input types"),
        (np.modf, (SPANS,), TypeError, "not supported for the input types"),
        (np.frexp, (DATES,), TypeError, "not supported for the input types"),
        (np.angle, (DATES,), TypeError, "not supported for the input types"),
        (np.isposinf, (SPANS,), TypeError, "would be ambiguous"),
        (np.sinc, (DATES,), TypeError, "does not take datetime64[s]"),
        (np.bitwise_and, (SPANS, SPANS), TypeError, "not supported for the input types"),
        (np.sum, (DATES,), TypeError, "sum is not defined for datetime64[s]"),
        (np.isnat, (np.arange(3),), TypeError, "only defined for np.datetime64"),
        (
            np.subtract,
            (DATES, YEARS),
            NotImplementedError,
            "casting datetime64[Y] to datetime64[s]",
        ),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_refusals(
    function: Callable[..., Any], given: tuple[Any, ...], kind: type[Exception], text: str
) -> None:
    def call(*args: Any) -> Any:
        return function(*args)

    with pytest.raises(kind) as caught:
        ok.compile(call)(*given)
    assert isinstance(caught.value, ok.errors.OpkilnError)
    assert text in str(caught.value)
    assert "test_times.py" in str(caught.value)
    if kind is TypeError:
        with pytest.raises(kind):
            function(*given)


def test_a_python_time_is_no_argument() -> None:
    with pytest.raises(TypeError, match=r"argument 'y'.*timedelta"):
        ok.compile(lambda x, y: x - y)(SPANS, datetime.timedelta(1))


def test_a_library_without_times_is_told() -> None:
    torch = pytest.importorskip("torch")
    f = ok.compile(lambda x: x.astype("m8[s]"))
    with pytest.raises(TypeError, match=r"timedelta64\[s\](.|\n)*astype\(np.int64\)"):
        f(torch.arange(4))
    same(f(np.arange(4)), np.arange(4).astype("m8[s]"), "NumPy's own")


def test_units_are_many_but_not_without_end() -> None:
    """In a process of its own, whose units are used up."""
    code = """
import numpy as np, opkiln as ok
f, met = ok.compile(lambda x: x + x), 0
try:
    for n in range(1, 100):
        met += len(f(np.zeros(1, f"m8[{n}s]")))
except ok.errors.UnsupportedDType as error:
    print(met, "49 units of time" in str(error), f(np.ones(1, "m8[7s]")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "49 True [2]"
