"""Elementwise programs over layouts: random ones against NumPy, `out=` in every way, odd memory."""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

import opkiln as ok

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES = ("?", "i1", "i4", "f4", "f8")


@ok.compile
def pair(x: Any, y: Any) -> Any:
    """One ufunc: it also fixes the memory order of the result."""
    return x + y


@ok.compile
def triple(x: Any, y: Any, z: Any) -> Any:
    return x * y + z


def laid_out(
    shape: tuple[int, ...],
    order: tuple[int, ...],
    steps: tuple[int, ...],
    dtype: np.dtype[Any],
    offset: int,
    seed: int,
) -> Array:
    """Random elements whose axes are nested in `order`, with steps in items; 0 repeats one."""
    held = [1 if steps[a] == 0 else shape[a] * abs(steps[a]) for a in order]
    count = math.prod(held)
    memory = bytearray(count * dtype.itemsize + offset)
    array = np.frombuffer(memory, dtype, count, offset).reshape(held)
    values = np.random.default_rng(seed).integers(0, 2 if dtype.kind == "b" else 50, held)
    array[...] = values
    array = array.transpose(np.argsort(order)) if order else array
    array = array[tuple(slice(None, None, steps[a] or None) for a in range(len(shape)))]
    strides = [0 if s == 0 else own for s, own in zip(steps, array.strides, strict=True)]
    return as_strided(array, shape, strides)


@st.composite
def arrays(draw: st.DrawFn, shape: tuple[int, ...], code: str, *, out: bool = False) -> Array:
    """An array of this shape; unless out, one that broadcasts to it and may repeat itself."""
    if not out:
        shape = tuple(draw(st.sampled_from((n, n, n, 1))) for n in shape)
        shape = shape[draw(st.sampled_from((0, 0, 0, len(shape)))) :]
    order = tuple(draw(st.permutations(range(len(shape)))))
    choice = (1, 1, 2, -1, -3) if out else (1, 1, 2, -1, -3, 0)
    steps = tuple(draw(st.sampled_from(choice)) for _ in shape)
    dtype = np.dtype(code).newbyteorder(draw(st.sampled_from("===><")))
    offset = draw(st.sampled_from((0, 0, 0, 1)))
    return laid_out(shape, order, steps, dtype, offset, draw(st.integers(0, 9)))


SHAPES = st.one_of(
    st.lists(st.sampled_from((1, 2, 3, 5, 0)), max_size=6),
    st.lists(st.sampled_from((2, 16, 17, 33)), min_size=2, max_size=3),
    st.permutations((2, 3, 700)),
    st.just((1200,)),
).map(tuple)


def strides_of(array: Any) -> tuple[int, ...]:
    """Strides that matter: of axes that have several elements, in an array that has any."""
    return tuple(s for s, n in zip(array.strides, array.shape, strict=True) if n > 1 and array.size)


@pytest.mark.parametrize("code", DTYPES)
@given(data=st.data())
@settings(max_examples=120)
def test_random_layouts(code: str, data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    x, y, z = (data.draw(arrays(shape, code)) for _ in "xyz")
    got, want = pair(x, y), x + y
    np.testing.assert_array_equal(got, want)
    assert (got.dtype, got.shape, type(got)) == (want.dtype, want.shape, type(want))
    assert strides_of(got) == strides_of(want)
    got, want = triple(x, y, z), x * y + z
    np.testing.assert_array_equal(got, want)
    assert (got.dtype, got.shape, type(got)) == (want.dtype, want.shape, type(want))
    out = data.draw(arrays(want.shape, code, out=True))
    assert triple(x, y, z, out=out) is out  # type: ignore[call-arg]
    np.testing.assert_array_equal(out, want)


@given(
    shape=st.lists(st.sampled_from((1, 2, 2)), min_size=9, max_size=16).map(tuple),
    data=st.data(),
)
@settings(max_examples=60)
def test_ranks_of_9_to_16(shape: tuple[int, ...], data: st.DataObject) -> None:
    x, y = (data.draw(arrays(shape, "f4")) for _ in "xy")
    got, want = pair(x, y), x + y
    np.testing.assert_array_equal(got, want)
    assert strides_of(got) == strides_of(want)


def test_sixteen_axes_that_do_not_join() -> None:
    x = np.arange(2.0**16).reshape((2,) * 16)
    y = x.transpose(*range(0, 16, 2), *range(1, 16, 2))
    for a, b in ((x, y), (y, x[(slice(None, None, -1),) * 16]), (x[..., :1], y[:1])):
        got, want = pair(a, b), a + b
        np.testing.assert_array_equal(got, want)
        assert got.strides == want.strides
    with pytest.raises(ok.errors.ShapeError, match="rank <= 16, got rank 17"):
        pair(np.ones((1,) * 17), 1.0)


# *** out= ***

OUTS = {
    "C": lambda: np.empty((6, 40)),
    "Fortran": lambda: np.empty((6, 40), order="F"),
    "reversed": lambda: np.empty((6, 40))[::-1, ::-1],
    "strided": lambda: np.empty((12, 120))[::2, ::3],
    "byte-swapped": lambda: np.empty((6, 40), ">f8"),
    "unaligned": lambda: np.frombuffer(bytearray(6 * 40 * 8 + 1), "f8", 240, 1).reshape(6, 40),
    "a field": lambda: np.zeros((6, 40), [("a", "i1"), ("b", "f8")])["b"],
    "another dtype": lambda: np.empty((6, 40), "f4"),
    "transposed": lambda: np.empty((40, 6)).T,
}


@pytest.mark.parametrize("name", OUTS)
def test_out_in_every_layout(name: str) -> None:
    out = OUTS[name]()
    x = np.arange(240.0).reshape(6, 40)
    assert pair(x, x, out=out) is out  # type: ignore[call-arg]
    np.testing.assert_array_equal(out, x + x)


@pytest.mark.parametrize("n", [6, 700])
def test_out_overlaps_the_inputs_in_every_way(n: int) -> None:
    """As if every input were read before anything is written."""

    def views(base: Array) -> list[Array]:
        flat = base.ravel()
        square = base[:n, :n] if n < 50 else base[:26, :26]
        return [
            square,
            square.T,
            square[::-1],
            square[:, ::-1],
            square[::-1, ::-1],
            np.roll(square, 0),  # apart
            as_strided(flat[1:], square.shape, square.strides),
            as_strided(flat[base.shape[1] :], square.shape, square.strides),
            as_strided(flat, square.shape, (8, 8)),
        ]

    rows = min(n, 26)
    for at, _ in enumerate(views(np.empty((rows + 2, rows + 2)))):
        for inside in range(9):
            base = np.arange((rows + 2) ** 2, dtype="f8").reshape(rows + 2, rows + 2)
            x, y, out = views(base)[at], views(base)[inside], views(base)[0]
            want = x + y
            pair(x, y, out=out)  # type: ignore[call-arg]
            np.testing.assert_array_equal(out, want, err_msg=f"views {at} and {inside}")


def test_out_overlaps_a_reversed_input_that_starts_outside() -> None:
    n = 3000  # several tiles
    for shift in (1, 2, 700, 2999):
        base = np.arange(3.0 * n)
        x, out = base[shift : shift + n][::-1], base[:n]
        want = x + x
        pair(x, x, out=out)  # type: ignore[call-arg]
        np.testing.assert_array_equal(out, want, err_msg=f"shift {shift}")


def test_what_overlaps_nothing_is_not_copied() -> None:
    """F046: disjoint parts of one buffer, and the very same elements, need no temporary."""
    base = np.arange(2 * 4096.0).reshape(2, 4096)
    kept = base[1].copy()
    f = ok.compile(lambda x, y: x + y)
    f(base[1], base[1], out=base[0])  # type: ignore[call-arg]
    np.testing.assert_array_equal(base[0], kept + kept)
    np.testing.assert_array_equal(base[1], kept)
    f(base[0], base[1], out=base[0])  # type: ignore[call-arg]
    np.testing.assert_array_equal(base[0], 3 * kept)
    assert f.info().copies == 0
    out = np.empty((3, 3))
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        pair(out, out, out=out)  # type: ignore[call-arg]


# *** odd memory ***


def test_empty_arrays_with_odd_strides() -> None:
    for x in (np.zeros((0, 3))[:, ::-1], as_strided(np.zeros(4), (0, 3), (-8, -16))):
        assert pair(x, x).shape == (0, 3)
    assert pair(np.zeros((0, 1)), np.zeros((1, 5))).shape == (0, 5)
    assert pair(np.zeros((3, 0))[::-1], np.zeros((1, 1))).shape == (3, 0)


def test_strides_beyond_2_to_the_31() -> None:
    """Elements 2 GiB apart, of memory that is reserved and not used."""
    reserve = 0x4000 if hasattr(mmap, "MAP_PRIVATE") else 0  # MAP_NORESERVE of Linux
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | reserve
    memory = np.frombuffer(mmap.mmap(-1, 1 << 32, flags=flags), "f8")
    ends = memory[:: 1 << 28]
    ends[:] = 1, 2
    np.testing.assert_array_equal(pair(ends, ends[::-1]), [3, 3])
    grid = memory[: 1 << 24].reshape(4, -1)[:, :: 1 << 19]
    grid[...] = np.arange(grid.size).reshape(grid.shape)
    np.testing.assert_array_equal(pair(grid, grid[::-1]), grid + grid[::-1])


def test_strides_that_no_item_fits() -> None:
    memory = np.zeros(2000, "u1")
    for dtype, step in (("f4", 11), ("f8", 9), ("i2", 3), ("f4", 5)):
        x = np.ndarray((90,), dtype, memory, 1, (step,))
        x[...] = np.arange(90)
        np.testing.assert_array_equal(pair(x, x[::-1]), x + x[::-1])
    packed = np.zeros(70, [("a", "i1"), ("inner", [("b", "f8"), ("c", "i2")])])
    for field in ("b", "c"):
        x = packed["inner"][field]
        x[...] = np.arange(70)
        pair(x, x, out=x)  # type: ignore[call-arg]
        np.testing.assert_array_equal(x, 2 * np.arange(70))
    assert not packed["a"].any()


def test_bools_of_other_bytes_count_as_true() -> None:
    odd = np.tile(np.array([0, 1, 2, 255, 128, 3], "u1"), 20).view("?")
    true = odd.view("u1") != 0
    f = ok.compile(lambda b, x: (~b, b & b, np.where(b, x, -x)))
    for at in (np.s_[:], np.s_[::2], np.s_[::-1]):
        x = np.arange(120.0)[at]
        inverse, both, chosen = f(odd[at], x)
        np.testing.assert_array_equal(inverse.view("u1"), (~true[at]).view("u1"))
        np.testing.assert_array_equal(both.view("u1"), true[at].view("u1"))
        np.testing.assert_array_equal(chosen, np.where(true[at], x, -x))
    last = f(np.broadcast_to(odd[3:4], (6,)), np.arange(6.0))[2]
    np.testing.assert_array_equal(last, np.arange(6.0))


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_memory_maps(mode: str, tmp_path: Any) -> None:
    path = tmp_path / "x"
    np.arange(100.0).tofile(path)
    x: Any = np.memmap(path, "f8", mode)  # type: ignore[call-overload]
    got = pair(x[::2], x[::2])
    assert type(got) is np.ndarray
    np.testing.assert_array_equal(got, np.arange(0, 200, 4.0))
    if mode == "r":
        with pytest.raises(ValueError, match="read-only"):
            pair(x, x, out=x)  # type: ignore[call-arg]
        return
    assert pair(x, x, out=x) is x  # type: ignore[call-arg]
    np.testing.assert_array_equal(x, 2 * np.arange(100.0))
    x.flush()
    written = 2 if mode == "r+" else 1  # "c" keeps its changes to itself
    np.testing.assert_array_equal(np.fromfile(path), written * np.arange(100.0))


@pytest.mark.filterwarnings("ignore:the matrix")
def test_subclasses_are_refused_by_name() -> None:
    class Own(np.ndarray[Any, Any]):
        pass

    for x in (np.matrix([[1.0]]), np.ma.array([1.0], mask=[True]), np.ones(3).view(Own)):
        with pytest.raises(TypeError, match=f"subclass {type(x).__name__}"):
            pair(x, x)
    records = np.rec.array([(1, 2.0), (3, 4.0)], dtype=[("a", "i4"), ("b", "f8")])
    np.testing.assert_array_equal(pair(records.b, records.b), [4, 8])
