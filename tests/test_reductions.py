"""Reductions against NumPy: every row of the table, by dtype, axes, layout and length.

What NumPy computes exactly must be equal; float sums stay within NumPy's pairwise bound of the true
value, and have the same bits wherever their elements lie.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from tests.tracing import traced

import opkiln as ok
from opkiln.ops.defs import ReduceRow
from opkiln.ops.dtypes import SUPPORTED, kind_of
from opkiln.ops.table import REDUCTIONS
from opkiln.runtime import program
from opkiln.runtime.lower import lower
from opkiln.runtime.rewrite import rewrite

Array = np.ndarray[Any, np.dtype[Any]]
Axis = int | tuple[int, ...] | None
# Complex ones reduce by parts: tests/test_complex.py.
DTYPES = [row.numpy for row in SUPPORTED if row.kind != "c"]
LENGTHS = (0, 1, 2, 31, 32, 33, 511, 512, 513, 1025)
AXES: tuple[Axis, ...] = (None, 0, 1, 2, -1, (0, 1), (0, 2), (2, 1), (0, 1, 2), ())


def function_of(row: ReduceRow) -> Callable[..., Any]:
    """What a user would write for this row."""
    found = getattr(np, row.name, row.numpy)
    return found.reduce if isinstance(found, np.ufunc) else found  # type: ignore[no-any-return]


def rows_for(dtype: np.dtype[Any], axis: Axis, size: int) -> list[ReduceRow]:
    """The rows that NumPy has for the dtype, axis and number of elements."""
    return [
        row
        for row in REDUCTIONS.values()
        if (kind_of(dtype) in row.accepts or row.accepts == "b")
        and not (row.finds and isinstance(axis, tuple))
        and not (row.empty and not size)
    ]


def every(x: Any, axis: Axis, keepdims: bool, names: tuple[str, ...]) -> dict[str, Any]:
    """All rows in one traced function: one kernel, a few folds in one loop."""
    return {n: function_of(REDUCTIONS[n])(x, axis=axis, keepdims=keepdims) for n in names}


def compiled() -> Any:
    return ok.compile(every, static=("axis", "keepdims", "names"))


def values(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int = 0) -> Array:
    """Integers of the whole range and ties, floats about one, so that products stay finite."""
    rng = np.random.default_rng([seed, *shape])
    if dtype.kind == "b":
        return rng.random(shape) < rng.choice([0.02, 0.5, 0.98])
    if kind_of(dtype) == "f":
        return (1 + rng.standard_normal(shape) / 16).astype(dtype)
    info = np.iinfo(dtype)
    full = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return np.where(rng.random(shape) < 0.7, full, dtype.type(3))


def layouts(x: Array) -> Iterator[tuple[str, Array]]:
    """The same values in other memory."""
    yield "C", x
    yield "F", np.asfortranarray(x)
    wide = np.zeros(tuple(2 * n + 1 for n in x.shape), x.dtype)[(np.s_[1::2],) * x.ndim]
    wide[...] = x
    yield "spread", wide
    yield "backwards", x[(np.s_[::-1],) * x.ndim].copy()[(np.s_[::-1],) * x.ndim]
    yield "moved", np.moveaxis(np.moveaxis(x, -1, 0).copy(), 0, -1)


def unit(dtype: np.dtype[Any]) -> float:
    return float(ml_dtypes.finfo(dtype).eps) / 2


def pairwise(n: int, dtype: np.dtype[Any]) -> float:
    """NumPy's bound for a sum of n, in units of the sum of magnitudes.

    16 additions in each of 8 accumulators, 3 to join them, then pairs of blocks of 128.
    """
    return (19 + max(math.ceil(math.log2(max(n, 1) / 128)), 0)) * unit(dtype)


def compare(row: ReduceRow, got: Any, x: Array, axis: Axis, keepdims: bool, what: str) -> None:
    with np.errstate(all="ignore"):
        want = np.asarray(function_of(row)(x, axis=axis, keepdims=keepdims))
    got = np.asarray(got)
    assert got.dtype == want.dtype, what
    assert got.shape == want.shape, what
    if row.exactness == "exact" or kind_of(want.dtype) != "f":
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    assert not np.signbit(got[got == 0]).any(), what
    if not want.size:
        return
    wide = x.astype(np.longdouble)
    count = x.size // want.size
    if row.name == "sum":
        true, scale = (v.sum(axis=axis, keepdims=keepdims) for v in (wide, abs(wide)))
        bound = pairwise(count, x.dtype)
    else:
        true = scale = wide.prod(axis=axis, keepdims=keepdims)
        bound = count * unit(x.dtype)
    error = np.max(abs(got - true) - bound * abs(scale), initial=0)
    assert error <= 0, (what, float(error))


# ---- every row ----


@pytest.mark.parametrize("dtype", [DTYPES[i] for i in (0, 1, 8, 9)], ids=lambda d: d.name)
def test_every_row_on_every_axis_and_layout(dtype: np.dtype[Any]) -> None:
    """Widths and kinds at their ends; lengths are tested on every dtype."""
    f = compiled()
    x = values(dtype, (3, 5, 41))
    broadcast = np.broadcast_to(values(dtype, (5, 1)), x.shape)
    for at, axis in enumerate(AXES):
        rows = rows_for(dtype, axis, x.size)
        assert len(rows) >= 7
        for name, array in [*layouts(x), ("broadcast", broadcast)]:
            got = f(array, axis, bool(at % 2), tuple(row.name for row in rows))
            for row in rows:
                what = f"{row.name} {dtype.name} axis={axis} {name}"
                compare(row, got[row.name], array, axis, bool(at % 2), what)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_every_row_at_every_length(dtype: np.dtype[Any]) -> None:
    f = compiled()
    for n in LENGTHS if dtype.name in ("int8", "float32") else LENGTHS[1:]:
        for shape, axis in (((n,), 0), ((3, n), 1), ((n, 3), 0), ((n, 70), 0), ((2, n, 2), 1)):
            x = values(dtype, shape, seed=1)
            rows = rows_for(dtype, axis, n)
            got = f(x, axis, False, tuple(row.name for row in rows))
            for row in rows:
                compare(row, got[row.name], x, axis, False, f"{row.name} {dtype.name} {shape}")


@hypothesis.settings(max_examples=80)
@hypothesis.given(st.data())
def test_any_shape_step_and_axes(data: st.DataObject) -> None:
    """Random layouts of random shapes, compiled: kernels are few, what they walk differs."""
    shape = tuple(data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 40]), max_size=4)))
    hypothesis.assume(math.prod(shape) < 20_000)
    steps = tuple(slice(None, None, data.draw(st.sampled_from([1, 1, 2, -1]))) for _ in shape)
    order = data.draw(st.permutations(range(len(shape))))
    axis = tuple(sorted(data.draw(st.sets(st.sampled_from(range(len(shape))))))) if shape else ()
    x = values(np.dtype(np.int32), shape)[steps].transpose(order)
    f = ok.compile(lambda x: (x.sum(axis), x.prod(axis, dtype=np.int32), (x > 0).all(axis)))
    want = x.sum(axis), x.prod(axis, dtype=np.int32), (x > 0).all(axis)
    for got, expected in zip(f(x), want, strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_special_values(dtype: str) -> None:
    """NaN wins over all, the first of them is found, and infinities are values like others."""
    f = compiled()
    names = ("max", "min", "argmax", "argmin", "any", "all")
    for n in (0, 1, 33, 600):
        zeros = np.full((70, n), -0.0, dtype)
        for array, axis in ((zeros, 1), (zeros.T.copy(), 0)):
            total = f(array, axis, False, ("sum",))["sum"]
            assert not total.any() and not np.signbit(total).any()  # NumPy starts at +0.0
    x = np.clip(values(np.dtype(dtype), (1500, 70)), 0.95, 1.05)  # the first of many ties
    for array, axis in ((x, 0), (x.T.copy(), 1)):
        got = f(array, axis, False, ("sum", "argmax", "argmin"))
        for name in ("argmax", "argmin"):
            np.testing.assert_array_equal(got[name], getattr(np, name)(array, axis=axis))
    x = x.T.copy().reshape(5, -1)  # many long blocks
    got = f(x, 1, False, ("argmax", "argmin"))
    for name in ("argmax", "argmin"):
        np.testing.assert_array_equal(got[name], getattr(np, name)(x, axis=1))
    rng = np.random.default_rng(0)
    pool = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0], dtype)
    for n, allowed in itertools.product((1, 2, 33, 1025), ((0, 7), (1, 7), (1, 2), (2, 3), (1, 3))):
        x = rng.choice(pool[slice(*allowed)], (4, n))
        if allowed[0] == 0 and n > 2:
            x[:, : n // 2] = 1.0  # NaN comes late, after whole blocks
        for array, axis in ((x, 1), (x.T.copy(), 0), (x, None)):
            got = f(array, axis, False, names)
            for name in names:
                want = getattr(np, name)(array, axis=axis)
                np.testing.assert_array_equal(got[name], want, err_msg=f"{name} {n} {allowed}")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sum_has_the_same_bits_wherever_its_elements_lie(dtype: str) -> None:
    """The order is that of the index along the reduced axes, whatever the cut, stride or nest."""

    def sums(x: Any, axis: Axis) -> tuple[Any, ...]:
        return x.sum(axis), x.prod(axis), x.mean(axis), x.var(axis), x.std(axis, ddof=1)

    f = ok.compile(sums, static="axis")
    g = ok.compile(sums, static="axis", opt_level=0)
    for n in (1, 33, 513, 1025, 5000):
        x = values(np.dtype(dtype), (n,), seed=2) * np.float32(1.7)
        want = [np.asarray(v).tobytes() for v in f(x, 0)]
        spread = np.repeat(x, 3)[::3]
        for one in (spread, x[::-1].copy()[::-1]):
            assert [np.asarray(v).tobytes() for v in f(one, None)] == want
        assert [np.asarray(v).tobytes() for v in g(x, 0)] == want
        for others in (1, 3, 70):
            columns = np.stack([x] * others, axis=1)
            places: list[tuple[Array, int]] = [
                (columns, 0),
                (np.asfortranarray(columns), 0),
                (columns.T, 1),
                (columns[::-1].copy()[::-1], 0),
                (np.stack([columns, columns]), 1),
                (np.broadcast_to(x[:, None], columns.shape), 0),
            ]
            for place, axis in places:
                for value, bits in zip(f(place, axis), want, strict=True):
                    assert {np.asarray(v).tobytes() for v in np.ravel(value)} == {bits}
        if n % 3 == 0:  # several axes fold in the order of the flattened array
            cube = x.reshape(3, -1)
            for place in (cube, np.asfortranarray(cube), np.stack([cube, cube], 1)[:, 0]):
                assert [np.asarray(v).tobytes() for v in f(place, (0, 1))] == want


def test_no_bit_depends_on_the_width_of_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_kinds(x: Any, axis: Axis) -> tuple[Any, ...]:
        found = x.argmax(axis), (x > 1).argmin(axis), (x * 64).astype(np.int8).argmin(axis)
        return x.sum(axis), x.prod(axis), x.var(axis), (x > 1).any(axis), x.min(axis), *found

    x = values(np.dtype("f4"), (1100, 33), seed=4)
    results: dict[int, list[bytes]] = {}
    for width in (64, 32, 16):
        monkeypatch.setattr(program, "vector_bytes", lambda width=width: width)
        program.clear_programs()
        f = ok.compile(all_kinds, static="axis")
        results[width] = [v.tobytes() for axis in (0, 1, None) for v in f(x, axis)]
        assert f.info().builds + f.info().disk_hits == 3
    assert results[64] == results[32] == results[16]
    program.clear_programs()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_F027_means_and_deviations_are_as_good_as_numpys(dtype: str, axis: Axis) -> None:
    """Within the bound that summing pairwise and in two passes gives; NumPy exceeds it."""
    x = (values(np.dtype(dtype), (1000, 300), seed=3) + 100).astype(dtype)
    # equal terms round to one side, so a sum without blocks drifts far beyond the bound
    ones = np.full(1 << 21, 1 / 3, dtype)
    off = float(ok.compile(lambda x: x.mean())(ones).astype(np.longdouble) / ones[0] - 1)
    assert abs(off) <= pairwise(ones.size, ones.dtype) + unit(ones.dtype)
    mean, var, std = ok.compile(lambda x: (x.mean(axis), x.var(axis, ddof=1), x.std(axis)))(x)
    wide = x.astype(np.longdouble)
    count = x.size if axis is None else x.shape[axis]
    bound = pairwise(count, x.dtype) + unit(x.dtype)
    true = wide.mean(axis)
    assert np.all(abs(mean - true) <= bound * abs(wide).mean(axis))
    # the mean's own error shifts each deviation, the second pass adds one more sum
    shift = (bound * 101) ** 2
    for got, exact in ((var, wide.var(axis, ddof=1)), (std**2, wide.var(axis))):
        assert np.all(abs(got - exact) <= (2 * bound + 8 * unit(x.dtype)) * exact + shift)
    for got in (mean, var, std):
        assert np.asarray(got).dtype == x.dtype


# ---- functions over several rows ----


def test_compiled_kernels_do_what_the_interpreter_does() -> None:
    """Masks, initial values and functions over several rows, compiled."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((40, 1030)).astype(np.float32)
    x[3, 7] = np.nan

    def calls(x: Any, m: Any, k: Any) -> list[Any]:
        return [
            x.sum(1, where=m, initial=k), x.max(0, where=x > 0, initial=k), x.min(1, initial=-9),
            x.mean(1, where=m), x.var(1, ddof=k), x.std(0), np.nansum(x, 0), np.nanmean(x, 1),
            np.count_nonzero(x > k, 1), np.ptp(x, 1), x.argmax(0), x.argmin(), (x > 3).any(0),
            x.sum(0, initial=x.max(where=x < 9, initial=0)),
            (m & (x < 3)).all(), x.astype(np.int32).prod(1), (x * 9).astype(np.int8).max(1),
            np.bitwise_or.reduce((x * 99).astype(np.int16), 0), (x > k).argmax(1),
        ]  # fmt: skip

    m = rng.random(x.shape) < 0.5
    with np.errstate(all="ignore"):
        want = calls(x, m, 0.5)
    for got, expected in zip(ok.compile(calls)(x, m, 0.5), want, strict=True):
        assert got.dtype == expected.dtype
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)
        else:
            np.testing.assert_array_equal(got, expected)


# ---- fusion ----


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(x.var(axis=-1, keepdims=True) + np.float32(1e-5)) * w + b


def softmax(x: Any) -> Any:
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def logsumexp(x: Any) -> Any:
    top = x.max(axis=-1, keepdims=True)
    return np.log(np.exp(x - top).sum(axis=-1)) + top.squeeze(-1)


def rms_norm(x: Any, w: Any) -> Any:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-6)) * w


def summary(x: Any) -> Any:
    return x.mean(1), x.std(1, ddof=1), np.ptp(x, 1), x.argmax(1), np.count_nonzero(x, 1)


W = np.linspace(0.5, 1.5, 300, dtype=np.float32)


@pytest.mark.parametrize(
    ("fn", "weights"),
    [(softmax, ()), (layer_norm, (W, W)), (logsumexp, ()), (rms_norm, (W,)), (summary, ())],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_row_programs_are_one_kernel(fn: Callable[..., Any], weights: tuple[Array, ...]) -> None:
    x = np.random.default_rng(0).standard_normal((7, 300)).astype(np.float32)
    graph = rewrite(traced(fn, x, *weights).graph)
    assert len(lower(graph).launches) == 1
    got, want = ok.compile(fn)(x, *weights), fn(x, *weights)
    for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (got, want)), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def weighted(x: Any, w: Any) -> Any:
    """A dear value in scratch beside a fold, results per row beside a store of full size."""
    e = np.exp(x - x.max(-1, keepdims=True))
    total = e.sum(-1, keepdims=True)
    return e / total * w - x.mean(-1, keepdims=True), total, x.argmax(-1)


@pytest.mark.parametrize("fn", [weighted, lambda x, w: (layer_norm(x, w, w),)])
def test_weights_may_broadcast_the_reduced_axis(fn: Callable[..., Any]) -> None:
    """One row program serves every extent, also where weights are longer than a row of one."""
    f = ok.compile(fn)
    rng = np.random.default_rng(0)
    sizes = (0, 1, 2, 700)
    for rows, columns, weights in itertools.product((0, 1, 200), sizes[1:], sizes):
        x = rng.standard_normal((rows, columns)).astype(np.float32)
        w = rng.standard_normal(weights).astype(np.float32)
        if columns != weights and 1 not in (columns, weights):
            with pytest.raises(ValueError, match="with shapes"):
                f(x, w)
            continue
        for array in (x, np.asfortranarray(x), x[:, ::-1]):
            for got, want in zip(f(array, w), fn(array, w), strict=True):
                assert got.shape == want.shape
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert f.info().traces == 1


def test_a_store_of_no_columns_writes_none() -> None:
    """Beside the sum of one column: the weights have none."""
    f = ok.compile(lambda x, w: (x.sum(-1), x * w))
    x, w = np.arange(1, 6, dtype=np.float32)[:, None], np.zeros(0, np.float32)
    guarded, total = np.full((5, 3), 7, np.float32), np.zeros(5, np.float32)
    f(x, w, out=(total, guarded[:, 1:1]))
    np.testing.assert_array_equal(total, x[:, 0])
    assert (guarded == 7).all()
