"""Complex numbers through all layers: what the tests of the whole table do not see.

Values of rows that round against mpmath, C99's special cases, sums, weak numbers, layouts, other
libraries.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from tests.tracing import check, refused, run

import opkiln as ok
from opkiln.ops.defs import encode
from opkiln.ops.elementwise.complex import modulus_rows
from opkiln.runtime import errors

C8, C16 = np.complex64, np.complex128
TYPES = [C8, C16]
TRUTH: dict[str, Callable[[Any], Any]] = {
    "sqrt": mpmath.sqrt,
    "exp": mpmath.exp,
    "exp2": lambda z: mpmath.exp(z * mpmath.ln(2)),
    "expm1": lambda z: mpmath.exp(z) - 1,
    "log": mpmath.log,
    "log2": lambda z: mpmath.log(z) / mpmath.ln(2),
    "log10": lambda z: mpmath.log(z) / mpmath.ln(10),
    "log1p": lambda z: mpmath.log(1 + z),
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "tan": mpmath.tan,
    "sinh": mpmath.sinh,
    "cosh": mpmath.cosh,
    "tanh": mpmath.tanh,
    "arcsin": mpmath.asin,
    "arccos": mpmath.acos,
    "arctan": mpmath.atan,
    "arcsinh": mpmath.asinh,
    "arccosh": mpmath.acosh,
    "arctanh": mpmath.atanh,
    "sign": lambda z: z / abs(z),
}


def real_of(dtype: Any) -> Any:
    return np.empty(0, dtype).real.dtype.type


def normal(shape: Any, dtype: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)


def joined(re: Any, im: Any, dtype: Any) -> Any:
    """Complex numbers by their parts: x + 1j * y is not that, for infinities and -0.0."""
    result = np.empty(np.shape(re), dtype)
    result.real, result.imag = re, im
    return result


def every(names: Any, z: Any) -> dict[str, Any]:
    return {name: getattr(np, name)(z) for name in names}


# ---- rows that round ----


def hard_points(dtype: Any) -> Any:
    """All quadrants, around branch points and poles, near overflow, tiny beside large."""
    rng, n = np.random.default_rng(5), 14
    top = 88 if dtype is C8 else 709
    wide = 30 if dtype is C8 else 40

    def sign() -> Any:
        return rng.choice([-1, 1], n)

    def scaled(low: float, high: float) -> Any:
        return sign() * 10.0 ** rng.uniform(low, high, n)

    angle = rng.uniform(-3, 3, n)
    poles = rng.integers(-9, 9, n) * np.pi / 2
    pairs = [
        (rng.normal(size=n), rng.normal(size=n)),
        (20 * rng.normal(size=n), 20 * rng.normal(size=n)),
        (scaled(-9, 3), scaled(-9, 2.5)),
        (np.cos(angle), np.sin(angle)),
        (1 + scaled(-9, 0), scaled(-12, 0)),
        (-1 + scaled(-9, 0), scaled(-12, 0)),
        (scaled(-12, 0), 1 + scaled(-9, 0)),
        (rng.uniform(-4, 4, n), scaled(-wide, -5)),
        (scaled(-wide, -5), rng.uniform(-4, 4, n)),
        (sign() * rng.uniform(top - 5, top + 2, n), rng.uniform(-4, 4, n)),
        (rng.uniform(-4, 4, n), sign() * rng.uniform(top - 5, top + 2, n)),
        (scaled(-3, 0) * 1e-3, poles + scaled(-3, 0) * 1e-3),
        (scaled(wide - 2, wide), scaled(-2, 2)),
    ]
    return np.concatenate([joined(re, im, dtype) for re, im in pairs])


def far_off(got: complex, true: Any, dtype: Any) -> float:
    """The error in eps of the modulus, 0 where an overflow is right."""
    info = np.finfo(dtype)
    if not (np.isfinite(got.real) and np.isfinite(got.imag)):
        largest = max(abs(true.real), abs(true.imag))
        return 0.0 if largest >= float(info.max) * (1 - 4 * float(info.eps)) else np.inf
    size = max(abs(true), mpmath.mpf(float(info.tiny)))
    return float(abs(mpmath.mpc(got) - true) / size / float(info.eps))


@pytest.mark.parametrize("dtype", TYPES)
def test_functions_err_by_few_eps_of_the_modulus(dtype: Any) -> None:
    """The contract says 16; what is reached is about 2."""
    assert set(TRUTH) == set(modulus_rows())
    z = hard_points(dtype)
    got = ok.compile(partial(every, list(TRUTH)))(z)
    with mpmath.workdps(140):
        for name, true in TRUTH.items():
            points = [mpmath.mpc(complex(v)) for v in z]
            limit = 1000 if name == "exp2" else np.inf  # the angle itself rounds, as in NumPy
            errors_at = [
                (far_off(complex(g), mpmath.mpc(true(p)), dtype), complex(p))
                for g, p in zip(got[name], points, strict=True)
                if abs(p.imag) < limit
            ]
            error, at = max(errors_at, key=lambda found: found[0])
            assert error <= 3, f"{name}: {error:.1f} eps at {at}"


@pytest.mark.parametrize("dtype", TYPES)
def test_branch_cuts_follow_the_sign_of_zero(dtype: Any) -> None:
    cuts = [2.5, -2.5, 0.5, -0.5]
    z = joined([*cuts, *cuts, 0.0, 0.0, -0.0, -0.0], [0.0] * 4 + [-0.0] * 4 + [3, -3, 3, -3], dtype)
    z = np.concatenate([z, joined(z.imag, z.real, dtype)])
    names = [n for n in TRUTH if n not in ("expm1", "exp2", "sign")]
    got = ok.compile(partial(every, names))(z)
    for name in names:
        want = getattr(np, name)(z)
        np.testing.assert_allclose(got[name], want, rtol=4e-6, atol=1e-6, err_msg=name)
        for part in ("real", "imag"):
            g, w = getattr(got[name], part), getattr(want, part)
            odd = (np.signbit(g) != np.signbit(w)) & (abs(w) != 0)
            assert not odd.any(), (name, part, z[odd], g[odd], w[odd])


@pytest.mark.parametrize("dtype", TYPES)
def test_special_values_are_those_of_C99(dtype: Any) -> None:
    """NumPy's, except signs that C99 leaves open: of a part beside a NaN."""
    values = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan]
    grid = np.array(list(itertools.product(values, repeat=2)))
    z = joined(grid[:, 0], grid[:, 1], dtype)
    names = [n for n in TRUTH if n not in ("expm1", "exp2", "log2", "log10", "log1p")]
    got = ok.compile(partial(every, names))(z)
    with np.errstate(all="ignore"):
        want = every(names, z)
    for name in names:
        g, w = (np.stack([v[name].real, v[name].imag]) for v in (got, want))
        what = f"{name} {dtype.__name__}"
        np.testing.assert_array_equal(np.isnan(g), np.isnan(w), err_msg=what)
        known = np.isfinite(w)
        np.testing.assert_allclose(g[known], w[known], rtol=1e-6, atol=1e-6, err_msg=what)
        infinite = np.isinf(w) & ~np.isnan(w).any(axis=0)
        np.testing.assert_array_equal(g[infinite], w[infinite], err_msg=what)
        np.testing.assert_array_equal(np.isinf(g), np.isinf(w), err_msg=what)
        zero = (w == 0) & (g == 0) & ~np.isnan(w).any(axis=0)
        np.testing.assert_array_equal(np.signbit(g[zero]), np.signbit(w[zero]), err_msg=what)


def test_expm1_of_infinity_has_a_real_part() -> None:
    """Where NumPy's own formula gives NaN."""
    got = ok.compile(np.expm1)(joined([np.inf, -np.inf], [0.0, 2.0], C16))
    assert got[0] == np.inf and got[0].imag == 0
    assert got[1].real == -1 and got[1].imag == 0


@pytest.mark.parametrize("dtype", TYPES)
def test_powers(dtype: Any) -> None:
    """Known integers are products, others go through the logarithm, but for whole ones."""
    z, w = normal(200, dtype), normal(200, dtype, 1)
    whole = np.arange(200) % 19 - 9

    def powers(z: Any, w: Any, whole: Any) -> Any:
        fixed = [z**e for e in (-1, 0, 0.5, 1, 2, 3, 7, -2, 2.5, 1j)]
        return [*fixed, z**w, z**whole, np.power(z, -1), np.power(z, 3)]

    got, want = ok.compile(powers)(z, w, whole), powers(z, w, whole)
    for i, (g, v) in enumerate(zip(got, want, strict=True)):
        assert g.dtype == v.dtype
        np.testing.assert_allclose(g, v, rtol=60 * np.finfo(dtype).eps, err_msg=str(i))
    for i in (0, 1, 3):  # -1, 0 and 1
        np.testing.assert_array_equal(got[i], want[i])
    zeros = joined([0.0, -0.0, 0.0], [-0.0, 0.0, 0.0], dtype)
    at_zero = ok.compile(lambda z, w: (z**1, z**w, z**-w))(zeros, np.array(2, dtype))
    assert not np.signbit(at_zero[0].real).any() and not np.signbit(at_zero[0].imag).any()
    assert (at_zero[1] == 0).all() and np.isnan(at_zero[2]).all()


# ---- sums and the like ----


def statistics(z: Any) -> list[Any]:
    found = [np.sum(z), z.sum(axis=0), z.sum(1, keepdims=True), z.mean(0), z.mean()]
    found += [z.var(), z.var(axis=1, ddof=1), z.std(0), np.nansum(z), np.nanmean(z, axis=0)]
    found += [z.any(axis=0), z.all(), np.count_nonzero(z, axis=1), z.sum(where=abs(z) > 1)]
    return [*found, z.sum(initial=2 - 1j), z - z.mean(axis=1, keepdims=True), z.sum(dtype=C16)]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_sums(dtype: Any, order: Any) -> None:
    z = np.asarray(normal((300, 37), dtype), order=order)
    got, want = ok.compile(statistics)(z), statistics(z)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert (np.asarray(g).dtype, np.shape(g)) == (np.asarray(w).dtype, np.shape(w)), i
        eps = 300 * float(np.finfo(dtype).eps)
        np.testing.assert_allclose(g, w, rtol=eps, atol=eps, err_msg=str(i))


def test_reductions_without_parts_are_refused() -> None:
    for reduce in (np.max, np.argmin, np.prod, np.ptp):
        with refused(errors.NotYet, "complex128 is not supported yet"):
            run(lambda z, reduce=reduce: reduce(z), normal(3, C16))
    assert ok.compile(lambda z: z.sum())(np.empty(0, C8)) == 0
    with refused(errors.TraceError, "ufunc 'floor' not supported"):
        run(lambda z: np.floor(z), normal(3, C8))  # noqa: PLW0108


# ---- numbers of the source, of the call ----


def test_weak_complex_numbers_promote_as_in_numpy() -> None:
    arrays = [np.arange(1, 4).astype(t) for t in ("?", "i1", "u8", "f4", "f8", "c8", "c16")]
    for x in arrays:
        check(lambda x: (x * 1j, 2j + x, x == 1 + 0j, np.where(x > 1, x, 1j)), x)
        check(lambda x: (np.result_type(x, 1j), np.full_like(x, 2.5), x.real, x.imag), x)
        check(lambda x: (np.isreal(x), np.iscomplex(x), np.iscomplexobj(x), np.isrealobj(x)), x)
        check(lambda x: (x.conj() if x.dtype != bool else x, np.real(x), np.imag(x)), x)
    z = arrays[-1] * (1 + 1j)
    check(lambda z: (z * 1e-300j, z / 0.0, z * complex(np.inf, np.nan), z + np.complex64(1)), z)
    check(lambda z, k: (z * k, z + 0.5 * k, z == k), z, 3)
    check(lambda z, k: z * k, z.astype(C8), 1e40)
    check(lambda x, k: x * np.multiply(k, 1j), arrays[3], 3)  # a function makes it strong
    check(lambda x: x * (x.shape[0] * 1j), arrays[3])
    check(lambda x: (np.angle(x), np.angle(x, deg=True), np.round(x, 1), np.clip(x, 1, 2j)), z)


def test_a_complex_argument_is_part_of_the_program() -> None:
    scale = ok.compile(lambda x, k: x * k)
    x = np.arange(3, dtype=np.float32)
    for k in (1j, 2 - 1j, 1j, complex(0.0, -0.0), complex(-0.0, 0.0)):
        got = scale(x, k)
        assert got.dtype == C8
        np.testing.assert_array_equal(got, x * k)
    assert scale.info().traces == 4  # one per value, by its bits
    assert scale(np.complex64(2), np.complex64(1j)) == 2j
    assert encode(complex(0.0, -0.0)) != encode(complex(0.0, 0.0)) != encode(complex(-0.0, 0.0))


def test_casts_are_those_of_astype() -> None:
    z = normal(37, C16) * 40
    x = np.arange(-18, 19).astype(np.int16)

    def casts(z: Any, x: Any) -> list[Any]:
        names = ["c8", "c16", "f4", "f8", "i4", "i8", "?"]
        return [v.astype(name) for v in (z, x, z.astype("c8")) for name in names]

    with pytest.warns(np.exceptions.ComplexWarning):
        want = casts(z, x)
    for compiled in (ok.compile(casts)(z, x), run(casts, z, x)):
        for g, w in zip(compiled, want, strict=True):
            assert g.dtype == w.dtype
            np.testing.assert_array_equal(g, w)


# ---- layouts and owners ----


def step(z: Any, w: Any) -> Any:
    return z * w - z.conj() / 2


@pytest.mark.parametrize("dtype", TYPES)
def test_layouts(dtype: Any, tmp_path: Path) -> None:
    compiled = ok.compile(step)
    z = normal((6, 10, 7), dtype)
    raw = np.zeros(z.nbytes + 1, np.uint8)[1:].view(dtype)
    raw[:] = z.ravel()
    record = np.zeros(20, [("tag", "i1"), ("value", dtype)])
    record["value"] = z.ravel()[:20]
    mapped = np.memmap(tmp_path / "z", dtype, "w+", shape=(5,))
    mapped[:] = z.ravel()[:5]
    frozen = z[0].copy()
    frozen.flags.writeable = False
    for v in (
        z, np.asfortranarray(z), z.transpose(2, 0, 1), z[::-1, ::2], z[:, :, ::-3], z[0, 0, 0],
        np.broadcast_to(z[:1], z.shape), z[:0], z.astype(z.dtype.newbyteorder()), raw,
        record["value"], mapped, frozen, z[:, 2:3], np.array(1 + 2j, dtype),
    ):  # fmt: skip
        got, want = compiled(v, v), step(np.asarray(v), np.asarray(v)).astype(dtype)
        assert (got.dtype, np.shape(got), type(got)) == (want.dtype, want.shape, type(want))
        if np.ndim(v) == 3 and v.size == z.size and 0 not in v.strides:
            assert got.strides == want.strides  # order K
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(compiled(z, z[0, 0]), step(z, z[0, 0]), rtol=1e-5, atol=1e-6)


def test_out() -> None:
    compiled, z = ok.compile(step), normal(40, C8)
    out = np.empty(80, C16)[::2]
    assert compiled(z, z, out=out) is out
    np.testing.assert_allclose(out, step(z, z), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(compiled(z, z, out=z[::-1])[::-1], z[::-1][::-1])
    with pytest.raises(TypeError, match="cannot cast the result from dtype\\('complex64'\\)"):
        compiled(z, z, out=np.empty(40, np.float32))
    compiled.warmup(ok.TensorSpec((None,), C16), ok.TensorSpec((None,), C16))


def test_other_libraries() -> None:
    torch = pytest.importorskip("torch")
    compiled, z = ok.compile(step), normal(40, C8)
    t = torch.from_numpy(z)
    got = compiled(t, t)
    assert got.dtype == torch.complex64
    np.testing.assert_array_equal(got.numpy(), compiled(z, z))
    for lazy in (t.conj(), t[::2].conj()):
        with pytest.raises(errors.ArgumentError, match="resolve_conj"):
            compiled(t[: len(lazy)], lazy)
    np.testing.assert_array_equal(
        compiled(t.conj().resolve_conj(), t).numpy(), compiled(z.conj(), z)
    )
    with pytest.raises(errors.ArgumentError, match="resolve_conj"):
        ok.compile(lambda z: z * t.conj())(t)
    jnp = pytest.importorskip("jax.numpy")
    assert compiled(jnp.asarray(z), jnp.asarray(z)).dtype == C8


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_sinc(dtype: Any) -> None:
    z = np.array([0, 0.5, 1 + 1j, -2.25 + 0.5j, 1e-3j, 1j], dtype)
    got = ok.compile(np.sinc)(z)
    assert got.dtype == dtype
    assert np.all(abs(got - np.sinc(z)) <= 32 * np.finfo(dtype).eps * abs(np.sinc(z)))


def test_composites_of_parts() -> None:
    z = np.array([complex(np.inf, 1), complex(1, -np.inf), complex(np.nan, 0), 2 - 1j, 0])

    def every(z: Any, b: Any) -> Any:
        return (np.isclose(z, z), np.isclose(z, z, equal_nan=True), np.angle(b), b.conj())

    bools = np.array([True, False])
    for got, want in zip(ok.compile(every)(z, bools), every(z, bools), strict=True):
        np.testing.assert_array_equal(got, want, strict=True)
    with pytest.raises(TypeError, match="ambiguous"):
        ok.compile(np.isneginf)(z)
