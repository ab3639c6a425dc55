"""Compilers of the user's own sources: options, commands, key parts and what a failure says."""

import ctypes
import subprocess
from pathlib import Path

import pytest

from opkiln.runtime import errors
from opkiln.runtime.jit import report, spawn
from opkiln.runtime.toolchains import CompileOptions, CppBackend
from opkiln.runtime.toolchains.tokens import Token, of_driver, tokens

SOURCE = """#include <vector>
#include "size.h"
extern "C" int answer(void) { return int(std::vector<int>(SIZE + EXTRA).size()); }
"""


@pytest.fixture(scope="module")
def cpp() -> CppBackend:
    return CppBackend.find()


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    env = spawn.environment()
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


# ---- options ----


def test_T32_flags_with_line_breaks_and_blanks_build(cpp: CppBackend, tmp_path: Path) -> None:
    """Also F095: directories and files with blanks, quotes and other marks."""
    odd = tmp_path / "in 'cl\"ude $HOME #1: é,|"
    odd.mkdir()
    (odd / "size.h").write_text("#define SIZE 40\n")
    (odd / "src").mkdir()
    source = odd / "src" / "a b.cpp"
    source.write_text(SOURCE)
    options = CompileOptions.of(
        cflags=["-g0\n\n", "-O0 -Wall", " -D EXTRA=2 "],
        include_paths=[f"       {odd}\n"],
        ldflags=["-Wl,-rpath,/a/b\n", "-Xlinker -rpath=/c,d e"],
    )
    assert options.cflags == ("-g0", "-O0", "-Wall", "-D", "EXTRA=2")
    obj, depfile, library = (str(odd / name) for name in ("a.o", "a.d", "lib a.so"))
    done = run(cpp.compile_command(str(source), obj, depfile, options))
    assert done.returncode == 0, done.stderr
    done = run(cpp.link_command([obj], library, options))
    assert done.returncode == 0, done.stderr
    assert ctypes.CDLL(library).answer() == 42
    assert "size.h" in Path(depfile).read_text()
    assert "<vector>" not in Path(depfile).read_text()  # headers of the system are not the user's
    data = Path(library).read_bytes()
    assert b"/a/b:/c,d e\0" in data


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["-O2 -Wall"], ("-O2", "-Wall")),
        (["-I my dir"], ("-I", "my dir")),
        (['-DTEXT="a -b"'], ('-DTEXT="a -b"',)),
        (["-DTEXT=a b"], ("-DTEXT=a b",)),
        (["", "  ", "\n"], ()),
        (None, ()),
    ],
)
def test_one_item_is_one_argument(given: object, kept: tuple[str, ...]) -> None:
    assert CompileOptions.of(cflags=given).cflags == kept


def test_options_are_lists_of_texts_and_stay_as_they_were() -> None:
    flags = ["-O1\n", "-Wall"]
    options = CompileOptions.of(cflags=flags, ldflags=flags, include_paths=(Path("x"),))
    assert flags == ["-O1\n", "-Wall"]
    assert options.include_paths == (str(Path.cwd() / "x"),)
    for bad in ("-O2", [1], {"-O2"}, 3):
        with pytest.raises(errors.ArgumentError, match=r"extra_cflags: expected a list of texts"):
            CompileOptions.of(cflags=bad)


def test_user_flags_come_last_and_name_the_standard(cpp: CppBackend) -> None:
    def command(**given: object) -> list[str]:
        return cpp.compile_command("a.cpp", "a.o", "a.d", CompileOptions.of(**given))

    plain = command(cflags=["-O3"])
    assert plain.index("-O2") < plain.index("-O3")
    assert "-std=c++17" in plain
    assert "-fPIC" in plain
    for named in (command(cflags=["-std=gnu++20"]), command(cflags=["--std=c++20"])):
        assert "-std=c++17" not in named
    assert "-std=c++23" in command(std="c++23")


def test_K31_no_option_is_dropped(cpp: CppBackend) -> None:
    for given in ({"cuda_cflags": ["-G"]}, {"archs": ["sm_90"]}):
        options = CompileOptions.of(**given)
        for ask in (
            lambda o: cpp.compile_command("a.cpp", "a.o", "a.d", o),
            lambda o: cpp.link_command(["a.o"], "a.so", o),
            cpp.parts,
        ):
            with pytest.raises(errors.ArgumentError, match=next(iter(given))):
                ask(options)
        assert cpp.parts(options.for_cpp()) == cpp.parts(CompileOptions())


def test_a_link_that_would_switch_denormals_off_is_refused(cpp: CppBackend) -> None:
    with pytest.raises(errors.ArgumentError, match="-ffast-math"):
        cpp.link_command(["a.o"], "a.so", CompileOptions.of(ldflags=["-ffast-math"]))
    fast = cpp.compiler._replace(words=(*cpp.compiler.words, "-ffast-math", "-m64"))
    backend = CppBackend(fast)  # CXX="g++ -ffast-math -m64"
    told = backend.link_command(["a.o"], "a.so", CompileOptions.of(cflags=["-Ofast"]))
    assert "-ffast-math" not in told and "-Ofast" not in told and "-m64" in told


def test_F065_each_option_changes_the_key_and_the_place_of_the_compiler_does_not(
    cpp: CppBackend,
) -> None:
    given = [
        {},
        {"cflags": ["-DA"]},
        {"ldflags": ["-DA"]},
        {"include_paths": ["/DA"]},
        {"cflags": ["-DA", "-DB"]},
        {"cflags": ["-DB", "-DA"]},
        {"std": "c++20"},
    ]
    parts = [cpp.parts(CompileOptions.of(**one)) for one in given]
    assert len({repr(p) for p in parts}) == len(given)

    def called(*words: str) -> CppBackend:
        return CppBackend(cpp.compiler._replace(words=words))

    moved = called("/elsewhere/c++")
    assert [moved.parts(CompileOptions.of(**one)) for one in given] == parts
    gone = called()
    assert gone.parts(CompileOptions()) == parts[0]  # what is in the cache is still found
    with pytest.raises(errors.ToolchainNotFound, match="is gone"):
        gone.compile_command("a.cpp", "a.o", "a.d", CompileOptions())


def test_only_code_for_this_cpu_asks_for_its_features(cpp: CppBackend) -> None:
    assert cpp.features(CompileOptions()) == ()
    assert cpp.features(CompileOptions.of(cflags=["-march=native"])) == cpp.compiler.features


# ---- link options ----


def test_T36_link_options_have_one_form() -> None:
    ways = [
        ["-Wl,-rpath,/x", "-Lq", "-lfoo", "/y/libz.so"],
        ["-Xlinker -rpath", "-Xlinker", "/x", "-L q", "-l", "foo", "/y/libz.so"],
        ["-rpath", "/x", "-L", "q", "-lfoo", "/y/libz.so"],
    ]
    forms = [CompileOptions.of(ldflags=way).ldflags for way in ways]
    assert forms[0] == forms[1] == forms[2]
    assert forms[0] == (
        Token("-rpath", linker=True),
        Token("/x", linker=True),
        Token("-Lq", linker=False),
        Token("-lfoo", linker=False),
        Token("/y/libz.so", linker=False),
    )
    assert of_driver(forms[0]) == [
        *("-Xlinker", "-rpath", "-Xlinker", "/x"),
        *("-Lq", "-lfoo", "/y/libz.so"),
    ]
    with pytest.raises(errors.ArgumentError, match="'-rpath'"):
        tokens(["-lfoo", "-rpath"])


# ---- failures ----


def test_F097_a_failure_shows_the_first_error_and_its_line(cpp: CppBackend, tmp_path: Path) -> None:
    (tmp_path / "inner.h").write_text("inline int f() { return missing; }\n")
    source = tmp_path / "bad.cpp"
    source.write_text('#include "inner.h"\nint g() { return other; }\n')
    quiet = CompileOptions.of(cflags=["-fno-diagnostics-show-caret"])
    for options in (CompileOptions(), quiet):
        command = cpp.compile_command(str(source), str(tmp_path / "a.o"), "/dev/null", options)
        done = run(command)
        error = cpp.failure("compile", command, done.returncode, done.stderr, "/kept/build.log")
        text = str(error)
        assert "'missing' was not declared" in text
        assert text.count("inline int f() { return missing; }") == 1
        assert f"from {source}:1" in text  # how the compiler came there
        assert text.index("'missing'") < text.index("'other'")
        assert (error.exit_code, str(error.log_path)) == (1, "/kept/build.log")
        assert error.output == done.stderr
        assert str(source) in error.command
        assert error.fix


def test_only_what_matters_of_a_long_output_is_shown() -> None:
    noise = "".join(f"[{i}/9] g++ -c x{i}.cpp\n" for i in range(3000))
    text = f"{noise}/usr/bin/ld: cannot find -lnone\ncollect2: error: ld returned 1\n{noise}"
    shown = report.shown(text)
    assert shown.splitlines()[0] == "    /usr/bin/ld: cannot find -lnone"
    assert len(shown.splitlines()) == 51
    assert "more in the log" in shown
    assert report.shown("no such thing") == "    no such thing"
    assert report.shown("") == ""
    nvcc = "x.cu(2): warning #1: w\nx.cu(3): error: identifier 'q' is undefined\n  q;\n"
    assert report.shown(nvcc).startswith("    x.cu(3): error")
    msvc = "a.cpp(7): warning C1: w\na.cpp(8,3): error C2065: 'q': undeclared\n"
    assert report.first_error(msvc.splitlines()) == report.Place(1, "a.cpp", 8)
