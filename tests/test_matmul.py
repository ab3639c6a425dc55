"""Matrix products: every dtype, layout and size against NumPy, and how they are lowered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.values import DTYPES

import opkiln as ok
from opkiln.ops import primitives as p
from opkiln.runtime import blas
from opkiln.runtime.errors import ShapeError
from opkiln.runtime.graph import make
from opkiln.runtime.infer import graph_input

Array = np.ndarray[Any, Any]
SHAPES = [
    ((3, 4), (4, 5)),
    ((33, 70), (70, 19)),
    ((1, 5), (5, 1)),
    ((9, 600), (600, 5)),  # more products than one block of a sum
    ((70, 300), (300, 40)),  # ... and more rows than wait for the next
    ((2, 3, 4), (4, 5)),
    ((5, 1, 8, 8), (3, 8, 8)),
    ((2, 1, 3, 1, 2, 4), (1, 2, 1, 3, 4, 3)),
    ((3, 0), (0, 4)),
    ((0, 3), (3, 4)),
    ((0, 2, 2), (2, 2)),
    ((7,), (7,)),
    ((3, 7), (7,)),
    ((7,), (7, 3)),
    ((2, 3, 7), (7,)),
    ((7,), (2, 7, 4)),
]


@ok.compile
def multiply(a, b):
    return a @ b


def integers(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int = 0) -> Array:
    """Small whole numbers, so that floats are exact too; of integers all there are."""
    rng = np.random.default_rng(seed)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    if dtype.kind == "b":
        return rng.random(shape) < 0.3
    most = 2 if dtype.itemsize == 2 else 9  # sums stay exact in halves
    values = rng.integers(-most, most, shape, endpoint=True).astype(dtype)
    if dtype.kind == "c":
        values += 1j * rng.integers(-most, most, shape)
    return values


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_every_dtype_and_shape(dtype: np.dtype[Any]) -> None:
    for left, right in SHAPES:
        a, b = integers(left, dtype), integers(right, dtype, 1)
        wide = np.float32 if dtype.kind == "V" else dtype  # NumPy has no product of bfloat16
        want = np.asarray(a.astype(wide) @ b.astype(wide)).astype(dtype)
        got = multiply(a, b)
        assert np.shape(got) == want.shape, (left, right)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, want, err_msg=f"{left} {right}")


def layouts(x: Array) -> list[Array]:
    """The same values, and in other memory."""
    turned = np.swapaxes(np.swapaxes(x, -1, -2).copy(), -1, -2)
    spread = np.repeat(np.repeat(x, 2, -1), 3, -2)[..., ::3, ::2]
    backward = x[..., ::-1, ::-1].copy()[..., ::-1, ::-1]
    apart = np.concatenate((x, x), -1)[..., : x.shape[-1]]
    return [x, turned, spread, backward, apart, np.asfortranarray(x)]


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "i4"])
@pytest.mark.parametrize(
    "shapes",
    [
        ((33, 70), (70, 19)),
        ((4, 9, 300), (300, 5)),
        ((20, 15, 21), (20, 21, 8)),  # b's rows are whole vectors, which no panel copies
        ((70, 600), (600, 16)),  # three blocks of a sum
        ((40, 30), (30, 5)),  # with a transposed, b.T @ a.T has fewer idle lanes
        ((9, 30), (30, 20)),  # a wide and a narrow panel
        ((19, 8, 8), (19, 8, 8)),  # where all is dense, a function of its own
        ((19, 8, 8), (8, 8)),
        ((3, 8, 4), (3, 4, 8)),
    ],
    ids=str,
)
def test_a_layout_changes_no_bit(dtype: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    rng = np.random.default_rng(0)
    a, b = ((rng.normal(0, 9, s) + (1j if dtype == "c8" else 0)).astype(dtype) for s in shapes)
    want = multiply(a, b)
    for x in layouts(a):
        for y in layouts(b):
            np.testing.assert_array_equal(multiply(x, y), want)
    for out in layouts(np.zeros_like(want))[1::3]:
        assert multiply(a, b, out=out) is out
        np.testing.assert_array_equal(out, want)


def test_broadcast_operands() -> None:
    a = np.broadcast_to(np.arange(6.0), (4, 6))
    b = np.broadcast_to(np.arange(6.0)[:, None], (6, 3))
    np.testing.assert_array_equal(multiply(a, b), a @ b)
    np.testing.assert_array_equal(multiply(a[:, :1], b[:1]), a[:, :1] @ b[:1])


def test_a_network_is_two_kernels_a_layer() -> None:
    @ok.compile
    def layer(x, w, b):
        return np.maximum(x @ w + b, 0)

    x, w, b = (
        integers((5, 7), np.dtype("f4")),
        integers((7, 3), np.dtype("f4"), 1),
        np.ones(3, "f4"),
    )
    np.testing.assert_array_equal(layer(x, w, b), np.maximum(x @ w + b, 0))
    kernels = [launch.kernel for launch in layer.lower(x, w, b).lowered.launches]
    assert [kernel.product for kernel in kernels] == [True, False]
    plain = ok.compile(lambda x, w: np.abs(x @ w))  # no bias, so of the product's own shape
    np.testing.assert_array_equal(plain(x, w), np.abs(x @ w))
    assert [one.kernel.product for one in plain.lower(x, w).lowered.launches] == [True, False]


def test_a_factor_that_is_a_constant_or_a_number() -> None:
    @ok.compile
    def filled(x, y, h):
        return x @ np.full_like(y, 3), np.full_like(x, h) @ y

    x, y = integers((4, 5), np.dtype("f4")), integers((5, 3), np.dtype("f4"), 1)
    got = filled(x, y, 2.0)
    np.testing.assert_array_equal(got[0], x @ np.full_like(y, 3))
    np.testing.assert_array_equal(got[1], np.full_like(x, 2) @ y)


def test_in_place() -> None:
    @ok.compile
    def turned(x, w):
        y = x + 0
        view = y.T
        y @= w
        return y, view

    x, w = integers((4, 5), np.dtype("f4")), integers((5, 5), np.dtype("f4"), 1)
    got, view = turned(x, w)
    np.testing.assert_array_equal(got, x @ w)
    np.testing.assert_array_equal(view, (x @ w).T)
    for other in (w[:, :1], w[:, :4]):  # NumPy refuses what would have to broadcast
        with pytest.raises(ShapeError, match=r"matmul|matrix"):
            turned(x, other)
    with pytest.raises(ShapeError, match="rank 1"):
        ok.compile(lambda x, w: turned(x, w[:, 0] if w.ndim > 2 else w.sum(1)))(x, w)


# ---- by a BLAS ----


@pytest.fixture
def always_blas() -> Iterator[blas.Blas]:
    """However small the product; executors of `multiply` are not made anew."""
    found = blas.ready()
    if found is None:
        pytest.skip("no BLAS here")
    blas.use(found, least=1)
    yield found
    blas.use(found)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_a_blas_takes_every_layout(dtype: str, always_blas: blas.Blas) -> None:
    by_blas = ok.compile(lambda a, b: a @ b)
    for left, right in SHAPES:
        a, b = integers(left, np.dtype(dtype)), integers(right, np.dtype(dtype), 1)
        want = a @ b
        np.testing.assert_array_equal(by_blas(a, b), want)
        if min(a.ndim, b.ndim) < 2:
            continue
        for x in layouts(a):
            for y in layouts(b):
                np.testing.assert_array_equal(by_blas(x, y), want, err_msg=f"{left} {right}")
        for out in (np.full_like(want, np.nan), *map(np.copy, layouts(want))):
            out[...] = np.nan  # of which a BLAS must read nothing
            np.testing.assert_array_equal(by_blas(a, b, out=out), want)
        spread = np.full((*want.shape[:-1], 2 * want.shape[-1]), np.nan, dtype)
        np.testing.assert_array_equal(by_blas(a, b, out=spread[..., ::2]), want)
        assert np.isnan(spread[..., 1::2]).all()


def test_a_product_by_blas_builds_no_kernel(always_blas: blas.Blas) -> None:
    by_blas = ok.compile(lambda a, b: a.T @ b)  # no other test has this program
    a = integers((5, 7), np.dtype("f4"))
    np.testing.assert_array_equal(by_blas(a, a), a.T @ a)
    info = by_blas.info()
    assert info.builds + info.disk_hits == 0


def test_numpys_own_blas_is_found() -> None:
    known = ["/usr/lib/libcblas.so.3", "/x/numpy.libs/libscipy_openblas64_.so", "/usr/lib/libm.so"]
    assert blas.among(known) == [known[1], known[0]]
    loaded = [path for path in blas._loaded() if "numpy" in path]
    if not loaded:
        pytest.skip("this NumPy brings none along")
    found = blas.ready()
    assert found is not None
    assert found.library.path == loaded[0]
    assert found.wide == found.names.endswith("64_")


def test_without_a_blas_kernels_multiply() -> None:
    found = blas.ready()
    blas.use(None)
    try:
        large = integers((140, 150), np.dtype("f4"))
        alone = ok.compile(lambda a, b: a.T @ b.T)
        np.testing.assert_array_equal(alone(large, large.T), large.T @ large)
        assert alone.info().builds + alone.info().disk_hits == 1
    finally:
        blas.use(found)


# ---- errors of floats, random shapes, memory ----


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("size", [(40, 5000, 33), (200, 200, 200)], ids=str)
def test_the_error_is_within_that_of_pairwise_sums(dtype: str, size: tuple[int, ...]) -> None:
    """Kernel and BLAS: of k products as of NumPy's sum of k numbers."""
    m, k, n = size
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(m, k)).astype(dtype), rng.normal(size=(k, n)).astype(dtype)
    true = a.astype(np.longdouble) @ b.astype(np.longdouble)
    bound = (24 + np.log2(k)) * np.finfo(dtype).eps * (np.abs(a) @ np.abs(b))
    found = blas.ready()
    for least in (1, 2**62):
        blas.use(found, least=least)
        try:
            fresh = ok.compile(lambda a, b, c: a @ b + c)
            got = fresh(a, b, np.zeros(n, dtype))
        finally:
            blas.use(found)
        assert (np.abs(got - true) <= bound).all()


@given(data=st.data())
def test_random_batches(data: st.DataObject) -> None:
    side = st.integers(0, 9)
    batch = data.draw(st.lists(st.integers(0, 3), max_size=4))
    m, k, n = data.draw(side), data.draw(side), data.draw(side)

    def operand(core: tuple[int, int], seed: int) -> Array:
        start = data.draw(st.integers(0, len(batch)))
        shape = [data.draw(st.sampled_from([1, size])) for size in batch[start:]]
        x = integers((*shape, *core), np.dtype("i4"), seed)
        perm = data.draw(st.permutations(range(x.ndim)))
        moved = np.transpose(np.transpose(x, perm).copy(), np.argsort(perm))
        flip = tuple(slice(None, None, data.draw(st.sampled_from([1, -1]))) for _ in shape)
        return moved[flip]

    a, b = operand((m, k), 0), operand((k, n), 1)
    np.testing.assert_array_equal(multiply(a, b), a @ b)


def test_out_may_overlap_an_operand() -> None:
    x = integers((6, 6), np.dtype("f8"))
    want = x @ x
    copied = x.copy()
    assert multiply(copied, copied, out=copied) is copied
    np.testing.assert_array_equal(copied, want)
    line = np.zeros(50)
    line[:36] = x.ravel()
    operand, out = line[:36].reshape(6, 6), line[10:46].reshape(6, 6)
    np.testing.assert_array_equal(multiply(operand, x, out=out), want)


def test_every_level_gives_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(5, 9, 40)).astype("f4"), rng.normal(size=(40, 21)).astype("f4")

    def network(x, w):
        h = np.tanh(x @ w)
        return h @ np.exp(w).T, (h * 2) @ w.T, h.sum()

    levels = [ok.compile(network, opt_level=level)(x, w) for level in (0, 1, 2)]
    for other in levels[1:]:
        for got, want in zip(other, levels[0], strict=True):
            np.testing.assert_array_equal(got, want)


def test_what_a_product_reads_through_views_is_not_copied() -> None:
    @ok.compile
    def gram(x, y):
        return x.T @ np.broadcast_to(y[None], (3, *y.shape)), (x + 1) @ y.T

    x, y = integers((4, 5), np.dtype("f4")), integers((4, 5), np.dtype("f4"), 1)
    for got, want in zip(gram(x, y), (x.T @ np.stack([y] * 3), (x + 1) @ y.T), strict=True):
        np.testing.assert_array_equal(got, want)
    kernels = [one.kernel for one in gram.lower(x, y).lowered.launches]
    assert [kernel.product for kernel in kernels].count(False) == 1  # x + 1


def test_halves_and_bools_are_no_products_of_the_graph() -> None:
    for dtype in (np.float16, np.bool_):
        x = graph_input(0, np.dtype(dtype), 2)
        with pytest.raises(TypeError, match="cast to float32 first"):
            make(p.MatMul(), x, x)


@pytest.mark.parametrize(
    ("order", "axis"),
    [(None, None), (None, 0), (2, 1), (1, -1), (np.inf, 0), (-np.inf, 1), ("fro", None),
     (None, (0, 1)), ("fro", (1, 0))],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "c8"])
def test_norms(order: Any, axis: Any, dtype: str) -> None:
    x = np.random.default_rng(0).normal(0, 5, (4, 6)).astype(dtype)
    for keep in (False, True):
        want = np.linalg.norm(x, order, axis, keep)
        got = ok.compile(lambda a, k=keep: np.linalg.norm(a, order, axis, k))(x)
        assert np.asarray(got).dtype == want.dtype and np.shape(got) == np.shape(want)
        np.testing.assert_allclose(got, want, rtol=2e-6)


def test_norms_of_singular_values_are_refused() -> None:
    with pytest.raises(ok.errors.TraceError, match="ord='nuc' over 2 axes"):
        ok.compile(lambda a: np.linalg.norm(a, "nuc"))(np.ones((2, 2)))
    with pytest.raises(ok.errors.TraceError, match="ord=2 over 2 axes"):
        ok.compile(lambda a: np.linalg.norm(a, 2))(np.ones((2, 2)))
