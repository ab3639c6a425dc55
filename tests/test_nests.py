"""Loop nests of reductions: one order of the fold whatever the layout, axis, cut and width."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import opkiln as ok
from opkiln import native

Array = np.ndarray[Any, np.dtype[Any]]

# Around the edges of vectors, of the 32 accumulators, of what a panel takes together (256), of
# blocks (512) and of their pairs.
LENGTHS = (1, 2, 5, 31, 32, 33, 64, 255, 257, 300, 511, 512, 513, 1024, 1100, 1536, 2100)
DTYPES = ("f4", "f8", "i1", "i2", "i4", "i8", "u1", "u4", "u8", "?")


def model(x: Array) -> Array:
    """The sum of each row of floats by the order that docs/numerics.md states."""
    rows, n = x.shape
    blocks: list[Array] = []
    for at in range(0, n, 512):
        block = x[:, at : at + 512]
        fill = np.full((rows, -block.shape[1] % 32), -0.0, x.dtype)
        steps = np.concatenate([block, fill], axis=1).reshape(rows, -1, 32)
        sums = np.full((rows, 32), -0.0, x.dtype)
        for step in range(steps.shape[1]):
            sums = sums + steps[:, step]
        half = 16
        while half:
            sums = sums[:, :half] + sums[:, half : 2 * half]
            half //= 2
        blocks.append(sums[:, 0])
    levels: list[tuple[int, Array]] = []  # a binary counter: equal sizes are added
    for block in blocks:
        size, total = 1, block
        while levels and levels[-1][0] == size:
            total = levels.pop()[1] + total
            size *= 2
        levels.append((size, total))
    total = levels.pop()[1]
    while levels:
        total = levels.pop()[1] + total
    return np.asarray(total + x.dtype.type(0))  # NumPy's sum starts at +0.0, and so is never -0.0


def values(shape: tuple[int, ...], dtype: str) -> Array:
    rng = np.random.default_rng(sum(shape))
    if dtype.startswith("f"):
        scale = 10.0 ** rng.integers(-3, 4, shape)
        return (rng.standard_normal(shape) * scale).astype(dtype)
    return rng.integers(0, 2 if dtype == "?" else 256, shape).astype(dtype)


def layouts(x: Array) -> dict[str, Array]:
    """The same (rows, n) elements: columns near, rows near, both strided, one reversed."""
    rows, n = x.shape
    wide = np.zeros((rows, 3 * n), x.dtype)
    wide[:, ::3] = x
    tall = np.zeros((n, 2 * rows), x.dtype)
    tall[:, ::2] = x.T
    return {
        "columns near": x,
        "rows near": np.asfortranarray(x),
        "strided columns": wide[:, ::3],
        "strided rows": tall[:, ::2].T,
        "reversed": np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    }


def both(x: Array) -> tuple[Array, Array]:
    """An ordered fold and one that no order changes, in one loop."""
    return x.sum(axis=1), x.max(axis=1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_order_in_every_nest(dtype: str) -> None:
    f = ok.compile(both)
    for n in LENGTHS:
        # Fewer rows than a vector, a vector and a part of one, many; panels only at some lengths.
        for rows in (1, 3, 21) if n > 40 else (5, 70, 300):
            x = values((rows, n), dtype)
            total = model(x) if dtype.startswith("f") else x.sum(axis=1)
            for name, same in layouts(x).items():
                got, top = f(same)
                assert got.tobytes() == total.tobytes(), (name, rows, n)
                assert top.tobytes() == x.max(axis=1).tobytes(), (name, rows, n)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_rows_beyond_a_panel(dtype: str) -> None:
    f = ok.compile(both)
    for rows, n in ((1025, 257), (2053, 8), (1100, 600)):
        x = values((rows, n), dtype)
        for name, same in layouts(x).items():
            got, top = f(same)
            assert got.tobytes() == model(x).tobytes(), (name, rows, n)
            assert top.tobytes() == x.max(axis=1).tobytes(), (name, rows, n)


def test_mixed_axes_fold_in_logical_order() -> None:
    f = ok.compile(lambda x, axis: (x.sum(axis=axis), x.max(axis=axis)), static="axis")
    for shape in ((3, 5, 512), (2, 70, 96), (4, 3, 33), (40, 9, 8), (3, 4, 1024)):
        x = values(shape, "f4")
        for axis in ((0, 2), (0, 1), (1, 2), (1,), (0, 1, 2)):
            kept = tuple(a for a in range(3) if a not in axis)
            flat = x.transpose(*kept, *axis).reshape(
                int(np.prod([shape[a] for a in kept])), int(np.prod([shape[a] for a in axis]))
            )
            for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)):
                # The same logical array with its axes in another order in memory.
                same = np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
                got, top = f(same, axis)
                assert got.ravel().tobytes() == model(flat).tobytes(), (shape, axis, order)
                assert top.ravel().tobytes() == flat.max(axis=1).tobytes(), (shape, axis, order)


def test_a_maximum_shows_no_order() -> None:
    f = ok.compile(lambda x: x.max(axis=1))
    rng = np.random.default_rng(0)
    for n in (7, 33, 600):
        x = rng.choice(np.array([0.0, -0.0, -1.0], "f4"), (70, n), p=[0.05, 0.05, 0.9])
        x[::7, n // 2] = -np.nan
        results = {name: f(same).tobytes() for name, same in layouts(x).items()}
        assert len(set(results.values())) == 1, results.keys()


def test_row_programs_in_every_nest() -> None:
    """A softmax whose loops store, in each layout; a row's bits depend on that row alone."""

    def softmax(x: Array, axis: int) -> Array:
        e = np.exp(x - x.max(axis=axis, keepdims=True))
        return e / e.sum(axis=axis, keepdims=True)

    f = ok.compile(softmax, static="axis")
    for n in (5, 33, 700):
        x = values((70, n), "f4") / 300
        want = f(x, 1)
        np.testing.assert_allclose(want, softmax(x.astype("f8"), 1), rtol=1e-5, atol=1e-30)
        for name, same in layouts(x).items():
            assert np.ascontiguousarray(f(same, 1)).tobytes() == want.tobytes(), (name, n)
            across = np.ascontiguousarray(f(same.T, 0).T)
            assert across.tobytes() == want.tobytes(), (name, n)
        assert f(x[:1], 1).tobytes() == want[:1].tobytes()


SMALL_STACK = """
import threading
import numpy as np
import opkiln as ok

x = np.arange(300 * 1100, dtype="f4").reshape(300, 1100) % 7
across = [lambda x: x.var(axis=0), lambda x: (x.argmax(axis=0), x.sum(axis=0), x.max(axis=0))]
calls = [(ok.compile(f), a) for f in across for a in (x, x.astype("f8"))]
along = lambda x: [(x + k).sum(axis=1) for k in range(24)]  # 3 KB of each
calls.append((ok.compile(along), x))
wants = [f(x) for f, x in calls]  # here, for tracing takes more stack
got = []
threading.stack_size(64 * 1024)
thread = threading.Thread(target=lambda: got.extend(f(x) for f, x in calls))
thread.start()
thread.join()
for want, result in zip(wants, got, strict=True):
    np.testing.assert_array_equal(result, want)
print("all")
"""


def test_small_stacks_suffice() -> None:
    """The accumulators of a panel take a quarter of a megabyte: not of the caller's stack."""
    done = subprocess.run(
        [sys.executable, "-c", SMALL_STACK], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "all"


def test_scratch_beyond_its_limit_is_dropped_but_not_of_the_call_that_takes_it() -> None:
    total, double = ok.compile(lambda x: x.sum(axis=0)), ok.compile(lambda x: (x + x).sum(axis=0))
    x = values((100, 50), "f4")
    old = native.get_limits()["workspace_bytes"]
    native.set_limits(workspace_bytes=1000)
    try:
        for _ in range(3):  # each call takes the memory of the other function
            assert total(x).tobytes() == model(x.T).tobytes()
            assert double(x).tobytes() == model(x.T + x.T).tobytes()
            assert total.info().workspace_bytes == 0 < double.info().workspace_bytes
    finally:
        native.set_limits(workspace_bytes=old)


def kept(x: Array) -> tuple[Array, Array]:
    """Dear values of two widths, which the kernel keeps for a later loop."""
    e = np.exp(x - x.max(axis=(1, 2), keepdims=True))
    wide = np.log(x.astype("f8") * x.astype("f8") + 1)
    return e / e.sum(axis=(1, 2), keepdims=True), wide - wide.mean(axis=(1, 2), keepdims=True)


def test_many_short_rows_keep_values_in_panels() -> None:
    """As many rows as fill panels and a part of one; alone, a row has the same bits."""
    f = ok.compile(kept)
    for shape in ((64, 1, 23), (200, 3, 5), (130, 2, 1)):
        x = values(shape, "f4") / 300
        found = f(x)
        for got, want in zip(found, kept(x.astype("f8")), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        for row in (0, 63, 64, shape[0] - 1):
            alone = f(x[row : row + 1]) if row < shape[0] else ()
            for got, one in zip(found, alone, strict=False):
                assert got[row].tobytes() == one.tobytes(), (shape, row)
        turned = f(np.asfortranarray(x))
        assert all(a.tobytes() == b.tobytes() for a, b in zip(found, turned, strict=True)), shape


def rows_softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("long_first", [True, False])
@pytest.mark.parametrize("fn", [lambda x: x.var(axis=1), rows_softmax], ids=["var", "softmax"])
def test_one_build_serves_all_sizes(fn: Any, long_first: bool, tmp_path: Any) -> None:
    rng = np.random.default_rng(3)
    shapes = [(0, 1), (1, 1), (1000, 1), (1, 2), (100, 2), (0, 3), (100, 23), (100, 24), (300, 70)]
    ok.clear_cache()
    with ok.config.scope(cache_dir=tmp_path):
        f = ok.compile(fn)
        for shape in reversed(shapes) if long_first else shapes:
            x = rng.standard_normal(shape)
            np.testing.assert_allclose(f(x), fn(x), rtol=1e-12)
        assert (f.info().traces, f.info().builds) == (1, 1), f.explain()


def test_short_and_long_rows_are_found_on_disk_apart(tmp_path: Any) -> None:
    long, short = np.ones((4, 100)), np.ones((100, 4))

    def builds_and_hits(*arrays: Array) -> tuple[int, int]:
        ok.clear_cache()
        f = ok.compile(lambda x: (x * 0.859375).sum(axis=1))
        for array in arrays:
            f(array)
        return f.info().builds, f.info().disk_hits

    with ok.config.scope(cache_dir=tmp_path):
        assert builds_and_hits(long, short) == (1, 0)
        assert builds_and_hits(short, long) == (1, 1)  # only what is for short rows
        with ok.config.scope(assert_cached=True):
            assert builds_and_hits(short, long) == (0, 2)
    with ok.config.scope(cache_dir=tmp_path / "other"):
        assert builds_and_hits(short, long) == (1, 0)  # one unit of both
        with ok.config.scope(assert_cached=True):
            assert builds_and_hits(short, long) == (0, 1)
