"""Who the C++ compiler is: real and false ones, its C++ library, what a library that fails says."""

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import jit_child as child

from opkiln.runtime import errors, jit
from opkiln.runtime.config import config
from opkiln.runtime.jit import spawn
from opkiln.runtime.toolchains import CompileOptions, CppBackend, abi
from opkiln.runtime.toolchains.cpp import find_cpp

SOURCE = 'extern "C" int answer(void) { return 40 + EXTRA; }\n'


@pytest.fixture(autouse=True)
def scoped(tmp_path: Path) -> Iterator[None]:
    with config.scope(cache_dir=tmp_path / "cache"):
        yield


def answer_of(backend: CppBackend, folder: Path, **given: object) -> int:
    """Compile, link and call."""
    source = folder / "a.cpp"
    source.write_text(SOURCE)
    options = CompileOptions.of(cflags=["-DEXTRA=2"], **given)
    obj, library = str(folder / "a.o"), str(folder / "a.so")
    for command in (
        backend.compile_command(str(source), obj, str(folder / "a.d"), options),
        backend.link_command([obj], library, options),
    ):
        env = spawn.environment()
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 0, done.stderr
    return ctypes.CDLL(library).answer()


# ---- identity ----


def clang(folder: Path) -> str:
    """A real Clang: one on PATH, or the one that the wheel ziglang brings."""
    found = shutil.which("clang++")
    if found:
        return found
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("no clang++ on this machine, and no wheel ziglang")
    path = folder / "zig c++"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m ziglang c++ "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_gcc_and_a_real_clang_are_told_apart_and_both_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPKILN_ABI_CHECK", "off")
    gcc, other = CppBackend.find("g++"), CppBackend.find(clang(tmp_path))
    assert (gcc.compiler.clang, other.compiler.clang) == (False, True)
    assert "gcc" in gcc.compiler.version and "clang" in other.compiler.version
    assert gcc.parts(CompileOptions()) != other.parts(CompileOptions())
    with config.scope(abi_check="off"):
        for backend in (gcc, other):  # without the C++ library, which zig would first have to build
            assert answer_of(backend, tmp_path, ldflags=["-nostdlib"]) == 42
    with config.scope(cxx=" ".join(other.compiler.words)):  # kernels, too
        loaded = jit.build_or_load(child.TEXT, ["answer"], name="answer")
    assert child.call(loaded.addresses["answer"]) == 42


@pytest.mark.parametrize("name", ["clang++", "gcc-x/c++", "apple clang/cl.exe", "nvcc"])
def test_K10_a_name_says_nothing(tmp_path: Path, name: str) -> None:
    """What is GCC is GCC, whatever its file and directory are called."""
    path = child.stub(tmp_path / name, 'exec "$G" "$@"')
    false, real = CppBackend.find(str(path)), CppBackend.find("g++")
    assert false.compiler.clang is False
    assert false.parts(CompileOptions()) == real.parts(CompileOptions())


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("exit 1", "exit 1"),
        ("printf 'no licence: \\377\\376\\n' >&2; exit 3", "exit 3: no licence: \ufffd\ufffd"),
        ("echo 'g++ (GCC) 12.2.0'", "not a working C++ compiler"),  # the banner alone is not proof
        ("kill -9 $$", "exit -9"),
    ],
)
def test_K10_a_false_compiler_says_why_it_is_not_used(tmp_path: Path, body: str, why: str) -> None:
    path = child.stub(tmp_path / "g++", body)
    with pytest.raises(errors.ToolchainNotFound) as caught:
        find_cpp(str(path))
    (probe,) = caught.value.probes
    assert why in probe.why
    assert (probe.tool, probe.place, probe.won) == ("C++", str(path), False)
    assert why in str(caught.value) and str(path) in str(caught.value)
    assert caught.value.stage == "find"


def test_K10_a_banner_that_is_not_utf8(tmp_path: Path) -> None:
    path = child.stub(tmp_path / "g++", 'printf \'caf\\351\\n\' >&2\nexec "$G" "$@"')
    assert find_cpp(str(path)).compiler.version == find_cpp("g++").compiler.version


def test_K10_what_is_no_program_is_an_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "g++"
    path.write_bytes(b"\x7fELF")
    path.chmod(0o755)
    with pytest.raises(errors.ToolchainNotFound, match="could not be started"):
        find_cpp(str(path))
    with pytest.raises(errors.ToolchainNotFound, match="not found"):
        find_cpp(str(tmp_path / "missing"))


def test_T39_where_the_compiler_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def named(place: str) -> str:
        return str(child.stub(tmp_path / place, 'exec "$G" "$@"'))

    argument, ours, common, on_path = map(named, ("arg/c++", "ours/x", "common/x", "path/g++"))
    conda = named(f"conda/bin/{os.uname().machine}-conda-linux-gnu-g++")
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}")
    for tool in ("as", "ld", "sh"):
        (tmp_path / "path" / tool).symlink_to(str(shutil.which(tool, path=os.defpath)))
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    monkeypatch.setenv("OPKILN_CXX", ours)
    monkeypatch.setenv("CXX", common)
    expected = [("OPKILN_CXX", ours), ("CXX", common), ("PATH", conda), ("PATH", on_path)]
    for variable, (source, place) in zip(
        ("OPKILN_CXX", "CXX", "CONDA_PREFIX", ""), expected, strict=True
    ):
        config.reload()
        found = find_cpp()
        won = found.probes[-1]
        assert (won.source, won.place, won.won) == (source, place, True)
        assert find_cpp(argument).probes[-1].source == "argument"
        monkeypatch.delenv(variable, raising=False)
    assert [(p.place, p.why) for p in found.probes[:-1]] == [("c++", "not found")]
    config.reload()


# ---- the C++ library ----


def test_K11_threads_with_flags_of_their_own(
    parallelize: Callable[..., list[abi.Abi]],
) -> None:
    backend = CppBackend.find("g++")

    def ask(index: int) -> abi.Abi:
        flag = f"-D_GLIBCXX_USE_CXX11_ABI={index % 2}"
        return backend.abi(CompileOptions.of(cflags=[flag, f"-std=c++{17 + 3 * (index % 2)}"]))

    for index, found in enumerate(parallelize(ask, 16)):
        strings = "C++11 strings" if index % 2 else "old strings"
        assert found[:2] == ("libstdc++", strings)
        assert found.standard == ("c++20" if index % 2 else "c++17")
    assert backend.abi(CompileOptions()).name == abi.of_process()


def test_F101_a_mismatch_is_a_warning_or_an_error_as_the_setting_says(
    recwarn: pytest.WarningsRecorder,
) -> None:
    backend = CppBackend.find("g++")
    old = CompileOptions.of(cflags=["-D_GLIBCXX_USE_CXX11_ABI=0"])
    with config.scope(abi_check="strict"), pytest.raises(errors.AbiMismatch) as caught:
        backend.link_command(["a.o"], "a.so", old)
    assert "libstdc++, old strings" in str(caught.value)
    assert "-D_GLIBCXX_USE_CXX11_ABI=1" in (caught.value.fix or "")
    with config.scope(abi_check="strict"):
        assert backend.link_command(["a.o"], "a.so", CompileOptions())
    with config.scope(abi_check="off"):
        assert backend.link_command(["a.o"], "a.so", old)
    assert not recwarn.list
    with pytest.warns(errors.OpkilnWarning, match="C\\+\\+ types cannot be shared"):
        assert backend.link_command(["a.o"], "a.so", old)


def test_F101_the_library_of_a_compiler_is_what_its_headers_say() -> None:
    gcc = find_cpp("g++").compiler
    llvm = gcc._replace(library=("_LIBCPP_VERSION=190100", "__GXX_ABI_VERSION=1002"))
    assert abi.of_compiler(llvm) == abi.Abi("libc++", "", "190100", "")
    assert abi.of_compiler(gcc, ["-stdlib=libc++"]).name == "libc++"
    assert abi.of_compiler(gcc._replace(library=())).name == ""
    abi.compare(abi.of_compiler(gcc._replace(library=())))  # unknown is no mismatch
    with config.scope(abi_check="strict"), pytest.raises(errors.AbiMismatch, match=r"is libc\+\+"):
        abi.compare(abi.of_compiler(llvm))
    parts = [CppBackend(compiler).parts(CompileOptions()) for compiler in (gcc, llvm)]
    assert parts[0] != parts[1]


# ---- Windows: what can be tested elsewhere ----


def test_A23_the_variables_of_a_developer_prompt_are_read() -> None:
    from opkiln.runtime.jit import msvc

    said = "noise\nInclude=C:\\i=1;C:\\j\nLIB=C:\\l\nTEMP=C:\\t\nPath=C:\\bin\n"
    assert msvc.parse(said) == {"INCLUDE": "C:\\i=1;C:\\j", "LIB": "C:\\l", "PATH": "C:\\bin"}
    assert [msvc.target(m) for m in ("AMD64", "ARM64", "x86", "?")] == [
        *("x64", "arm64", "x86", "x64")
    ]
    assert msvc.environment() == {}  # there is no installation here


# ---- a library that does not load ----


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("libnope.so.3: cannot open shared object file: No such file", "libnope.so.3, which it"),
        ("undefined symbol: cuLibraryLoadData", "driver is older than the CUDA toolkit"),
        ("undefined symbol: _ZN1a1bENSt7__cxx1112basic_stringE", "_GLIBCXX_USE_CXX11_ABI"),
        ("undefined symbol: cblas_dgemm", "link the library that has it"),
        ("/l/libstdc++.so.6: version `GLIBCXX_3.4.99' not found", "-static-libstdc++"),
        ("wrong ELF class: ELFCLASS32", "another machine (i386, 32 bits)"),
        ("failed to map segment from shared object", "noexec"),
    ],
)
def test_F100_why_a_library_does_not_load(tmp_path: Path, reason: str, fix: str) -> None:
    from opkiln.runtime.jit import load

    path = tmp_path / "a.so"
    path.write_bytes(b"\x7fELF\1\1" + bytes(12) + b"\3\0")
    error = load._explain(str(path), reason)
    assert fix in (error.fix or "")
    assert reason in str(error) and str(path) in str(error)
    assert error.stage == "load"
