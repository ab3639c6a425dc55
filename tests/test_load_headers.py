"""What causes a build of an extension: content of sources and headers, flags; CUDA sources."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests import jit_child as child
from tests.extensions import answer, forget, load, settle, write

from opkiln.runtime import errors, jit
from opkiln.runtime.config import config
from opkiln.runtime.extension import find, spec, tools
from opkiln.runtime.jit import ninja, store
from opkiln.runtime.toolchains import CompileOptions


def test_A14_F061_F062_headers_count_by_content(known_cache: Path, tmp_path: Path) -> None:
    header = write(tmp_path / "in" / "value.h", "#define V 1")
    unrelated = write(tmp_path / "in" / "unrelated.h", "")
    source = write(tmp_path / "a.cpp", answer("V", "#include <cstddef>\n#include <value.h>"))
    settle(header)

    def ask() -> tuple[int, str]:
        loaded = load(source, extra_include_paths=[header.parent])
        return loaded.answer(), loaded.hit

    assert ask() == (1, "built")
    write(header, "#define V 2")
    os.utime(header, (1, 1))  # an older time, as after a checkout
    settle(header)
    assert ask() == (2, "built")
    write(header, "#define V 1")
    assert ask() == (1, "memory")
    forget()
    assert ask() == (1, "disk")
    os.utime(header)
    os.utime(source, (2**31, 2**31))  # F104: a time in the future
    write(unrelated, "int x;")
    assert ask() == (1, "memory")
    shadow = write(tmp_path / "value.h", "#define V 9")  # <value.h> is not searched for here, but
    settle(shadow)
    assert ask() == (1, "built")  # whether it would be is not known: a build says
    forget()
    assert ask() == (1, "disk")


def test_F061_a_header_that_comes_before_another_is_seen(known_cache: Path, tmp_path: Path) -> None:
    late = write(tmp_path / "late" / "value.h", "#define V 1")
    first = tmp_path / "first"
    source = write(
        tmp_path / "src" / "a.cpp", answer("V + S", '#include "value.h"\n#include <climits>')
    )
    settle(late)
    options = {"extra_include_paths": [first, late.parent], "extra_cflags": "-DS=10"}
    assert load(source, **options).answer() == 11
    settle(write(first / "value.h", "#define V 2"))
    assert load(source, **options).answer() == 12
    settle(write(source.parent / "value.h", "#define V 3"))
    assert load(source, **options).answer() == 13
    settle(write(first / "climits", "#undef S\n#define S 20"))  # even one of the system's
    assert load(source, **options).answer() == 23
    (source.parent / "value.h").unlink()
    assert load(source, **options).answer() == 22
    assert load(source, **options).hit == "memory"


def test_F062_what_is_linked_in_counts_by_content(known_cache: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "a.cpp", answer("part()", "int part();"))
    part, lib = write(tmp_path / "part.cpp", ""), tmp_path / "libpart.so"
    options = {"extra_ldflags": [f"-L{tmp_path}", "-lpart", f"-Wl,-rpath,{tmp_path}"]}
    got = []
    for value in (1, 1, 2):
        write(part, f"int part() {{ return {value}; }}")
        subprocess.run([child.GXX, "-shared", "-fPIC", part, "-o", lib], check=True)
        got.append(load(source, **options).hit)
    assert got == ["built", "memory", "built"]


def test_a_header_that_is_written_while_it_is_compiled(
    known_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = write(tmp_path / "value.h", "#define V 1")
    source = write(tmp_path / "a.cpp", answer("V", '#include "value.h"'))
    settle(header, source)
    real, edits = ninja.run, iter(["#define V 2", "#define V 2"])

    def meanwhile(*args: Any) -> bytes:
        log = real(*args)
        text = next(edits, None)
        if text:
            write(header, text)
        return log

    monkeypatch.setattr(ninja, "run", meanwhile)
    assert load(source).answer() == 2
    assert not list(edits)  # twice: the second writes what was there, which changes nothing
    assert len(child.entries(known_cache)) == 1


def test_sources_that_never_keep_still_are_an_error(
    fast_cxx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "a.cpp", answer(0))
    real = ninja.run

    def meanwhile(*args: Any) -> bytes:
        log = real(*args)
        write(source, answer(child.starts(fast_cxx)))
        return log

    monkeypatch.setattr(ninja, "run", meanwhile)
    with pytest.raises(errors.CompileFailed, match="changed while they were compiled, each time"):
        load(source)


def asked(**options: Any) -> str:
    given = {"cflags": (), "ldflags": (), "include_paths": (), **options}
    functions = given.pop("functions", ())
    inline = (("a.cpp", given.pop("text", "")),)
    one = spec.Spec("n", (), inline, functions, CompileOptions.of(**given), with_cuda=False)
    return find.asked(one, (), tools.pick(one, jit.compiler()), []).parts.hexdigest


def test_K2_T37_the_key_is_content_and_groups_stay_apart(known_cache: Path) -> None:
    keys = [
        asked(),
        asked(cflags=["-DA", "-DB"]),
        asked(cflags=["-DB", "-DA"]),
        asked(ldflags=["-DA", "-DB"]),
        asked(cflags=["-DA"], ldflags=["-DB"]),
        asked(include_paths=["/a", "/b"]),
        asked(include_paths=["/b", "/a"]),
        asked(functions=("int a(void);", "int b(void);")),
        asked(functions=("int a(void); int b(void);",)),
        asked(text="int a;"),
        asked(cflags=["-Iwhere"]),
    ]
    assert len(set(keys)) == len(keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir("/")
        assert asked(cflags=["-Iwhere"]) != keys[-1]
        assert asked() == keys[0]


# ---- CUDA ----


def test_K9_F098_cuda_is_looked_for_only_where_it_is_wanted(
    known_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "a.cu", answer(1))
    with config.scope(cuda_home=tmp_path / "nowhere", nvcc=None):
        with pytest.raises(errors.ToolchainNotFound, match="nowhere") as caught:
            load(source)
        assert caught.value.probes
        assert load(write(tmp_path / "a.cpp", answer(2))).answer() == 2
        with pytest.raises(errors.ArgumentError, match=r"extra_cuda_cflags: .* takes none"):
            load(tmp_path / "a.cpp", extra_cuda_cflags="-lineinfo")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_A14_K6_cuda_sources_and_their_headers(known_cache: Path, tmp_path: Path) -> None:
    header = write(tmp_path / "in" / "value.h", "#define V 1")
    text = """
    #include <value.h>
    __global__ void fill(float* x) { x[threadIdx.x] = V; }
    extern "C" int ten(void);
    extern "C" int answer(void) { return V + ten(); }
    extern "C" void run(float* x) { fill<<<1, 32>>>(x); }
    """
    sources = [
        write(tmp_path / "a.cu", text),
        write(
            tmp_path / "b.cpp", '#include <cuda_runtime.h>\nextern "C" int ten() { return TEN; }'
        ),
    ]
    options = {"extra_include_paths": header.parent, "extra_cflags": "-DTEN=10"}
    settle(header)
    with config.scope(cuda_archs="9.0"):
        first = load(*sources, **options)
        assert (first.answer(), first.hit) == (11, "built")
        write(header, "#define V 2")
        settle(header)
        assert load(*sources, **options).answer() == 12
        forget()
        assert load(*sources, **options).hit == "disk"
        manifest = Path(first.path).with_name(store.MANIFEST)
        assert json.loads(manifest.read_text("utf-8"))["archs"] == ["sm_90", "compute_90"]
    with config.scope(cuda_archs="8.0"):  # other machine code
        one = spec.Spec("n", tuple(map(str, sources)), (), (), CompileOptions(), with_cuda=True)
        assert tools.pick(one, jit.compiler()).archs == ("sm_80", "compute_80")
