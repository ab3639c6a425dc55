"""float16 and bfloat16: every value, every cast, a rounding after every op, and other libraries."""

from __future__ import annotations

import ctypes
import pickle
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.tracing import run

import opkiln as ok
from opkiln.ops.defs import encode
from opkiln.ops.dtypes import SUPPORTED, lossless
from opkiln.ops.table import ELEMENTWISE
from opkiln.runtime.bodies import closure, sections

Array = np.ndarray[Any, np.dtype[Any]]
F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
HALVES = pytest.mark.parametrize("half", [F16, BF16], ids=lambda d: d.name)


def every(half: np.dtype[Any]) -> Array:
    """All values of the dtype."""
    return np.arange(2**16, dtype=np.uint16).view(half)


def quietly(fn: Callable[..., Any], *args: Any) -> Any:
    with np.errstate(all="ignore"):
        return fn(*args)


def assert_same(got: Any, want: Any, what: str = "") -> None:
    """Equal bits; of NaN only that it is one."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype, what
    assert got.shape == want.shape, what
    if got.dtype.kind in "fV":
        with np.errstate(all="ignore"):  # ml_dtypes tells of NaN that it meets
            nan = np.isnan(want)
        np.testing.assert_array_equal(np.isnan(got), nan, err_msg=what)
        got, want = got[~nan], want[~nan]
    bits = [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (got, want)]
    np.testing.assert_array_equal(*bits, what)


def like_numpy(fn: Callable[..., Any], *args: Any) -> None:
    """Compiled and interpreted as NumPy does it, step by step."""
    want = quietly(fn, *args)
    for got in (ok.compile(fn)(*args),):
        for name in want:
            assert_same(got[name], want[name], name)


# ---- casts ----


def casts_from(x: Array) -> dict[str, Array]:
    return {row.name: x.astype(row.numpy) for row in SUPPORTED if row.kind in "bf"}


@HALVES
def test_every_value_becomes_every_dtype(half: np.dtype[Any]) -> None:
    x = every(half)
    like_numpy(casts_from, x)
    for row in SUPPORTED:  # an integer where it fits: elsewhere NumPy's own answer varies
        if row.kind not in "iu":
            continue
        info, wide = np.iinfo(row.numpy), quietly(lambda: x.astype(np.float64))
        top = 2.0**63 if row.size == 8 else float(info.max)
        fits = x[(wide >= info.min) & (wide <= top) & (wide < 2.0**63)]
        like_numpy(lambda x, to=row.numpy: {to.name: x.astype(to)}, fits)


def near_ties(half: np.dtype[Any]) -> Array:
    """Halfway between each value and the next, and as near to it as float64 can say."""
    x = np.sort(quietly(lambda: every(half).astype(np.float64)))
    x = x[np.isfinite(x)]
    middle = (x[:-1] + x[1:]) / 2
    beyond = [65519.999, 65520.0, 65520.001, 1e5, 3.3961e38, 3.4e38, 1e300, 1e-300, np.inf, np.nan]
    return np.concatenate(
        [middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf), x, beyond]
    )


@HALVES
def test_wider_values_round_once(half: np.dtype[Any]) -> None:
    """float64 to float16 by way of float32 would round twice; to bfloat16 ml_dtypes does so."""
    wide = near_ties(half)
    single = quietly(lambda: wide.astype(np.float32))
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 400_000, np.uint64).astype(np.uint32).view(np.float32)
    like_numpy(
        lambda a, b, c: {"wide": a.astype(half), "single": b.astype(half), "bits": c.astype(half)},
        wide, single, bits,
    )  # fmt: skip
    if half == F16:
        through = quietly(lambda: single.astype(half))
        assert (quietly(lambda: wide.astype(half)) != through).sum() > 1000  # the test can tell


@HALVES
def test_integers_become_halves(half: np.dtype[Any]) -> None:
    rng = np.random.default_rng(1)
    args = {}
    for row in SUPPORTED:
        if row.kind in "biu":
            info = np.iinfo(row.numpy) if row.kind != "b" else np.iinfo(np.uint8)
            low, high = max(int(info.min), -(2**63)), min(int(info.max), 2**63 - 1)
            drawn = rng.integers(low, high, 3000)
            small = rng.integers(max(low, -70_000), min(high, 70_000), 3000)
            args[row.name] = np.concatenate([drawn, small]).astype(row.numpy)
    like_numpy(lambda args: {name: a.astype(half) for name, a in args.items()}, args)


def test_casts_between_halves() -> None:
    like_numpy(lambda x: {"x": x.astype(BF16)}, every(F16))
    like_numpy(lambda x: {"x": x.astype(F16)}, every(BF16))


def test_lossless_knows_the_halves() -> None:
    names = {(a.name, b.name) for a in SUPPORTED for b in SUPPORTED if lossless(a.numpy, b.numpy)}
    assert {("int8", "float16"), ("uint8", "bfloat16"), ("bfloat16", "float32")} <= names
    assert not names & {("float16", "bfloat16"), ("bfloat16", "float16"), ("int16", "float16")}


# ---- ops ----

UNARY = [
    row.name
    for row in ELEMENTWISE.values()
    if row.arity == 1 and row.exactness == "exact" and "f" in row.accepts and not row.ungated
]
BINARY = [
    row.name
    for row in ELEMENTWISE.values()
    if row.arity == 2 and row.exactness == "exact" and "f" in row.accepts and not row.ungated
]


def rows_of(names: list[str], half: np.dtype[Any]) -> list[Any]:
    """The rows that NumPy has for this dtype."""
    found = []
    for name in names:
        row = ELEMENTWISE[name]
        if not isinstance(row.numpy, np.ufunc):
            continue
        try:
            row.numpy(*np.ones((row.arity, 1), half))
        except TypeError:
            continue
        found.append(row)
    return found


@HALVES
def test_exact_rows_of_every_value(half: np.dtype[Any]) -> None:
    rows = rows_of(UNARY, half)
    assert len(rows) >= 12
    like_numpy(lambda x: {row.name: row.numpy(x) for row in rows}, every(half))


@HALVES
def test_exact_rows_of_pairs(half: np.dtype[Any]) -> None:
    rows = rows_of(BINARY, half)
    assert len(rows) >= 12
    rng = np.random.default_rng(2)
    a, b = (rng.permutation(every(half)) for _ in range(2))
    close = (a.view(np.uint16) + rng.integers(0, 8, a.size).astype(np.uint16)).view(half)
    for other in (b, close):
        like_numpy(lambda x, y: {row.name: row.numpy(x, y) for row in rows}, a, other)
    like_numpy(lambda x, y: {"max": np.maximum(x, y) + 0, "where": np.where(x < y, x, y)}, a, b)


@HALVES
def test_nextafter_of_equal_values_is_the_second(half: np.dtype[Any]) -> None:
    """As in C, in other dtypes, and in NumPy from 2.5 on."""
    x = np.array([0.0, -0.0, 1.5], half)
    assert_same(ok.compile(np.nextafter)(x, y := np.array([-0.0, 0.0, 1.5], half)), y)


def chain(x: Array, y: Array) -> dict[str, Array]:
    """Ops that round differently if the values between them are not halves."""
    product = x * y
    total = product + x
    root = np.sqrt(abs(total))
    quotient = root / (y * y + 1)
    return {
        "product": product,
        "total": total,
        "quotient": quotient,
        "rest": (quotient - root) * 3 - total,
        "compared": quotient == root / 3,
        "chosen": np.where(total > product, total * total, -product),
        "wide": total.astype(np.float32) * product.astype(np.float32),
        "back": (total.astype(np.float32) * 1.1).astype(x.dtype),
    }


@HALVES
def test_a_fused_chain_rounds_after_each_op(half: np.dtype[Any]) -> None:
    rng = np.random.default_rng(3)
    x, y = (rng.normal(0, 3, 5000).astype(half) for _ in range(2))
    like_numpy(chain, x, y)
    fused = ok.compile(lambda x, y: (x * y + x) * y - x)
    want, wide = (x * y + x) * y - x, [a.astype(np.float32) for a in (x, y)]
    assert_same(fused(x, y), want)
    once = ((wide[0] * wide[1] + wide[0]) * wide[1] - wide[0]).astype(half)
    assert (once != want).sum() > 500  # the test can tell


@HALVES
def test_interpreted_as_compiled(half: np.dtype[Any]) -> None:
    rng = np.random.default_rng(4)
    x, y = (rng.normal(0, 3, 300).astype(half) for _ in range(2))
    got, want = ok.compile(chain)(x, y), run(chain, x, y)
    for name in got:
        assert_same(got[name], want[name], name)
    for fn in (np.tanh, np.exp, ok.ops.erf):
        assert run(lambda x, fn=fn: fn(x), x).dtype == ok.compile(fn)(x).dtype == half


@HALVES
def test_transcendental_rows_are_right_to_the_half(half: np.dtype[Any]) -> None:
    """Computed in float32 and rounded: at most a hair beyond half a unit."""
    x = every(half)
    x = x[np.isfinite(x.astype(np.float32))]
    fns = {f.__name__: f for f in (np.exp, np.tanh, np.sin, np.cos, np.log1p, np.exp2, np.expm1)}
    got = ok.compile(lambda x: {name: f(x) for name, f in fns.items()})(x)
    for name, fn in fns.items():
        true = quietly(fn, x.astype(np.float64))
        near = quietly(lambda true=true: true.astype(np.float32).astype(half))
        known = np.isfinite(near.astype(np.float32))
        unit = np.spacing(np.abs(near[known])).astype(np.float64)
        error = np.abs(got[name][known].astype(np.float64) - true[known]) / unit
        assert error.max() <= 0.51, name


# ---- numbers ----


@HALVES
def test_python_numbers(half: np.dtype[Any]) -> None:
    x = np.array([1.5, -2, 0.1, 100], half)
    for number in (2, -3, 0.1, 2049, 1e6, 70_000, 3.0000001, float("inf")):
        with np.errstate(all="ignore"):
            want = x * number, number - x, x < number
        for fn in (
            lambda x, s: (x * s, s - x, x < s),
            lambda x, s=number: (x * s, s - x, x < s),
        ):
            got = ok.compile(fn)(x, *([number] if fn.__defaults__ is None else []))
            for a, b in zip(got, want, strict=True):
                assert_same(a, b, str(number))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool"])
def test_narrow_integers_become_float16(dtype: str) -> None:
    x = np.array([0, 1, 1, 0, 1], dtype)
    for fn in (np.sqrt, np.exp, np.sin):
        got, want = ok.compile(fn)(x), fn(x)
        assert got.dtype == want.dtype == F16
        np.testing.assert_allclose(got, want, rtol=1e-3)


def test_bfloat16_promotes_as_ml_dtypes_says() -> None:
    x = np.array([1.5, 2.5], BF16)
    others = [np.ones(2, row.numpy) for row in SUPPORTED]
    for other in [*others, 1, 2.5, True, np.float64(2)]:
        want = x + other
        assert_same(ok.compile(np.add)(x, other), want)
    with pytest.raises(TypeError):
        ok.compile(np.where)(x > 1, x, np.ones(2, np.int16))


# ---- layouts ----


@HALVES
@pytest.mark.parametrize("n", [0, 1, 5, 16, 33, 1000])
def test_lengths_and_layouts(half: np.dtype[Any], n: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.normal(0, 2, (3, n)).astype(half)
    want = x * x + x
    f = ok.compile(lambda x: x * x + x)
    spread = np.repeat(x, 3, 1)[:, ::3]
    shifted = np.zeros(x.nbytes + 1, np.uint8)[1:].view(half).reshape(x.shape)
    shifted[...] = x
    for given in (x, spread, x[:, ::-1][:, ::-1], np.asfortranarray(x), shifted):
        assert_same(f(given), want)
    swapped = x.astype(half.newbyteorder(">"))
    assert_same(f(swapped), want)
    assert f(np.asfortranarray(x)).flags.f_contiguous or n < 2
    for out in (np.empty_like(x), np.empty((3, n), np.float32), np.empty((n, 3), half).T):
        got = f(x, out=out)
        assert got is out
        assert_same(out, want.astype(out.dtype))
    row = np.ones(n, half)
    assert_same(ok.compile(np.add)(x, row), x + row)
    assert_same(ok.compile(np.multiply)(x[:, :1], x), x[:, :1] * x) if n else None


@HALVES
def test_scalars(half: np.dtype[Any]) -> None:
    one, f = half.type(1.5), ok.compile(lambda x: x * x + 0.1 if x.dtype == F16 else x * x + 1)
    got = f(one)
    assert type(got) is half.type
    assert_same(got, one * one + 0.1 if half == F16 else one * one + 1)
    assert_same(ok.compile(np.add)(np.ones(3, half), one), np.ones(3, half) + one)
    assert_same(ok.compile(lambda x: x * half.type(3.0))(np.ones(3, half)), np.full(3, 3, half))


# ---- reductions ----


def unit(half: np.dtype[Any]) -> float:
    return float(ml_dtypes.finfo(half).eps) / 2


@HALVES
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_sums_round_once(half: np.dtype[Any], axis: int | None) -> None:
    """As exact as a half can say: added up in float32, by either printer."""
    rng = np.random.default_rng(6)
    f = ok.compile(
        lambda x: {
            "sum": x.sum(axis), "mean": x.mean(axis), "var": x.var(axis), "std": x.std(axis),
            "nansum": np.nansum(x, axis), "mean as": x.mean(axis, dtype=half),
        }
    )  # fmt: skip
    for shape in ((1, 1), (7, 300), (300, 7), (64, 2000)):
        x = rng.uniform(0.5, 2, shape).astype(half)
        wide = x.astype(np.float64)
        true = {
            "sum": wide.sum(axis), "mean": wide.mean(axis), "var": wide.var(axis),
            "std": wide.std(axis),
        }  # fmt: skip
        true |= {"nansum": true["sum"], "mean as": true["mean"]}
        got = f(x)
        for name, value in true.items():
            assert np.asarray(got[name]).dtype == half, name
            with np.errstate(all="ignore"):
                rounded = np.asarray(value).astype(half).astype(np.float64)
            finite = np.isfinite(rounded)
            if name == "mean as":  # the sum is a half itself
                finite = finite & np.isfinite(np.asarray(got["sum"], np.float64))
            error = np.abs(np.asarray(got[name], np.float64) - value)[finite]
            roundings = 2.02 if name == "mean as" else 1.02
            bound = roundings * unit(half) * np.abs(np.asarray(value))[finite]
            assert np.all(error <= bound + 1e-9), (name, shape)
            np.testing.assert_array_equal(np.isinf(np.asarray(got[name])), ~finite)


def orders(axis: int | None) -> Callable[[Array], dict[str, Array]]:
    return lambda x: {
        "max": x.max(axis), "min": x.min(axis), "argmax": x.argmax(axis),
        "argmin": x.argmin(axis), "any": (x > 0).any(axis), "ptp": np.ptp(x, axis),
        "count": np.count_nonzero(x, axis), "wide": x.max(axis).astype(np.float32) * 2,
    }  # fmt: skip


@HALVES
def test_exact_reductions(half: np.dtype[Any]) -> None:
    rng = np.random.default_rng(7)
    for shape in ((3, 40), (40, 3), (1, 1), (5, 1000)):
        x = rng.normal(0, 2, shape).astype(half)
        for axis in (None, 0, 1):
            like_numpy(orders(axis), x)
    x[2, 100] = np.nan
    got = ok.compile(lambda x: (x.max(1), x.argmax(1), np.nansum(x)))(x)
    assert np.isnan(got[0].astype(np.float32)).tolist() == [False, False, True, False, False]
    assert got[1][2] == 100
    assert np.isfinite(float(got[2]))


@HALVES
def test_a_sum_that_overflows_and_one_of_nothing(half: np.dtype[Any]) -> None:
    total = ok.compile(lambda x: x.sum())
    assert total(np.full(70_000, 1, half)) == (np.inf if half == F16 else half.type(70_000))
    assert_same(total(np.zeros(0, half)), half.type(0))
    assert_same(ok.compile(lambda x: x.sum(initial=1.5))(np.ones(3, half)), half.type(4.5))
    assert_same(ok.compile(lambda x: x.sum(dtype=np.float32))(np.ones(3, half)), np.float32(3))
    long = ok.compile(lambda x: x.mean(dtype=half))(np.ones(70_000, np.float32))
    assert long == (np.inf if half == F16 else half.type(1))  # the sum itself is a half


@HALVES
def test_softmax_in_one_kernel(half: np.dtype[Any]) -> None:
    """Values that cross from loop to row and back are halves there too."""

    def softmax(x: Array) -> Array:
        e = np.exp(x - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    x = np.random.default_rng(8).normal(0, 3, (17, 200)).astype(half)
    got = ok.compile(softmax)(x)
    assert got.dtype == half
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    true = e / e.sum(1, keepdims=True)
    assert np.abs(got.astype(np.float64) - true).max() <= 8 * unit(half) * true.max()


# ---- other libraries ----


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_torch_round_trip(name: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(-6, 6, dtype=getattr(torch, name)).reshape(3, 4) / 7
    f = ok.compile(lambda x: x * x + x)
    for given in (x, x.T, x[:, ::2], x[0, 0], x[:0]):
        got = f(given)
        assert got.dtype == x.dtype
        assert torch.equal(got, given * given + given)
    out = torch.empty_like(x)
    assert f(x, out=out) is out
    assert torch.equal(out, x * x + x)
    wide = torch.empty(3, 4)
    f(x, out=wide)
    assert torch.equal(wide, (x * x + x).float())


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_jax_round_trip(name: str) -> None:
    jnp = pytest.importorskip("jax.numpy")
    x = jnp.arange(-6, 6, dtype=name) / 7
    got = ok.compile(lambda x: x * x + x)(x)
    assert type(got) is type(x)
    assert got.dtype == x.dtype
    assert_same(np.asarray(got), np.asarray(x) * np.asarray(x) + np.asarray(x))


def test_without_ml_dtypes() -> None:
    """Nothing imports it until bfloat16 is met; then the refusal says what to install."""
    pytest.importorskip("torch")
    code = """
import sys
sys.modules["ml_dtypes"] = None
import numpy as np, torch
import opkiln as ok
f = ok.compile(lambda x: x + x)
assert f(np.ones(3, np.float16)).dtype == np.float16
for call in (lambda: f(torch.ones(3, dtype=torch.bfloat16)), lambda: ok.TensorSpec(3, "bfloat16")):
    try:
        call()
    except ok.errors.UnsupportedDType as error:
        assert "pip install ml_dtypes" in str(error), error
    else:
        raise AssertionError
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


# ---- the rest of the runtime ----


@HALVES
def test_specs_keys_and_pickles(half: np.dtype[Any]) -> None:
    spec = ok.TensorSpec((None, 3), half.name)
    assert spec.dtype == half
    assert half.name in repr(spec)
    assert pickle.loads(pickle.dumps(spec)) == spec
    x = np.ones((2, 3), half)
    f = ok.compile(lambda x: x * half.type(0.5))
    f.warmup(spec)
    built = f.info().builds + f.info().disk_hits
    got = f(x)
    assert f.info().builds + f.info().disk_hits == built  # by the kernel that the spec announced
    assert_same(pickle.loads(pickle.dumps(got)), x * half.type(0.5))


def test_keys_tell_the_halves_apart() -> None:
    others = [np.dtype(t) for t in (ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn)]
    values = [F16, BF16, np.dtype("V2"), np.dtype(np.uint16), *others]
    assert len({encode(v) for v in values}) == len(values)
    scalars = [F16.type(0), BF16.type(0), np.uint16(0)]
    assert len({encode(v) for v in scalars}) == len(scalars)


# ---- FIELD-CASES ----


def test_F021_a_cast_down_and_up_rounds() -> None:
    x = (np.arange(20, dtype=np.float32).reshape(5, 4).T / 7).astype(np.float32)
    for half in (F16, BF16):
        like_numpy(lambda x, half=half: {"back": x.astype(half).astype(np.float32)}, x)
        got, sums = ok.compile(
            lambda x, half=half: (
                (back := x.astype(half).astype(np.float32)), back.sum(1)
            )
        )(x)  # fmt: skip
        np.testing.assert_allclose(sums, got.sum(1), rtol=1e-6)
        change = np.abs(got - x).max()
        assert change == pytest.approx(8.37e-4 if half == F16 else change, rel=1e-2)
        assert change > 0


@HALVES
def test_F022_a_value_is_compared_as_it_is_stored(half: np.dtype[Any]) -> None:
    x = np.random.default_rng(9).normal(0, 1, (8, 64)).astype(half)

    def ties(x: Array) -> dict[str, Array]:
        y = x / half.type(np.sqrt(8))
        return {"n": (y == y.max(1, keepdims=True)).sum(1)}

    like_numpy(ties, x)
    assert (ok.compile(ties)(x)["n"] >= 1).all()


@HALVES
@pytest.mark.parametrize("level", [0, 2])
def test_F023_one_value_for_every_reader(half: np.dtype[Any], level: int) -> None:
    x = np.full(1000, 300 if half == F16 else 1e30, half)
    t, quotient = ok.compile(lambda x: ((t := x * x), t / x), opt_level=level)(x)
    assert np.isinf(t.astype(np.float32)).all()
    assert np.isinf(quotient.astype(np.float32)).all()


# ---- the bodies of every target ----

_SOURCE = """
#define OK_N {lanes}
#define OK_IOTA
{sections}
extern "C" void widen(const char *p, char *q, i64 n) {{
  for (; n > 0; n -= OK_N, p += 2 * OK_N, q += 4 * OK_N)
    ok_store(q, ok_widen_{name}(ok_load<u16>(p)));
}}
extern "C" void narrow(const char *p, char *q, char *r, i64 n) {{
  for (; n > 0; n -= OK_N, p += 4 * OK_N, q += 2 * OK_N, r += 4 * OK_N) {{
    const vf32 x = ok_round_{name}(ok_load<f32>(p));
    ok_store(q, ok_narrow_{name}(x));
    ok_store(r, x);
  }}
}}
"""


@pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("g++") is None, reason="needs g++ on x86-64"
)
@HALVES
def test_bodies_agree_on_every_target(half: np.dtype[Any], tmp_path: Path) -> None:
    """F16C in vectors of every width, and the integers of machines without it: NaN alike too."""
    name = {F16: "f16", BF16: "bf16"}[half]
    text = "\n".join(sections("bodies")[part][1] for part in closure([f"ok_round_{name}"]))
    near = quietly(lambda: near_ties(half).astype(np.float32))
    drawn = np.random.default_rng(5).integers(0, 2**32, 2**18, np.uint64).astype(np.uint32)
    single = np.resize(np.concatenate([near, drawn.view(np.float32)]), 2**19)
    x, results = every(half), []
    targets = [("native", 16), ("native", 32), ("x86-64-v3", 8), ("x86-64-v3", 4), ("x86-64", 16)]
    for march, lanes in targets:
        library = tmp_path / f"{march}-{lanes}.so"
        flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-fno-strict-aliasing", "-xc++"]
        subprocess.run(
            ["g++", f"-march={march}", *flags, "-o", str(library), "-"],
            input=_SOURCE.format(lanes=lanes, sections=text, name=name),
            text=True, check=True,
        )  # fmt: skip
        loaded = ctypes.CDLL(str(library))
        wide, narrow = np.empty(2**16, np.float32), np.empty(single.size, half)
        rounded = np.empty_like(single)
        loaded.widen(*_pointers(x, wide), ctypes.c_int64(2**16))
        loaded.narrow(*_pointers(single, narrow, rounded), ctypes.c_int64(single.size))
        assert_same(wide, quietly(lambda: x.astype(np.float32)))
        assert_same(narrow, quietly(lambda: single.astype(half)))
        assert_same(rounded, quietly(lambda narrow=narrow: narrow.astype(np.float32)))
        results.append(b"".join(a.tobytes() for a in (wide, narrow, rounded)))
    assert len(set(results)) == 1


def _pointers(*arrays: Array) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(a.ctypes.data) for a in arrays]


@HALVES
def test_composites_keep_the_half(half: np.dtype[Any]) -> None:
    def every(x: Any) -> Any:
        rounded = tuple([np.round(x, digits) for digits in (-1, 0, 1, 3)])
        return (*rounded, np.angle(x, deg=True), np.nan_to_num(x))

    x = np.array([0.05, -1.25, 17.5, 250, -0.0, np.nan, np.inf], half)
    with np.errstate(all="ignore"):
        want = every(x)
    for got, one in zip(ok.compile(every)(x), want, strict=True):
        assert got.dtype == one.dtype == half
        np.testing.assert_array_equal(got.astype(np.float32), one.astype(np.float32))
