"""Emitted C++: the text is reviewed as golden files, and every golden is compiled and loaded."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from tests.graphs import (
    BOOL,
    F4,
    F8,
    I4,
    U1,
    apply,
    chain,
    const,
    fold,
    inputs,
    softmax,
    standardise,
)

import opkiln as ok
from opkiln.ops import primitives as p
from opkiln.runtime.emit_cpp import Job, emit
from opkiln.runtime.graph import Graph
from opkiln.runtime.indexmap import covered
from opkiln.runtime.infer import make
from opkiln.runtime.jit import build_or_load
from opkiln.runtime.lower import lower


def two_outputs() -> Graph:
    """A value and a test of it: a bool result, a constant, a broadcast operand."""
    (x,) = inputs((U1, 1))
    v = apply("negative", x)
    return Graph((x,), (v, apply("less", v, const(4, U1))))


def either() -> Graph:
    """It reads eight times what it stores, so several steps read together."""
    x, y = inputs((I4, 1), (I4, 1))
    return Graph((x, y), (apply("logical_or", x, y),))


def division() -> Graph:
    """Integer division carries faults out of the loop."""
    a, b = inputs((I4, 1), (I4, 1))
    return Graph((a, b), (apply("floor_divide", a, b),))


def weak_scalar() -> Graph:
    """A parameter, a cast to double, a bool operand."""
    x, c = inputs((F4, 1), (BOOL, 1))
    h = make(p.FromHost(F8, "check"), make(p.HostArg(0, "f")))
    return Graph((x, c), (apply("where", c, apply("multiply", x, apply("sqrt", h)), h),))


def row_max() -> Graph:
    """An integer fold without blocks."""
    (x,) = inputs((I4, 2))
    return Graph((x,), (fold("max", x, 1),))


def find() -> Graph:
    """The index of the largest value, beside a test of all values, over the first axis."""
    (x,) = inputs((F4, 2))
    return Graph((x,), (fold("argmax", x, 0), fold("all", apply("less", x, const(9, F4)), 0)))


def product() -> Graph:
    """Matrices in batches that broadcast; the second one is read transposed."""
    a, b = inputs((F4, 3), (F4, 2))
    return Graph((a, b), (make(p.MatMul(), a, make(p.Transpose((1, 0)), b)),))


CASES = {
    "product": (product, 0, "CCC"),
    "chain": (chain, 0, "CCCC"),
    "two_outputs": (two_outputs, 0, "CCC"),
    "either": (either, 0, "CCC"),
    "division": (division, 0, "CCC"),
    "weak_scalar": (weak_scalar, 0, "CCC"),
    "row_max": (row_max, 0, "CG"),
    "find_by_columns": (find, 0, "GGG"),
    "find_by_rows": (find, 0, "rCCC"),
    "softmax": (softmax, 0, "CCCC"),
    "standardise_by_columns": (standardise, 0, "GGG"),
    "standardise_by_rows": (standardise, 0, "rCCC"),
}


def text_of(name: str) -> str:
    graph, index, classes = CASES[name]
    kernel = lower(graph()).launches[index].kernel
    assert len(kernel.operands) == len(classes.removeprefix("r")), str(kernel)
    return emit([Job("ok_k0", kernel, classes)])


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, golden: str) -> None:
    text = text_of(name)
    loaded = build_or_load(text, ["ok_k0"], name="golden")
    assert loaded.addresses["ok_k0"]
    # Bodies have tests of their own; the golden holds what this emitter wrote.
    head, _, kernel = text.partition("// ok_k0 ")
    assert "// ok_k0 " + kernel == golden
    assert "#include" not in head


def test_same_kernel_same_text() -> None:
    assert text_of("softmax") == text_of("softmax")


def test_only_used_bodies_are_pasted() -> None:
    text = text_of("chain")
    assert "ok_tanh(V" in text
    assert "ok_log(V" not in text
    assert "ok_fold" not in text


def test_constants_are_exact_to_the_bit() -> None:
    (x,) = inputs((F4, 1))
    for value in (-0.0, np.inf, np.nan, 1e-45):
        constant = make(p.Constant(np.float32(value)))
        kernel = lower(Graph((x,), (apply("add", x, constant),))).launches[0].kernel
        bits = int(np.float32(value).view(np.uint32))
        assert f"{bits:#x}u" in emit([Job("ok_k0", kernel, "CC")])


def test_grouped_steps_write_every_element_and_no_other() -> None:
    either = ok.compile(np.logical_or)
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-1, 2, 5000).astype("i4") for _ in range(2))
    out = np.empty(5002, bool)
    for n in (*range(200), 4095, 4096, 4200):
        for other in (y[:n], y[7:8]):  # dense, and one element for all lanes
            out[:] = True
            either(x[:n], other, out=out[1 : n + 1])
            assert (out[1 : n + 1] == np.logical_or(x[:n], other)).all()
            assert out[0] and out[n + 1 :].all()


@pytest.mark.parametrize("vector_bytes", [16, 32])
def test_narrow_vectors_compile_and_give_the_same_bits(vector_bytes: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((37, 45)).astype("f4")
    for name, classes in (("softmax", "CCCC"), ("standardise_by_rows", "rCCC")):
        graph, index, _ = CASES[name]
        kernel = lower(graph()).launches[index].kernel
        results = []
        for width in (64, vector_bytes):
            text = emit([Job("ok_k0", kernel, classes)], vector_bytes=width)
            loaded = build_or_load(text, ["ok_k0"], name="golden")
            results.append(launch(loaded.addresses["ok_k0"], kernel, x))
        assert results[0] == results[1]
        assert all(any(result) for result in results[0])


def launch(address: int, kernel: Any, x: np.ndarray[Any, Any]) -> list[bytes]:
    """Run a two-axis kernel by its C ABI; every buffer but the first gets fresh memory."""
    rows, cols = x.shape if kernel.reduced == (1,) else x.shape[::-1]
    size = x.itemsize
    along = {0: x.shape[1] * size, 1: size}
    buffers = {kernel.operands[0].buffer: x}
    for operand in kernel.operands[1:]:  # scratch is written by one operand and read by another
        buffers.setdefault(operand.buffer, np.zeros(x.size, x.dtype))
    memory = [buffers[operand.buffer] for operand in kernel.operands]
    row, col = [], []
    kept, reduced = (0, 1) if kernel.reduced == (1,) else (1, 0)
    for operand in kernel.operands:
        axes = covered(operand.axes)
        strides = along if len(axes) == 2 else {0: size, 1: size}
        row.append(strides[kept] if kept in axes else 0)
        col.append(strides[reduced] if reduced in axes else 0)
    scalars = np.array([np.float32(x.shape[0]).view(np.uint32)], np.uint64)
    pointers = (ctypes.c_void_p * len(memory))(*(m.ctypes.data for m in memory))
    strides = [(ctypes.c_int64 * len(memory))(*s) for s in (row, col, [0] * len(memory))]
    function = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    scratch = np.zeros(function(address)(None, 0, 0) + 64, np.uint8)
    args = (ctypes.c_void_p * 8)(
        ctypes.addressof(pointers),
        ctypes.addressof(strides[0]),
        ctypes.addressof(strides[1]),
        scalars.ctypes.data,
        cols,
        cols,  # in one run
        ctypes.addressof(strides[2]),
        -(-scratch.ctypes.data // 64) * 64,
    )
    assert function(address)(ctypes.addressof(args), 0, rows) == 0
    return [m.tobytes() for m in memory[1:]]


@pytest.mark.parametrize("dtype", ["uint8", "bool", "float64"])
def test_fills_reach_every_element_wherever_the_memory_starts(dtype: str) -> None:
    """Long fills go from one cache line to the next; their vectors may be narrower than a line."""
    # With a kernel of float64 in the unit all vectors have 8 lanes.
    alone, beside = (ok.compile(np.ones_like), ok.compile(lambda x, y: (np.ones_like(x), y + y)))
    other = np.ones(3)
    size = np.dtype(dtype).itemsize
    room = np.empty(5000 * size + 128, np.uint8)
    first = -room.ctypes.data % 64
    for start in range(0, 64, size):
        for n in (4095, 4096, 4200):
            for narrow in (False, True):
                room[:] = 7
                out = room[first + start :][: n * size].view(dtype)
                if narrow:
                    beside(out, other, out=(out, None))
                else:
                    alone(out, out=out)
                assert (out == 1).all()
                assert (room[: first + start] == 7).all()
                assert (room[first + start + n * size :] == 7).all()


@pytest.mark.parametrize("dtype", ["uint8", "float64", "complex128"])
def test_long_rows_count_each_element_once_wherever_their_memory_starts(dtype: str) -> None:
    """In place too, where an element taken twice, before and after a cache line, would show."""
    compiled = ok.compile(lambda x, y, z: (x + y * z, x < y))
    size = np.dtype(dtype).itemsize
    rng = np.random.default_rng(0)
    values, y = (rng.integers(0, 9, 4200).astype(dtype) for _ in range(2))
    room = np.empty(4200 * size + 128, np.uint8)
    first = -room.ctypes.data % 64
    for start in range(0, 64, size // 2 or 1):  # odd halves of a value are not aligned
        for n in (4095, 4096, 4200):
            room[:] = 7
            x = room[first + start :][: n * size].view(dtype)
            x[:] = values[:n]
            want = values[:n] + y[:n] * y[1], values[:n] < y[:n]
            got = compiled(x, y[:n], y[1:2], out=(x, None))
            for a, b in zip((x, got[1]), want, strict=True):
                np.testing.assert_array_equal(a, b)
            assert (room[: first + start] == 7).all()
            assert (room[first + start + n * size :] == 7).all()


def test_a_product_has_vectors_of_its_own() -> None:
    """Other kernels of its unit have as many lanes as without it."""
    jobs = [
        Job(f"ok_k{i}", lower(graph()).launches[0].kernel, classes)
        for i, (graph, classes) in enumerate([(chain, "CCCC"), (product, "CCC")])
    ]
    for vector_bytes in (32, 64):
        text = emit(jobs, vector_bytes=vector_bytes)
        assert f"#define OK_N {vector_bytes // 4}\n" in text
        assert f"#define OK_WIDE {vector_bytes}\n" in text
