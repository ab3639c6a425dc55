"""`ok.load`: what comes back, what is found again, and what is refused."""

import inspect
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import jit_child as child
from tests.extensions import ANSWER, answer, forget, load, settle, write

import opkiln as ok
from opkiln.runtime import errors
from opkiln.runtime.config import config
from opkiln.runtime.extension import Extension, depfile, progress
from opkiln.runtime.jit import ninja, store

# ---- what comes back ----


def test_T31_F069_changed_code_reloads_in_one_process(fast_cxx: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.cpp"
    got = []
    for value in (123, 456, 456, 789):
        write(path, answer(value))
        loaded = load(path)
        got.append((loaded.answer(), loaded.hit))
    assert got == [(123, "built"), (456, "built"), (456, "memory"), (789, "built")]
    assert child.starts(fast_cxx) == 3


def test_T31_inline_code_reloads_and_old_functions_stay(fast_cxx: Path) -> None:
    one, two, again = (ok.load_inline("n", answer(v), functions=ANSWER) for v in (1, 2, 1))
    assert [one.answer(), two.answer(), again.answer()] == [1, 2, 1]
    assert (again.hit, again == one, hash(again) == hash(one), two == one) == (
        "memory", True, True, False,
    )  # fmt: skip
    assert one.parts != two.parts
    forget()
    assert ok.load_inline("n", answer(2), functions=ANSWER).hit == "disk"


def test_functions_take_arrays_and_structures(known_cache: Path) -> None:
    text = """
    #include <cmath>
    #include <cstdint>
    #include <stdexcept>
    #include <vector>
    struct pair { double low, high; };
    extern "C" double total(const double* x, int64_t n) {
      std::vector<double> copy(x, x + n);
      double sum = 0;
      try { for (int64_t i = 0; ; ++i) sum += copy.at(i); } catch (const std::out_of_range&) {}
      return std::sqrt(sum * sum);
    }
    extern "C" pair ends(const double* x, int64_t n) { return {x[0], x[n - 1]}; }
    extern "C" int path() { return 7; }
    """
    declared = [
        "double total(const double *x, int64_t n)",
        "struct pair { double low, high; };",
        "struct pair ends(const double *x, int64_t n);",
        "int path(void)",
    ]
    ext = ok.load_inline("arrays", text, functions=declared)
    x = np.arange(5.0)
    data = ext.ffi.from_buffer("double[]", x)
    ends = ext.ends(data, x.size)
    assert ext.total(data, x.size) == 10.0
    assert (ends.low, ends.high) == (0.0, 4.0)
    assert Path(ext.path).is_file()  # a name of every extension wins; the function is in lib
    assert ext.lib.path() == 7
    assert ext.library.path == ext.path
    assert ext.library.symbol("total") == int(ext.ffi.cast("intptr_t", ext.total))
    assert {"total", "ends", "unload"} <= set(dir(ext))
    with pytest.raises(errors.SymbolMissing, match="no function 'totl'; declared: ends, path, tot"):
        _ = ext.totl
    assert not hasattr(ext, "nothing")
    assert "extension 'arrays': ends, path, total" in repr(ext)


def test_the_log_is_kept_and_shown(
    known_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "a.cpp", answer(1, "#warning said by the compiler"))
    log = Path(load(source, verbose=True).path).with_name(store.LOG).read_text(encoding="utf-8")
    shown = capsys.readouterr().err
    for text in (log, shown):
        assert f" -c {source} -o " in text
        assert " -shared " in text
        assert "warning: #warning said by the compiler" in text
    assert load(source, verbose=True).hit == "memory"
    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("with_rich", [True, False])
def test_progress_is_shown_on_a_terminal_only(
    known_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_rich: bool
) -> None:
    monkeypatch.setattr(progress, "_QUIET", 0.0)
    if with_rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    for stream, expected in ((Terminal(), "building answer"), (io.StringIO(), "")):
        monkeypatch.setattr(sys, "stderr", stream)
        source = write(tmp_path / "a.cpp", answer(1 + len(expected)))
        assert load(source).hit == "built"
        assert expected in stream.getvalue()
        assert bool(expected) == bool(stream.getvalue())


def test_A15_K7_several_sources_with_equal_names(known_cache: Path, tmp_path: Path) -> None:
    parts = [
        write(tmp_path / f"d{i}" / "part.cpp", f"int part{i}() {{ return {i}; }}") for i in (1, 2)
    ]
    text = answer("part1() + part2()", "int part1(); int part2();")
    loaded = load(write(tmp_path / "main.cpp", text), *parts, keep=True)
    assert loaded.answer() == 3
    kept = [path.suffix for path in Path(loaded.path).parent.iterdir()]
    assert (kept.count(".o"), kept.count(".d"), kept.count(".ninja")) == (3, 3, 1)


def test_A26_unload_is_refused_while_something_uses_it(fast_cxx: Path) -> None:
    ext = ok.load_inline("u", answer(5), functions=ANSWER)
    ext.hold("op x::y")
    with pytest.raises(errors.InUse, match=r"'u' cannot be unloaded: op x::y in use"):
        ext.unload()
    ext.release("op x::y")
    with pytest.raises(errors.InUse, match="not held by op x::y"):
        ext.release("op x::y")
    function = ext.answer
    with pytest.raises(errors.InUse, match="function 'answer' in use"):
        ok.load_inline("u", answer(5), functions=ANSWER).unload()
    assert function() == 5
    del function
    path = ext.path
    assert path in mapped()
    ext.unload()
    ext.unload()
    assert path not in mapped()
    assert "unloaded" in repr(ext)
    with pytest.raises(errors.InUse, match="was unloaded"):
        _ = ext.answer
    again = ok.load_inline("u", answer(5), functions=ANSWER)
    assert (again.hit, again.answer(), again == ext) == ("disk", 5, False)


def mapped() -> str:
    return Path("/proc/self/maps").read_text(encoding="utf-8")


# ---- odd names ----


@pytest.mark.parametrize("with_ninja", [True, False])
def test_T32_F095_F096_odd_paths_and_flags(
    known_cache: Path, tmp_path: Path, with_ninja: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_ninja:
        monkeypatch.setattr(ninja, "find", lambda: None)
    odd = tmp_path / "a b$c:d|e#f'\"编"
    include = odd / 'in "clude" $HOME'
    header = write(include / "value.h", "#define VALUE 40 // é")
    sources = [
        write(odd / "a.cpp", answer("VALUE + other()", '#include "value.h"\nint other();')),
        write(odd / "b.cpp", "int other() { return ONE + TWO - int(sizeof(TEXT)); } // 编"),
    ]
    given = [" -DONE=3\n", "\n", "", "-DTWO=1", '-DTEXT="a b$c"']
    options = {"extra_include_paths": [include], "extra_ldflags": ["-lm", f"-L{odd}"]}
    settle(header)
    assert load(*sources, extra_cflags=given, **options).answer() == 40 + 3 + 1 - 6
    forget()
    split = "-DONE=3 -DTWO=1 '-DTEXT=\"a b$c\"'"  # a string is split, as in a shell
    assert load(*sources, extra_cflags=split, **options).hit == "disk"
    header.write_text("#define VALUE 50", encoding="utf-8")
    assert load(*sources, extra_cflags=split, **options).answer() == 50 + 3 + 1 - 6


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a.o: x.cpp /usr/include/y.h\n", ["x.cpp", "/usr/include/y.h"]),
        ("a\\ b.o: x\\ y.cpp \\\n  d$$r/\\#z.h c:d.h\n\nx.h:\n", ["x y.cpp", "d$r/#z.h", "c:d.h"]),
        ("a.o:\n", []),
        ("a.o : back\\slash.h\r\n", ["back\\slash.h"]),
    ],
)
def test_a_dependency_file_is_read_as_make_reads_it(text: str, found: list[str]) -> None:
    assert depfile.parse(text) == found


# ---- other processes ----

REPORT = """
import json, os, sys
import opkiln as ok
import opkiln.native  # which an editable installation builds
before = set(sys.modules)
os.environ.update(json.loads(sys.argv[1]))
spawned = []
sys.addaudithook(lambda e, _: spawned.append(e) if e in ("os.posix_spawn", "subprocess.Popen",
    "os.fork", "os.exec", "os.system") else None)
ext = ok.load("answer", sys.argv[2:], functions=["int answer(void)"])
print(json.dumps({"value": ext.answer(), "hit": ext.hit, "key": ext.parts.hexdigest,
                  "spawned": spawned, "imported": sorted(set(sys.modules) - before)}))
"""


def elsewhere(*sources: Path, **env: object) -> dict[str, Any]:
    given = {name: str(value) for name, value in env.items()}
    done = subprocess.run(
        [sys.executable, "-c", REPORT, json.dumps(given), *map(str, sources)],
        env=os.environ | {"PYTHONHASHSEED": given.get("PYTHONHASHSEED", "0")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# What a process imports to load from disk, beside opkiln and NumPy: it has 10 ms for all of that.
ON_A_HIT = {
    *("_cffi_backend", "_sha2", "_sha256", "errno"),
    *("opkiln.ops", "opkiln.ops.record"),
    "opkiln.runtime",
    *(f"opkiln.runtime.{name}" for name in ("config", "errors", "key", "locks")),
    "opkiln.runtime.extension",
    *(
        f"opkiln.runtime.extension.{name}"
        for name in ("declare", "files", "find", "headers", "image", "index", "spec", "tools")
    ),
    "opkiln.runtime.jit",
    *(
        f"opkiln.runtime.jit.{name}"
        for name in ("descriptors", "flags", "load", "record", "store", "toolchain")
    ),
    "opkiln.runtime.toolchains",
    *(f"opkiln.runtime.toolchains.{name}" for name in ("backend", "cpp", "options", "tokens")),
}


def test_F067_K2_a_new_process_builds_nothing(fast_cxx: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "a.cpp", answer(42))
    first = load(source)
    cache = Path(first.path).parents[2]
    for seed in (1, 2):
        got = elsewhere(source, OPKILN_CACHE_DIR=cache, OPKILN_CXX=fast_cxx, PYTHONHASHSEED=seed)
        assert (got["value"], got["hit"], got["spawned"]) == (42, "disk", [])
        assert got["key"] == first.parts.hexdigest
        assert set(got["imported"]) - ON_A_HIT == set()
    assert child.starts(fast_cxx) == 1


def test_F105_F119_a_full_cache_serves_without_a_compiler(fast_cxx: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "a.cpp", answer(42))
    lower = Path(load(source).path).parents[2]
    fast_cxx.unlink()
    got = elsewhere(
        source,
        OPKILN_CACHE_DIR=tmp_path / "own",
        OPKILN_CACHE_LOWER=lower,
        OPKILN_CXX=fast_cxx,
        PATH=tmp_path,
    )
    assert (got["value"], got["hit"]) == (42, "disk")


# ---- failures ----


def test_K3_T33_a_failure_is_told_each_time_and_then_mended(
    known_cache: Path, tmp_path: Path
) -> None:
    source = write(tmp_path / "a.cpp", "#include <cstddef>\nint f() {\n  return oops;\n}\n")
    for _ in range(2):
        with pytest.raises(errors.CompileFailed) as caught:
            load(source)
        error = caught.value
        assert f"{source}:3:10: error: 'oops' was not declared" in str(error)
        assert "3 |   return oops;" in str(error)
        assert "\n" in error.output
        assert error.exit_code == 1
        assert str(source) in error.command
        assert error.log_path is not None
        assert "oops" in error.log_path.read_text(encoding="utf-8")
    assert not child.private_files(known_cache)
    write(source, answer(8))
    assert load(source).answer() == 8


def test_failures_of_the_link_and_of_a_header(known_cache: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.CompileFailed, match="the link step failed") as caught:
        ok.load_inline("x", answer(1), extra_ldflags=["-lnothing_of_that_name"])
    assert "nothing_of_that_name" in str(caught.value)
    with pytest.raises(errors.CompileFailed, match=r"nowhere\.h: No such file"):
        ok.load_inline("x", '#include "nowhere.h"\n')
    with pytest.raises(errors.LoadFailed, match="undefined symbol: nobody_defines_it"):
        ok.load_inline("x", answer("nobody_defines_it()", 'extern "C" int nobody_defines_it();'))
    assert child.entries(known_cache) == []
    assert child.private_files(known_cache) == []


def test_a_symbol_that_is_not_there(known_cache: Path) -> None:
    with pytest.raises(errors.SymbolMissing, match="does not export as a C function") as caught:
        ok.load_inline("x", "int answer() { return 1; }", functions=ANSWER)
    assert 'write extern "C" in front of the definition of answer' in str(caught.value)
    with pytest.raises(errors.SymbolMissing, match="'missing', which the library does not export"):
        ok.load_inline("x", answer(1), functions="int missing(void)")
    assert child.entries(known_cache) == []
    assert ok.load_inline("x", answer(1), functions=ANSWER).answer() == 1


def test_K31_a_hanging_compiler_is_ended_with_its_children(
    known_cache: Path, tmp_path: Path
) -> None:
    body = child.PROBES + 'echo "partial output"\nsleep 47.11 & echo $! > "$LOG"\nwait'
    hanging = child.stub(tmp_path / "bin" / "cxx", body)
    source = write(tmp_path / "a.cpp", answer(1))
    with config.scope(cxx=hanging), pytest.raises(errors.CompileTimeout, match=r"0\.3 s") as caught:
        load(source, timeout=0.3)
    assert "partial output" in caught.value.output
    assert caught.value.log_path is not None
    assert "partial output" in caught.value.log_path.read_text(encoding="utf-8")
    pid = int(hanging.with_suffix(".log").read_text(encoding="utf-8"))
    assert not Path(f"/proc/{pid}").exists() or "zombie" in Path(f"/proc/{pid}/status").read_text()
    assert load(source).answer() == 1


def test_K8_lists_stay_and_unknown_keywords_are_refused(fast_cxx: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "a.cpp", answer(1))
    lists: dict[str, list[Any]] = {
        "functions": [ANSWER],
        "extra_cflags": [" -DA\n"],
        "extra_ldflags": ["-lm", "-Wl,--as-needed"],
        "extra_include_paths": [tmp_path],
    }
    copies = {name: list(value) for name, value in lists.items()}
    for _ in range(2):
        ok.load("n", [source], **lists)
        assert lists == copies
    for function in (ok.load, ok.load_inline):
        with pytest.raises(TypeError, match="extra_cflag"):
            function("n", [source], extra_cflag=[])
        defaults = [p.default for p in inspect.signature(function).parameters.values()]
        assert not any(isinstance(value, (list, dict, set)) for value in defaults)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"functions": 5}, ValueError, "functions: expected C declarations as strings, got int 5"),
    ({"functions": [ANSWER, 5]}, ValueError, "got int 5"),
    ({"functions": {"answer": "int"}}, ValueError, "functions: expected C declarations"),
    ({"functions": b"int f(void)"}, ValueError, "functions: expected C declarations"),
    ({"functions": "int answer(void"}, ValueError, r"got 'int answer\(void;'"),
    ({"functions": "int answer(nothing x)"}, ValueError, "functions: expected a C declaration"),
    ({"functions": "int f(void); } import os"}, ValueError, "functions: expected a C declarat"),
    ({"name": 3}, TypeError, "name: expected a string, got int"),
    ({"name": " "}, ValueError, "name: expected some letters"),
    ({"sources": []}, ValueError, "sources: expected at least one file"),
    ({"sources": None}, ValueError, "sources: expected at least one file"),
    ({"sources": 7}, TypeError, "sources: expected a path or a sequence of paths, got int"),
    ({"sources": [7]}, TypeError, "sources: expected paths, got int 7"),
    ({"sources": "no.cpp"}, ValueError, r"sources: '.*/no.cpp' does not exist"),
    ({"sources": "a.txt"}, ValueError, r"names that end in one of .cpp .* got '.*a.txt'"),
    ({"sources": ["a.cpp", "./a.cpp"]}, ValueError, "expected each file once"),
    ({"sources": "a.cu", "with_cuda": False}, ValueError, "with_cuda: '.*a.cu' is a CUDA source"),
    ({"with_cuda": "yes"}, TypeError, "with_cuda: expected True, False or None, got 'yes'"),
    ({"extra_cflags": 5}, TypeError, "extra_cflags: expected"),
    ({"extra_cflags": "'open"}, ValueError, "extra_cflags: expected a string that a shell can"),
    ({"extra_include_paths": 5}, TypeError, "extra_include_paths: expected a path"),
    ({"build_directory": 5}, TypeError, "build_directory: expected a path"),
    ({"timeout": "soon"}, TypeError, "timeout: expected seconds, got 'soon'"),
    ({"timeout": 0}, ValueError, "timeout: expected seconds above 0"),
]


@pytest.mark.parametrize(("options", "kind", "message"), BAD, ids=[m[:30] for _, _, m in BAD])
def test_T33_K9_bad_arguments(
    fast_cxx: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    kind: type[Exception],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.cpp", "a.cu", "a.txt"):
        write(tmp_path / name, answer(1))
    given: dict[str, Any] = {"name": "n", "sources": "a.cpp", **options}
    with pytest.raises(errors.OpkilnError, match=message) as caught:
        ok.load(given.pop("name"), given.pop("sources"), **given)
    assert isinstance(caught.value, kind)
    assert not child.private_files(store_of(fast_cxx))


def store_of(fast_cxx: Path) -> Path:
    return fast_cxx.parents[1] / "cache"


# ---- places ----


def test_K5_two_names_in_one_build_directory(
    fast_cxx: Path, tmp_path: Path, parallelize: Callable[..., list[tuple[int, str]]]
) -> None:
    folder = tmp_path / "build"
    folder.mkdir(mode=0o700)

    def ask(i: int) -> tuple[int, str]:
        with config.scope(cxx=fast_cxx):
            name, value = ("one", 1) if i % 2 else ("two", 2)
            text = answer(value)
            ext = ok.load_inline(name, text, functions=ANSWER, build_directory=folder)
            return ext.answer(), ext.path

    results = parallelize(ask, 8)
    assert {value for value, _ in results} == {1, 2}
    assert len({path for _, path in results}) == 2
    assert all(path.startswith(str(folder)) for _, path in results)
    assert child.starts(fast_cxx) == 2
    assert child.entries(store_of(fast_cxx)) == []


def test_a_build_directory_that_cannot_be_used(fast_cxx: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "file", "")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    for path, reason in ((file, "is not a directory"), (open_to_all, "written by other users")):
        with pytest.raises(errors.CacheError, match=f"build_directory: .*{reason}"):
            ok.load_inline("n", answer(1), build_directory=path)


def test_F070_a_damaged_artifact_is_built_again_once(fast_cxx: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "a.cpp", answer(3))
    folder = Path(load(source).path).parent
    for name in (*store.EXTENSION_FILES, store.MANIFEST):
        forget()
        (folder / name).write_bytes(b"")
        with pytest.warns(errors.OpkilnWarning, match="cached extension .* is built again") as said:
            assert load(source).answer() == 3
        assert len(said) == 1
        forget()
        assert load(source).hit == "disk"


def test_F140_threads_build_once(
    fast_cxx: Path, tmp_path: Path, parallelize: Callable[..., list[Extension]]
) -> None:
    source = write(tmp_path / "a.cpp", answer(3))
    cache = store_of(fast_cxx)

    def ask(_: int) -> Extension:
        with config.scope(cxx=fast_cxx, cache_dir=cache):
            return load(source)

    results = parallelize(ask, 8)
    assert len(set(results)) == 1
    assert [r.hit for r in results].count("built") == 1
    assert child.starts(fast_cxx) == 1
