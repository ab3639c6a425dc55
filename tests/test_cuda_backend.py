"""CUDA sources: what nvcc and the linker are told, what they make of it, what a failure says."""

import ctypes
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests import cuda_trees as trees

from opkiln.runtime import errors
from opkiln.runtime.config import config
from opkiln.runtime.jit import spawn, wheels
from opkiln.runtime.toolchains import CompileOptions, CppBackend, archs
from opkiln.runtime.toolchains.cuda import CudaBackend
from opkiln.runtime.toolchains.tokens import of_driver, of_nvcc, tokens

SOURCE = """#include "size.h"
#include <cstddef>
__global__ void fill(int *p, int n) { if (threadIdx.x < n) p[threadIdx.x] = SIZE; }
extern "C" int answer(void) { return SIZE + EXTRA; }
extern "C" int launch(int *p, int n) { fill<<<1, 32>>>(p, n); return cudaGetLastError(); }
"""


@pytest.fixture(scope="module")
def cuda() -> CudaBackend:
    try:
        return CudaBackend.find()
    except errors.ToolchainNotFound:
        pytest.skip("no nvcc on this machine")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CudaBackend:
    """A backend whose nvcc is a script."""
    monkeypatch.setattr(sys, "path", [])
    with config.scope(cache_dir=tmp_path / "cache"):
        host = CppBackend.find()
        return CudaBackend.find(host, str(trees.toolkit(tmp_path / "cuda")))


def options(archs_of: str = "9.0", **given: object) -> CompileOptions:
    return CompileOptions.of(archs=archs.resolve(archs_of), **given)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    env = spawn.environment()
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def built(command: list[str]) -> str:
    done = run(command)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
    return command[command.index("-o") + 1]


def cuobjdump() -> str:
    beside = [f"{folder}/bin/cuobjdump" for folder in wheels.consolidated()]
    found = [path for name in ("cuobjdump", *beside) if (path := shutil.which(name))]
    if not found:
        pytest.skip("no cuobjdump: pip install nvidia-cuda-cuobjdump")
    return found[0]


def code_in(path: str) -> tuple[list[str], list[str]]:
    """The architectures of the machine code and of the PTX in an object or library."""
    tool = cuobjdump()
    lists = [run([tool, option, path]).stdout for option in ("--list-elf", "--list-ptx")]
    elf, ptx = (sorted({w for w in text.split(".") if w[:3] == "sm_"}) for text in lists)
    return elf, ptx


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda") / "编 x;(é) #1"
    folder.mkdir()
    (folder / "size.h").write_text("#define SIZE 40\n")
    (folder / "a.cu").write_text(SOURCE)
    return folder


# ---- what is built ----


def test_T34_a_source_becomes_a_library_for_each_architecture(
    cuda: CudaBackend, folder: Path
) -> None:
    given = options(
        "7.5;8.0+PTX;9.0",
        cuda_cflags=["-DEXTRA=2\n", "-lineinfo"],
        ldflags=["-Wl,-rpath,/a/b", "-Xlinker -rpath=/c,d e"],
    )
    obj, depfile = str(folder / "a.o"), folder / "a.d"
    built(cuda.compile_command(str(folder / "a.cu"), obj, str(depfile), given))
    library = built(cuda.link_command([obj], str(folder / "a.so"), given))
    assert ctypes.CDLL(library).answer() == 42
    data = Path(library).read_bytes()
    assert b"/a/b:/c,d e:" in data
    target, _, names = depfile.read_text().partition(": ")
    assert shlex.split(target) == [obj]
    read = shlex.split(names.replace("\\\n", " "))
    own = [name for name in read if name.startswith(str(folder))]
    assert own == [str(folder / "a.cu"), str(folder / "size.h")]
    assert [name for name in read if cuda.owns(name)]
    assert not any(cuda.owns(name) for name in own)
    assert code_in(library) == (["sm_75", "sm_80", "sm_90"], ["sm_80"])


def test_T34_device_code_that_has_to_be_linked(cuda: CudaBackend, folder: Path) -> None:
    """A kernel in one file calls a function in another; also code for one GPU only."""
    (folder / "b.cu").write_text(
        "extern __device__ int f(int);\n__global__ void k(int *p) { *p = f(*p); }\n"
        'extern "C" int run(int *p) { k<<<1, 1>>>(p); return 7; }\n'
    )
    (folder / "c.cu").write_text("__device__ int f(int x) { return x + 1; }\n")
    given = options("90a", cuda_cflags=["-rdc=true"], ldflags=["-Wl,--as-needed", "-lm"])
    objects = [f"/{folder.parent}/{name}.o" for name in "bc"]
    for obj, name in zip(objects, "bc", strict=True):
        source = str(folder / f"{name}.cu")
        built(cuda.compile_command(source, obj, f"{obj}.d", given))
    library = built(cuda.link_command(objects, f"{folder.parent}/bc.so", given))
    assert ctypes.CDLL(library).run(None) == 7
    assert code_in(library) == (["sm_90a"], [])


def test_a_refusal_of_nvcc_is_typed(cuda: CudaBackend, folder: Path) -> None:
    bad = folder / "bad.cu"
    bad.write_text("// unsupported GNU version! is not supported\nint f() { return missing; }\n")
    given = options()
    command = cuda.compile_command(str(bad), str(folder / "bad.o"), str(folder / "bad.d"), given)
    done = run(command)
    error = cuda.failure("compile", command, done.returncode, done.stdout + done.stderr, "/k/log")
    assert type(error) is errors.CompileFailed
    assert f'{bad}(2): error: identifier "missing" is undefined' in str(error)
    assert str(error).count("int f() { return missing; }") == 1
    old = [word.replace("90", "35") for word in command]
    done = run(old)
    error = cuda.failure("compile", old, done.returncode, done.stdout + done.stderr, "/k/log")
    assert type(error) is errors.UnsupportedArch
    assert "Unsupported gpu architecture 'compute_35' by CUDA" in str(error)
    assert "sm_90" in (error.fix or "")
    assert (error.stage, error.exit_code, str(error.log_path)) == ("compile", 1, "/k/log")


def test_F108_the_host_compiler_is_that_of_the_other_sources(
    cuda: CudaBackend, tmp_path: Path, folder: Path
) -> None:
    """Also T35: a path of the compiler with blanks, a launcher, flags in the setting."""
    cxx = tmp_path / "my tools" / "cxx"
    cxx.parent.mkdir()
    real = shutil.which("g++")
    cxx.write_text(f'#!/bin/sh\necho "$@" >> \'{tmp_path}/log\'\nexec {real} "$@"\n')
    cxx.chmod(0o755)
    backend = CudaBackend(cuda.toolchain, CppBackend.find(f"env '{cxx}' -DEXTRA=5"))
    command = backend.compile_command(
        str(folder / "a.cu"), str(tmp_path / "a.o"), str(tmp_path / "a.d"), options()
    )
    built(command)
    assert command[command.index("-ccbin") + 1] == str(cxx)
    assert "-DEXTRA=5" in (tmp_path / "log").read_text().splitlines()[-1]


def test_T35_only_the_message_of_nvcc_itself_is_a_host_compiler_that_does_not_fit(
    cuda: CudaBackend, tmp_path: Path, folder: Path
) -> None:
    """The real refusal, of a compiler that says that it is GCC 99; and texts that resemble it."""
    real = shutil.which("g++")
    cxx = tmp_path / "g++"
    cxx.write_text(f'#!/bin/sh\nexec {real} -U__GNUC__ -D__GNUC__=99 "$@"\n')
    cxx.chmod(0o755)
    backend = CudaBackend(cuda.toolchain, CppBackend.find(str(cxx)))
    given = options(cuda_cflags=["-DEXTRA=1"])

    def command() -> list[str]:
        out = str(tmp_path / "a.o")
        return backend.compile_command(str(folder / "a.cu"), out, f"{out}.d", given)

    done = run(command())
    error = backend.failure("compile", command(), done.returncode, done.stderr, "/k/log")
    assert type(error) is errors.HostCompilerIncompatible
    assert "are not supported" in str(error)
    assert str(cxx) in str(error)
    assert "OPKILN_CUDA_ALLOW_UNSUPPORTED" in (error.fix or "")
    with config.scope(cuda_allow_unsupported=True):
        assert "-allow-unsupported-compiler" in command()
        allowed = backend.parts(given)
    assert "-allow-unsupported-compiler" not in command()
    assert allowed != backend.parts(given)
    for text in (
        "a.cu(1): error: this feature is not supported",
        "a.cu(1): error: #error -- unsupported GNU version! of my own",
        "/x/host_config.h:1: note: gcc is no longer supported",
    ):
        assert type(backend.failure("compile", "nvcc", 1, text, "/k")) is errors.CompileFailed


# ---- what is told ----


def test_K31_no_option_is_dropped(fake: CudaBackend) -> None:
    given = options(cflags=["-Wall"])
    for ask in (
        lambda: fake.compile_command("a.cu", "a.o", "a.d", given),
        lambda: fake.link_command(["a.o"], "a.so", given),
        lambda: fake.parts(given),
    ):
        with pytest.raises(errors.ArgumentError, match=r"extra_cflags.*-Wall"):
            ask()
    command = fake.compile_command(
        "a.cu", "a.o", "a.d", options(cuda_cflags=["-G", "-std=c++20"], include_paths=["/i"])
    )
    assert command[command.index("-I") + 1] == "/i"
    assert command.index("-O2") < command.index("-G")
    assert "-std=c++17" not in command
    assert fake.link_command(["a.o"], "a.so", given.for_cuda())
    with pytest.raises(errors.UnsupportedArch, match="none was resolved"):
        fake.compile_command("a.cu", "a.o", "a.d", CompileOptions())


def test_T36_both_backends_say_link_options_in_the_same_order_once(fake: CudaBackend) -> None:
    found = tokens(["-Wl,-rpath,/x,-z,now", "-Lq", "-lfoo", "/y/z.so", "-pthread", "-Xlinker", "a"])
    assert of_driver(found) == [
        *("-Xlinker", "-rpath", "-Xlinker", "/x", "-Xlinker", "-z", "-Xlinker", "now"),
        *("-Lq", "-lfoo", "/y/z.so", "-pthread", "-Xlinker", "a"),
    ]
    assert of_nvcc(found) == [
        *("-Xlinker", "-rpath", "-Xlinker", "/x", "-Xlinker", "-z", "-Xlinker", "now"),
        *("-Lq", "-lfoo", "/y/z.so", "-Xcompiler", "-pthread", "-Xlinker", "a"),
    ]
    with pytest.raises(errors.ArgumentError, match="cannot hand on '/a b'"):
        of_nvcc(tokens(["-rpath", "/a b"]))
    told = fake.link_command(["a.o"], "a.so", options(ldflags=["-Wl,-rpath,/x", "-lfoo"]))
    assert told.count("/x") == told.count("-lfoo") == 1
    lib = f"{fake.toolchain.root}/lib64"
    assert f"-L{lib}" in told
    assert told[told.index(lib) - 3 : told.index(lib)] == ["-Xlinker", "-rpath", "-Xlinker"]
    assert told[-4:] == ["-lcudart_static", "-lrt", "-lpthread", "-ldl"]


def test_T36_libraries_of_wheels_are_named_exactly(
    fake: CudaBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no link without a number; the parts of a split toolkit are all searched."""
    site = tmp_path / "site"
    monkeypatch.setattr(sys, "path", [str(site)])
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    split = trees.split_wheels(site)
    with config.scope(cache_dir=tmp_path / "cache", cuda_home=None, nvcc=None):
        backend = CudaBackend.find(fake.host)
        assert backend.toolchain.root == str(split)
        told = backend.link_command(["a.o"], "a.so", options())
        lib = str(site / "nvidia" / "cuda_runtime" / "lib")
        assert f"-L{lib}" in told and lib in told
        compiled = backend.compile_command("a.cu", "a.o", "a.d", options())
        assert str(site / "nvidia" / "cuda_cccl" / "include") in compiled
        trees.wheel(site, 13)
        backend = CudaBackend.find(fake.host)
        told = backend.link_command(["a.o"], "a.so", options(ldflags=["-lcublas", "-lm"]))
        assert "-l:libcublas.so.13" in told and "-lm" in told
        assert "-l:libcudart.so.13" in told  # there is no static one
        none = backend.link_command(["a.o"], "a.so", options(cuda_cflags=["-cudart", "none"]))
        assert "-l:libcudart.so.13" not in none
        with pytest.raises(errors.ArgumentError, match="cudart"):
            backend.link_command(["a.o"], "a.so", options(cuda_cflags=["-cudart=dynamic"]))


def test_K9_cudnn_is_asked_for_only_where_link_options_name_it(
    fake: CudaBackend, tmp_path: Path
) -> None:
    given = options(ldflags=["-lcudnn"])
    with (
        config.scope(cudnn_root=tmp_path / "nowhere"),
        pytest.raises(errors.ToolchainNotFound, match=r"no cuDNN[^$]*nowhere: no such directory"),
    ):
        fake.link_command(["a.o"], "a.so", given)
    trees.cudnn(tmp_path / "dnn")
    with config.scope(cudnn_root=tmp_path / "dnn"):
        told = fake.link_command(["a.o"], "a.so", given)
        assert str(tmp_path / "dnn" / "include") in fake.compile_command("a.cu", "o", "d", given)
    assert "-l:libcudnn.so.9" in told
    assert f"-L{tmp_path}/dnn/lib" in told
    assert f"-L{tmp_path}/dnn/lib" not in fake.link_command(["a.o"], "a.so", options())


def test_F095_what_nvcc_would_garble_is_refused(fake: CudaBackend) -> None:
    for mark in "\"'$`\\":
        with pytest.raises(errors.ArgumentError, match="nvcc cannot take a path with"):
            fake.compile_command(f"/a{mark}b/a.cu", "a.o", "a.d", options())
    with pytest.raises(errors.ArgumentError, match="','"):
        fake.compile_command("a.cu", "a.o", "a.d", options(include_paths=["/a,b"]))
    assert fake.compile_command("/a,b c/a.cu", "a.o", "a.d", options())


def test_F065_what_decides_is_in_the_key(fake: CudaBackend) -> None:
    given = [
        {},
        {"archs_of": "8.0"},
        {"archs_of": "9.0a"},
        {"cuda_cflags": ["-DA"]},
        {"ldflags": ["-DA"]},
        {"include_paths": ["/DA"]},
        {"std": "c++20"},
    ]
    every = [fake.parts(options(**one)) for one in given]
    assert len({repr(parts) for parts in every}) == len(given)
    other = CppBackend.find(f"{shutil.which('g++')} -m64")
    assert CudaBackend(fake.toolchain, other).parts(options()) != every[0]
    assert ("cuda.archs", ("sm_90", "compute_90")) in every[0]
    names = [name for name, _ in (*every[0], *fake.host.parts(CompileOptions()))]
    assert len(names) == len(set(names))  # one build may have both


def test_F105_a_gone_nvcc_still_has_its_parts(fake: CudaBackend, tmp_path: Path) -> None:
    from dataclasses import replace

    gone = CudaBackend(replace(fake.toolchain, nvcc=""), fake.host)
    assert gone.parts(options()) == fake.parts(options())
    with pytest.raises(errors.ToolchainNotFound, match=r"nvcc 12\.4\.131 is gone"):
        gone.compile_command("a.cu", "a.o", "a.d", options())
