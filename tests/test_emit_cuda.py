"""Emitted CUDA: golden texts, compiled for a GPU, and run as C++ against the CPU kernels' bits."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cuda_host import Host, jobs, needs_nvrtc
from tests.graphs import BOOL, F4, I4, U1, apply, const, inputs, softmax
from tests.test_conformance import Calls, dtypes_of, every_row
from tests.test_emit_cpp import division, find, weak_scalar
from tests.values import DTYPES, operands, same_bits

import opkiln as ok
from opkiln.ops.table import ELEMENTWISE
from opkiln.runtime.emit_cuda import Job, emit, launch
from opkiln.runtime.graph import Graph
from opkiln.runtime.jit import nvrtc
from opkiln.runtime.kernel import Lowered
from opkiln.runtime.lower import lower

ARCH = "sm_90"


def broadcast() -> Graph:
    """A matrix, a row and a column."""
    x, row, column = inputs((F4, 2), (F4, 1), (F4, 2))
    return Graph((x, row, column), (apply("add", apply("multiply", x, row), column),))


def mixed() -> Graph:
    """Bytes, words, a constant and truth values: two outputs."""
    x, y, c = inputs((U1, 1), (I4, 1), (BOOL, 1))
    less = apply("less", apply("negative", x), const(4, U1))
    return Graph((x, y, c), (apply("logical_and", less, c), apply("where", c, y, const(7, I4))))


CASES = {
    "broadcast": broadcast,
    "mixed": mixed,
    "division": division,
    "weak_scalar": weak_scalar,
    "find": find,
    "softmax": softmax,
}


def text_of(graph: Graph) -> str:
    return emit(jobs(lower(graph)))


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, golden: Any) -> None:
    text = text_of(CASES[name]())
    # Bodies have tests of their own; the golden holds what this emitter wrote.
    head, _, kernel = text.partition("// ok_k0\n")
    assert "// ok_k0\n" + kernel == golden.ext("cu")
    assert "#include" not in head


@needs_nvrtc
def test_goldens_compile() -> None:
    for name, graph in CASES.items():
        loaded = nvrtc.cubin(text_of(graph()), ["ok_k0"], name=name, arch=ARCH)
        assert loaded.library.startswith(b"\x7fELF")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_goldens_compile_with_nvcc(tmp_path: Path) -> None:
    kernels = [job.kernel for graph in CASES.values() for job in jobs(lower(graph()))]
    source = tmp_path / "kernel.cu"
    source.write_text(emit([Job(f"ok_k{i}", kernel) for i, kernel in enumerate(kernels)]))
    command = ["nvcc", f"-arch={ARCH}", "-std=c++17", "--fmad=false", "-diag-suppress=177"]
    command += ["-Werror=all-warnings", "-cubin", str(source), "-o", str(tmp_path / "kernel.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_used_bodies_are_pasted() -> None:
    text = text_of(softmax())
    assert "ok_exp(V" in text
    assert "ok_log(V" not in text
    assert "ok_find_next" not in text
    assert "vector_size" not in text.partition("// opkiln")[2].replace("OK_AVX512", "")


# ---- the table ----


@cache
def table(dtype: np.dtype[Any]) -> tuple[Any, Calls, Lowered]:
    """The rows that take the dtype, as one compiled function, its arguments and kernels."""
    taken = {row: d for row in ELEMENTWISE.values() if (d := dtypes_of(row, dtype))}
    calls = {row.name: operands(row, d, n=200) for row, d in taken.items()}
    compiled = ok.compile(every_row)
    return compiled, calls, compiled.lower(calls).lowered


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_every_row_gives_the_bits_of_the_cpu_kernels(dtype: np.dtype[Any], tmp_path: Path) -> None:
    compiled, calls, lowered = table(dtype)
    arrays = [array for operands in calls.values() for array in operands]
    got, faults = Host(lowered, tmp_path)(arrays)
    assert len(got) == len(calls) >= 20
    for (name, want), value in zip(compiled(calls).items(), got, strict=True):
        same_bits(value, want, f"{name} {dtype.name}")
    # Division by zero, and of the lowest number by -1, is among the operands of integers.
    assert faults == {"i": 5, "u": 1, "b": 1}.get(dtype.kind, 0)


@needs_nvrtc
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_every_row_compiles(dtype: np.dtype[Any]) -> None:
    _, _, lowered = table(dtype)
    wanted = jobs(lowered)
    symbols = [job.symbol for job in wanted]
    assert len(nvrtc.cubin(emit(wanted), symbols, name=dtype.name, arch=ARCH).library) > 10_000


# ---- reductions, layouts, scalars ----


def folds(x, y, i, b):
    """Every reduction along each axis and all of them, on floats, bytes and truth values."""
    out = {}
    for axis in (0, 1, None):
        for name in ("sum", "prod", "max", "min", "argmax", "argmin"):
            for array, a in {"x": x, "y": y, "i": i}.items():
                out[name, array, axis] = getattr(np, name)(a, axis=axis)
        for name in ("any", "all", "sum"):
            out[name, "b", axis] = getattr(np, name)(b, axis=axis)
        out["any", "x > y", axis] = np.any(x > y, axis=axis)
    return out


def normalised(x, w, k):
    """The mean of one column may be stored in many: a fold over fewer columns than the stores."""
    centred = x - x.mean(1, keepdims=True)
    return {"normalised": centred / np.sqrt(x.var(1, keepdims=True) + k) * w}


def by_rows(x, y, z, k):
    """Kernels of several loops, with scratch and with row values in later loops."""

    def softmax(a, axis):
        e = np.exp(a - a.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    return {
        "softmax": softmax(x, 1),
        "softmax of columns": softmax(y, 0),
        "softmax of two axes": softmax(z, (0, 2)),
        "sum of two axes": z.sum((0, 2)) * k,
        "log-sum-exp": np.log(np.exp(z).sum(-1)),
        "deviation": y.std(0),
    }


def compared(
    fn: Any, calls: list[tuple[Any, ...]], weak: tuple[float, ...], folder: Path
) -> Lowered:
    """All calls of one function through its CUDA kernels and through its CPU kernels."""
    compiled = ok.compile(fn)
    lowered = compiled.lower(*calls[0], *weak).lowered
    host = Host(lowered, folder)
    for arrays in calls:
        got, faults = host(arrays, weak)
        assert faults == 0
        for (name, want), value in zip(compiled(*arrays, *weak).items(), got, strict=True):
            same_bits(value, want, f"{name} of {[a.shape for a in arrays]}")
    return lowered


SHAPES = ((5, 1), (1, 7), (3, 31), (4, 32), (7, 33), (2, 1100), (37, 513))


def test_folds_give_the_bits_of_the_cpu_kernels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    calls: list[tuple[Any, ...]] = []
    for shape in SHAPES:
        x, y = rng.normal(0, 10, shape).astype("f4"), rng.normal(0, 10, shape)
        i, b = rng.integers(-128, 127, shape, dtype=np.int8), rng.random(shape) < 0.3
        calls.append((x, y, i, b))
    x, y, i, b = calls[-1]
    x[3, 5], x[3, 7], x[5] = np.nan, np.inf, -0.0
    y[2], y[4, 100:] = -np.inf, np.nan
    calls.append((x[:, ::-1], np.asfortranarray(y), i[::-1], np.broadcast_to(b[:1], b.shape)))
    compared(folds, calls, (), tmp_path)


def test_kernels_of_several_loops_give_the_bits_of_the_cpu_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_BLOCKS", 2)  # so that a warp takes several rows
    rng = np.random.default_rng(1)
    calls: list[tuple[Any, ...]] = []
    for shape in (*SHAPES, (70, 40)):
        x, y = rng.normal(0, 3, shape).astype("f4"), rng.normal(0, 3, shape)
        z = rng.normal(0, 1, (3, *shape)).astype("f4")
        calls.append((x, y, z))
    x, y, z = calls[-1]
    calls.append((x[::-1, ::2], y.T, z[:, :, ::-1]))
    lowered = compared(by_rows, calls, (2.5,), tmp_path)
    assert "temp" in {buffer.kind for buffer in lowered.buffers}


def test_folds_of_fewer_columns_than_are_stored(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    columns = ((7, 7), (1, 9), (1, 1), (1, 600), (520, 520), (33, 1))  # of the operand, the weights
    calls = [
        (rng.normal(0, 3, (6, n)).astype("f4"), rng.normal(0, 1, m).astype("f4"))
        for n, m in columns
    ]
    lowered = compared(normalised, calls, (2.5,), tmp_path)
    assert {launch.kernel.folded is None for launch in lowered.launches} == {False}


def test_each_warp_has_scratch_of_its_own() -> None:
    lowered = lower(softmax())
    ((_, place),) = lowered.outputs
    call = launch.Call(lowered, [(1000, 70)])
    assert call.grid(0) == (125, 256)
    (scratch,) = (i for i, b in enumerate(lowered.buffers) if b.kind == "temp")
    assert call.shapes[scratch] == (call.warps(0), 70) == (1000, 70)
    memory = [launch.Memory(4096 * i, shape, (280, 4)) for i, shape in enumerate(call.shapes, 1)]
    words = np.frombuffer(call.arguments(0, memory, 64), np.int64).tolist()
    pointers = [4096 * (o.buffer + 1) for o in lowered.launches[0].kernel.operands]
    assert words == [*pointers, *[280, 4] * 4, 1000, 70, 0, 64]
    assert place != scratch


def elements(x, y, i, s, k, n):
    """Broadcasts, casts, a bool, weak scalars of both kinds."""
    return {
        "broadcast": x * y + s,
        "chain": np.tanh(x * k + y) - y,
        "cast": (x * 100).astype(np.int16) + i,
        "where": np.where(i > n, x, y * k),
        "count": i // n,
        "scalar": s * k,
    }


def test_elements_of_all_layouts_give_the_bits_of_the_cpu_kernels(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(0, 9, (2, 6, 8)).astype("f4"), rng.normal(0, 9, (6, 8)).astype("f4")
    i, s = rng.integers(-99, 99, (6, 8), dtype=np.int16), np.array(0.5, np.float32)
    calls = [
        (x, y, i, s),
        (x[:, ::-1, ::2], y[:, :4].copy(order="F"), i[::-1, 4:], s),
        (np.broadcast_to(x[:1, :, :1], x.shape), y[:, :1], i[:1], s),
        (x[:, :0], y[:0], i[:0], s),
    ]
    compared(elements, calls, (0.25, 3), tmp_path)
