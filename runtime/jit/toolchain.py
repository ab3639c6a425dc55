"""The C++ compiler: in goes the CXX setting, out comes who it is and the commands that run it.

Identity comes from what the compiler says (macros, version, target, what -march=native means),
never from its name. It is asked once and the answer is kept in the cache, keyed by the compiler's
file and this machine's CPU; a warm start starts no process, and works when the compiler is gone.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from opkiln.ops.record import record
from opkiln.runtime.config import config
from opkiln.runtime.errors import CompileTimeout, Probe, ToolchainNotFound
from opkiln.runtime.jit import flags as flag_groups
from opkiln.runtime.jit import store
from opkiln.runtime.jit.descriptors import READ, open_file
from opkiln.runtime.jit.record import Record, render
from opkiln.runtime.key import KeyParts, sha256

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opkiln.runtime.jit.flags import Flags
    from opkiln.runtime.jit.store import Layer

_SCHEMA = "compiler-2"
_DEFAULTS = ("c++", "g++", "clang++")
_ARCH = (("-march=native",), ("-mcpu=native",), ())
_ARCH_OF_USER = ("-march=", "-mcpu=")  # a baseline in the CXX setting is taken as it is
# Variables that make the same driver run other tools.
_TOOL_ENV = ("GCC_EXEC_PREFIX", "COMPILER_PATH", "CCACHE_COMPILER", "CCACHE_PREFIX")
_FEATURE = (
    r"__(AVX|SSE|SSSE|FMA|F16C|BMI|LZCNT|POPCNT|ADX|AES|VAES|PCLMUL|VPCLMUL|GFNI|SHA|MOVBE|AMX"
    r"|ARM_FEATURE_|riscv_)\w*"
)
# Where Linux calls a feature otherwise than the compilers' macro.
_SYSTEM_NAMES = {
    "sse3": "pni",
    "ssemath": "sse",
    "sse2math": "sse2",
    "bmi": "bmi1",
    "lzcnt": "abm",
    "pclmul": "pclmulqdq",
    "sha": "shani",
}
_LIBRARY_MACROS = (
    *("__GLIBCXX__", "_GLIBCXX_USE_CXX11_ABI", "_LIBCPP_VERSION", "_LIBCPP_ABI_VERSION"),
    *("__GXX_ABI_VERSION", "_MSC_VER"),
)
HOW_TO_INSTALL = (
    "install a C++ compiler (Debian: apt install g++; Fedora: dnf install gcc-c++; conda: conda "
    "install gxx; macOS: xcode-select --install) or set OPKILN_CXX to one"
)


@record
class Request:
    """The command words as asked for, and the program file behind them ('' if there is none)."""

    words: tuple[str, ...]
    program: str
    compiler: str
    launched: bool


class Compiler(NamedTuple):
    """One compiler on one machine, as far as keys and builds need it."""

    words: tuple[str, ...]  # how to call it; empty when it is gone and only its record is left
    target: str
    version: str
    digest: str  # of macros, version, target and the flags that -march=native stands for
    features: tuple[str, ...]
    arch: tuple[str, ...]
    flags: tuple[str, ...]  # those that came with the CXX setting
    clang: bool
    # The driver's own commands with {in} and {out}: cc1plus, as, ld. Empty: use the driver.
    direct: tuple[tuple[str, ...], ...]
    library: tuple[str, ...] = ()  # what tells one C++ library from another, as "macro=value"

    def parts(self) -> list[tuple[str, str | tuple[str, ...]]]:
        """Key parts: what the compiler is, not where it lies."""
        return [
            ("compiler.version", self.version),
            ("compiler.digest", self.digest),
            ("compiler.target", self.target),
            ("compiler.flags", self.flags),
            ("compiler.arch", self.arch),
        ]

    @property
    def program(self) -> str:
        """The compiler itself, for tools that call it: without launcher and flags."""
        words = self.words[: len(self.words) - len(self.flags)]
        return (store.find_program(words[-1]) or words[-1]) if words else ""

    def driver(self, flags: Flags, source: str, output: str) -> list[str]:
        """The one-shot command from text to shared library."""
        link = flag_groups.LINK if self.clang else (*flag_groups.LINK, *flag_groups.GCC_LINK)
        return [
            *self.words,
            *self.arch,
            *flags.compile_flags(),
            *link,
            "-x",
            "c++",
            source,
            "-o",
            output,
            *flags.libraries,
        ]


# ---- finding ----


def _split(setting: str) -> tuple[str, ...]:
    """Split a CXX setting; a whole path with spaces, also before flags, is one word."""
    pieces = setting.split(" ")
    for count in range(len(pieces), 0, -1):
        start = " ".join(pieces[:count])
        if os.sep in start and store.find_program(start):
            return (start, *_shell_words(" ".join(pieces[count:])))
    return _shell_words(setting)


def _shell_words(text: str) -> tuple[str, ...]:
    if not any(c in text for c in "'\"\\"):
        return tuple(text.split())
    import shlex

    try:
        return tuple(shlex.split(text))
    except ValueError:  # an open quote: leave it to the error that names the setting
        return tuple(text.split())


def _resolve(words: tuple[str, ...]) -> Request:
    leading = 0
    while leading < len(words) and not words[leading].startswith("-"):
        leading += 1
    program = store.find_program(words[0]) if words else None
    if program is None:
        return Request(words, "", "", leading > 1)
    compiler = program
    if leading > 1:  # a launcher such as ccache; the last word before the flags is the compiler
        compiler = store.find_program(words[leading - 1]) or program
    return Request((program, *words[1:]), program, compiler, leading > 1)


def requests() -> Iterator[Request]:
    """The compilers to try, best first; those not on this machine have an empty program."""
    setting = config.cxx
    every = [_split(setting)] if setting is not None else [(n,) for n in (*_conda(), *_DEFAULTS)]
    for words in every:
        yield _resolve(words)


def _conda() -> list[str]:
    """The compiler of an active conda environment, which goes with its C++ library."""
    prefix = os.environ.get("CONDA_PREFIX", "")
    if not prefix or not hasattr(os, "uname"):
        return []
    path = f"{prefix}/bin/{os.uname().machine}-conda-linux-gnu-g++"
    return [path] if store.find_program(path) else []


def source() -> str:
    """Who names the compilers to try."""
    variable = next((v for v in ("OPKILN_CXX", "CXX") if os.environ.get(v, "").strip()), "")
    return (variable or "config.cxx") if config.cxx is not None else "PATH"


def lost(request: Request, why: str) -> Probe:
    """The record of a compiler that cannot be used."""
    return Probe("C++", source(), " ".join(request.words) or "(empty)", won=False, why=why)


def default_program() -> str | None:
    """The compiler that would be tried first if no setting named one."""
    return next((found for name in _DEFAULTS if (found := store.find_program(name))), None)


# ---- where the answer is kept ----


def stamp(path: str) -> list[str]:
    """What tells one state of a program's file from another."""
    try:
        real = os.path.realpath(path)
        s = os.stat(real)
    except OSError:
        return [path, "gone"]
    return [real, str(s.st_size), str(s.st_mtime_ns), str(s.st_ino)]


def _cpu_lines() -> list[str]:
    """What the system says of the first CPU; [] if it says nothing."""
    with contextlib.suppress(OSError), open_file("/proc/cpuinfo", READ) as file:
        return os.read(file.fileno(), 8192).split(b"\n\n")[0].decode().splitlines()
    return []


def _cpu() -> str:
    """What tells this machine's CPU from another that shares the cache directory."""
    facts = [os.uname().machine if hasattr(os, "uname") else sys.platform]
    keep = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")
    said = [line for line in _cpu_lines() if line.startswith(keep)]
    facts += said or [os.uname().nodename if hasattr(os, "uname") else ""]
    return sha256("\n".join(facts).encode())[:16]


def _runs_here(features: Sequence[str]) -> bool:
    """Whether this CPU has all features, going by the system's names for them, not a compiler's."""
    said = " ".join(line for line in _cpu_lines() if line.startswith("flags"))
    here = {word.replace("_", "") for word in said.split()}
    plain = [feature.strip("_").replace("_", "").lower() for feature in features]
    return bool(here) and here.issuperset(_SYSTEM_NAMES.get(name, name) for name in plain)


def _asked(request: Request) -> dict[str, list[str]]:
    """What decides the answer, besides the CPU."""
    return {
        "words": list(request.words),
        "program": stamp(request.program),
        "compiler": stamp(request.compiler),
        "environment": [f"{name}={os.environ.get(name, '')}" for name in _TOOL_ENV],
    }


def _same_file(here: list[str], kept: list[str], *, copied: bool) -> bool:
    """Compare two stamps; in an image that was copied, a file has another inode."""
    return here[:-1] == kept[:-1] if copied else here == kept


def _record_name(request: Request, cpu: str) -> str:
    parts = KeyParts([("schema", _SCHEMA), *_asked(request).items()])
    return f"{cpu}-{parts.short}.json"


def _from_record(record: Record, words: tuple[str, ...], *, copied: bool) -> Compiler | None:
    if record.text("schema") != _SCHEMA:
        return None
    inner = record.texts("inner")
    if inner and words and not _same_file(stamp(inner[0]), inner, copied=copied):
        return None  # the driver is the same file, but the compiler that it starts is not
    return Compiler(
        words,
        record.text("target"),
        record.text("version"),
        record.text("digest"),
        tuple(record.texts("features")),
        tuple(record.texts("arch")),
        tuple(record.texts("flags")),
        record.number("clang") == 1,
        tuple(tuple(record.texts(step)) for step in ("cc1plus", "as", "ld") if record.texts(step)),
        tuple(record.texts("library")),
    )


def read_answer(layer: Layer, name: str) -> Record | None:
    """One kept answer of a tool, if its directory can be trusted; OSError, ValueError if not."""
    folder = f"{layer.base}/{store.COMPILERS}"
    if store.distrust(os.lstat(folder), directory=True, any_owner=layer.lower):
        return None
    return Record(store.read_owned(f"{folder}/{name}", any_owner=layer.lower))


def _read_record(
    layer: Layer, name: str, words: tuple[str, ...], asked: dict[str, list[str]] | None = None
) -> Compiler | None:
    """Read one answer; with `asked`, only if it was to that question."""
    try:
        record = read_answer(layer, name)
        if record is None:
            return None
        if asked is not None and not _answers(record, asked):
            return None
        return _from_record(record, words, copied=layer.lower)
    except (OSError, ValueError):
        return None


def stored(layer: Layer, request: Request) -> Compiler | None:
    """Return the kept answer for this very compiler file on this CPU."""
    cpu = _cpu()
    found = _read_record(layer, _record_name(request, cpu), request.words)
    if found is not None or not layer.lower:
        return found
    asked = _asked(request)
    for name in answers(layer, cpu):
        found = _read_record(layer, name, request.words, asked)
        # What -march=native stands for holds for one CPU, a stated baseline for all that have it.
        if found and (name.startswith(cpu) or (not found.arch and _runs_here(found.features))):
            return found
    return None


def _answers(record: Record, asked: dict[str, list[str]]) -> bool:
    files = ("program", "compiler")
    return all(
        _same_file(value, record.texts(name), copied=True)
        if name in files
        else value == record.texts(name)
        for name, value in asked.items()
    )


def answers(layer: Layer, first: str) -> list[str]:
    """The files of all answers: those whose names begin with `first`, then the newest first."""
    found: list[tuple[bool, int, str]] = []
    folder = f"{layer.base}/{store.COMPILERS}"
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        found += [
            (e.name.startswith(first), e.stat().st_mtime_ns, e.name)
            for e in entries
            if e.name.endswith(".json")
        ]
    return [name for _, _, name in sorted(found, reverse=True)]


def stored_without_compiler(layer: Layer) -> Iterator[Compiler]:
    """Kept answers, newest first: they find artifacts when no compiler is left.

    Those for this CPU come first; others serve if this CPU has all that they ask for, as where an
    image was made on another machine.
    """
    cpu = _cpu()
    for name in answers(layer, cpu):
        compiler = _read_record(layer, name, ())
        if compiler and (name.startswith(cpu) or _runs_here(compiler.features)):
            yield compiler


# ---- asking ----


def probe(folder: str, request: Request) -> Compiler:
    """Ask the compiler who it is and keep the answer; raise ToolchainNotFound with what it said."""
    from opkiln.runtime.jit import spawn

    said = ""
    stated = any(word.startswith(_ARCH_OF_USER) for word in request.words)
    for arch in ((),) if stated else _ARCH:
        answers = _ask(request, arch)
        said = said or f"exit {answers.code}: {' '.join(answers.version.split())[-300:]}"
        if answers.code in (0, spawn.UNKNOWN) and "#define __VERSION__" in answers.macros:
            break
    else:
        raise ToolchainNotFound(f"not a working C++ compiler ({said})")
    compiler, inner = _describe(request, arch, answers)
    fields: dict[str, str | int | list[str]] = {
        "schema": _SCHEMA,
        **_asked(request),
        "target": compiler.target,
        "version": compiler.version,
        "digest": compiler.digest,
        "features": list(compiler.features),
        "arch": list(compiler.arch),
        "flags": list(compiler.flags),
        "clang": int(compiler.clang),
        "library": list(compiler.library),
        "inner": inner,
    }
    for step, command in zip(("cc1plus", "as", "ld"), compiler.direct, strict=False):
        fields[step] = list(command)
    store.write_whole(f"{folder}/{_record_name(request, _cpu())}", render(fields))
    return compiler


@record
class _Answers:
    """What a compiler said of itself."""

    macros: str
    version: str
    steps: str  # of the driver, '' if it does not tell
    library: str  # the macros of the C++ library
    code: int


def _ask(request: Request, arch: tuple[str, ...]) -> _Answers:
    """Run the questions side by side."""
    from opkiln.runtime.jit import spawn

    words = [*request.words, *arch]
    link = [*flag_groups.LINK, *flag_groups.GCC_LINK, "-fPIC", "-o", "/dev/null/out"]
    tail = ["-x", "c++", "/dev/null"]
    questions = [
        [*words, "-v", "-E", "-dM", *tail],
        [*words, "-###", *link, *tail],
        [*words, "-E", "-dM", "-include", "cstddef", *tail],
    ]
    try:
        said = spawn.ask(questions, time.monotonic() + config.compile_timeout)
    except spawn.OutOfTime:
        raise CompileTimeout(
            f"{' '.join(words)}: did not say its version in {config.compile_timeout:g} s",
            fix="check the compiler that OPKILN_CXX names, or raise OPKILN_COMPILE_TIMEOUT",
            command=" ".join(words),
            stage="find",
        ) from None
    except spawn.NotStarted as error:
        raise ToolchainNotFound(f"could not be started: {error}") from None
    steps = said[1].err if said[1].code in (0, spawn.UNKNOWN) else ""
    return _Answers(said[0].out, said[0].err, steps, said[2].out, said[0].code)


def _defines(macros: str) -> dict[str, str]:
    lines = sorted(line for line in macros.splitlines() if line.startswith("#define "))
    return {line.split(" ", 2)[1]: line for line in lines}


def _describe(
    request: Request, arch: tuple[str, ...], answers: _Answers
) -> tuple[Compiler, list[str]]:
    named = _defines(answers.macros)
    defines, version_text = named.values(), answers.version
    clang = "__clang__" in named
    target = _first(r"^Target: (\S+)", version_text) or sys.platform
    version = _first(r"^(.*\bversion \S.*)$", version_text).strip()
    version = version or named["__VERSION__"].split(" ", 2)[-1].strip('"')
    steps = _parse_steps(answers.steps)
    cc1plus = steps[0] if steps else ("",)
    inner_flags = [t for t in cc1plus if t.startswith(("-m", "--param", "l1-", "l2-"))]
    digest = sha256("\n".join([*defines, version, target, *inner_flags]).encode())
    elf = _is_program(request.program)
    direct = steps if len(steps) == 3 and elf and not request.launched and not clang else ()
    inner = stamp(cc1plus[0]) if os.path.isabs(cc1plus[0]) else []
    leading = next((i for i, w in enumerate(request.words) if w.startswith("-")), None)
    flags = request.words[leading:] if leading is not None else ()
    features = tuple(sorted(name for name in named if re.fullmatch(_FEATURE, name)))
    said = _defines(answers.library)
    library = tuple(
        f"{name}={said[name].split(' ', 2)[-1]}" for name in _LIBRARY_MACROS if name in said
    )
    compiler = Compiler(
        request.words, target, version, digest, features, arch, flags, clang, direct, library
    )
    return compiler, inner


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found.group(1) if found else ""


def _is_program(path: str) -> bool:
    """Tell a real program from a script; a script may do more than its last command shows."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _parse_steps(text: str) -> tuple[tuple[str, ...], ...]:
    """Read cc1plus, as and ld out of the driver's -### output; () if it is not as expected."""
    import shlex

    folders = _first(r"^COMPILER_PATH=(.*)$", text), os.environ.get("PATH", os.defpath)
    path = os.pathsep.join(filter(None, folders))  # an empty entry would be this directory
    steps: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        if not line.startswith(" "):
            continue
        try:
            words = shlex.split(line)
        except ValueError:
            return ()
        tool = {"collect2": "ld"}.get(os.path.basename(words[0]), os.path.basename(words[0]))
        if tool in steps or tool not in ("cc1plus", "as", "ld"):
            return ()
        program = words[0] if tool == "cc1plus" else store.find_program(tool, path)
        if program is None:
            return ()
        steps[tool] = (program, *_without_files(words[1:]))
    return tuple(steps[t] for t in ("cc1plus", "as", "ld")) if len(steps) == 3 else ()


def _without_files(words: list[str]) -> list[str]:
    """Drop inputs, outputs and search paths; what stays is how the driver calls the tool."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in ("-o", "-dumpdir", "-dumpbase", "-dumpbase-ext"):
            next(rest, None)
        elif word == "/dev/null" or word.startswith("-L") or word.endswith((".o", ".s")):
            continue
        else:
            kept.append(word)
    return kept
