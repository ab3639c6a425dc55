"""Emitted CUDA: golden texts, compiled for a GPU, and run as C++ against the CPU kernels' bits."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import cuda_cases
from tests.cuda_cases import jobs
from tests.cuda_host import Host, needs_nvrtc
from tests.graphs import BOOL, F4, I4, U1, apply, const, inputs, softmax
from tests.test_emit_cpp import division, find, product, weak_scalar
from tests.values import DTYPES, same_bits

from opkiln.runtime.bodies import sections
from opkiln.runtime.emit_cuda import Job, emit, launch
from opkiln.runtime.graph import Graph
from opkiln.runtime.jit import nvrtc
from opkiln.runtime.kernel import Accumulate, Lowered
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
    "product": product,
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


def test_every_function_of_a_body_is_one_of_the_device() -> None:
    """NVRTC takes plain functions too, nvcc does not."""
    for title, (_, text) in sections("cuda").items():
        assert not re.findall(r"^(?:static|inline|__attribute__).*", text, re.MULTILINE), title


# ---- against the CPU kernels ----


@cache
def rows_of(dtype: np.dtype[Any]) -> tuple[Any, Lowered, list[str], tuple[Any, ...]]:
    program, names = cuda_cases.table(dtype, n=200)
    ((compiled, lowered, (call,)),) = cuda_cases.lowered(program)
    return compiled, lowered, names, call


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_every_row_gives_the_bits_of_the_cpu_kernels(dtype: np.dtype[Any], tmp_path: Path) -> None:
    compiled, lowered, names, call = rows_of(dtype)
    got, faults = Host(lowered, tmp_path)(cuda_cases.leaves(call))
    assert len(got) == len(names) >= 20
    for (name, want), value in zip(compiled(*call).items(), got, strict=True):
        same_bits(value, want, f"{name} {dtype.name}")
    # Division by zero, and of the lowest number by -1, is among the operands of integers.
    assert faults == {"i": 5, "u": 1}.get(dtype.kind, 0)


@needs_nvrtc
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_every_row_compiles(dtype: np.dtype[Any]) -> None:
    wanted = cuda_cases.jobs(rows_of(dtype)[1])
    symbols = [job.symbol for job in wanted]
    assert len(nvrtc.cubin(emit(wanted), symbols, name=dtype.name, arch=ARCH).library) > 10_000


@pytest.mark.parametrize("name", cuda_cases.PROGRAMS)
def test_programs_give_the_bits_of_the_cpu_kernels(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_BLOCKS", 2)  # so that a warp takes several rows
    program = cuda_cases.PROGRAMS[name]()
    for at, (compiled, lowered, calls) in enumerate(cuda_cases.lowered(program)):
        (tmp_path / str(at)).mkdir()
        host = Host(lowered, tmp_path / str(at))
        for arrays in calls:
            got, faults = host(arrays, program.weak)
            assert faults == 0
            wanted = compiled(*arrays, *program.weak).items()
            for (what, want), value in zip(wanted, got, strict=True):
                same_bits(value, want, f"{what} of {[a.shape for a in arrays]}")


def test_the_programs_have_what_they_are_for() -> None:
    made = {name: cuda_cases.lowered(p()) for name, p in cuda_cases.PROGRAMS.items()}
    kernels = {
        name: [k for _, low, _ in found for k in low.launches] for name, found in made.items()
    }
    products = [one.kernel.product for one in kernels["products"]]
    assert products.count(True) >= 4 and not all(products)
    assert any("temp" in {b.kind for b in low.buffers} for _, low, _ in made["rows"])
    assert any(one.kernel.folded is not None for one in kernels["normalised"])
    statements = [s for one in kernels["folds"] for s in one.kernel.statements()]
    assert {s.row for s in statements if isinstance(s, Accumulate)} >= {"sum", "argmax", "all"}


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
