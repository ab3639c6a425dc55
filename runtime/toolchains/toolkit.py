"""The CUDA toolkit: in go an argument and the settings, out comes one whole toolkit and the probes.

Places, best first: an argument; the settings (OPKILN_NVCC, then the first that is set of
OPKILN_CUDA_HOME, CUDA_HOME, CUDA_PATH, CUDA_ROOT_DIR); wheels, the whole toolkits `nvidia/cuNN`
before those in parts; nvcc on PATH, which is asked for its root; /usr/local/cuda. What is named is
used or is an error: nothing silently takes its place.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from opkiln.runtime.config import Config, config
from opkiln.runtime.errors import Probe, ToolchainNotFound
from opkiln.runtime.jit import spawn, store, toolchain, wheels
from opkiln.runtime.jit.record import Record, render
from opkiln.runtime.key import KeyParts, sha256

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCHEMA = "nvcc-1"
_TOOL = "CUDA"
_EXE = ".exe" if sys.platform == "win32" else ""
_HEADER = "cuda_runtime.h"
# Variables that make nvcc do something else.
_ENVIRONMENT = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
HOW_TO_INSTALL = (
    "install a CUDA toolkit (developer.nvidia.com/cuda-downloads, or conda install cuda-nvcc "
    "cuda-cudart-dev), or set OPKILN_CUDA_HOME to one; C++ sources need none"
)


@dataclass(frozen=True, slots=True)
class CudaToolchain:
    """One CUDA toolkit, as far as keys and builds need it."""

    nvcc: str  # how to call it; empty when it is gone and only its record is left
    root: str
    version: str  # such as "13.0.88"
    digest: str  # of what nvcc and the runtime's headers say of themselves
    known: tuple[str, ...]  # the architectures that nvcc compiles for; () if it does not list them
    include_paths: tuple[str, ...] = ()  # besides those that nvcc knows: wheels in parts
    library_paths: tuple[str, ...] = ()
    probes: tuple[Probe, ...] = ()  # how it was found

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor, *_ = (*self.version.split("."), "0", "0")
        return int(major), int(minor)

    @property
    def headers(self) -> str:
        """The directory of cuda_runtime.h."""
        return _header_folder(self.root, self.include_paths) or f"{self.root}/include"

    def parts(self) -> list[tuple[str, str | tuple[str, ...]]]:
        """Key parts: what the toolkit is, not where it lies."""
        environment = tuple(f"{name}={os.environ.get(name, '')}" for name in _ENVIRONMENT)
        return [
            ("cuda.version", self.version),
            ("cuda.digest", self.digest),
            ("cuda.environment", environment),
        ]


class _Place(NamedTuple):
    """One candidate."""

    source: str
    nvcc: str
    root: str  # "" if nvcc has to be asked
    include_paths: tuple[str, ...] = ()
    library_paths: tuple[str, ...] = ()
    named: bool = False  # by an argument or a setting: it must be right


def find_cuda(home: str | None = None, *, fresh: bool = False) -> CudaToolchain:
    """The toolkit in use.

    Args:
        home: a directory; it comes before all settings.
        fresh: ask nvcc anew, whatever is kept of an earlier answer.

    Raises:
        ToolchainNotFound: it lists every place and why it lost.
    """
    probes: list[Probe] = []
    for place in _places(home):
        found = _try(place, probes, fresh=fresh)
        if found is not None:
            return found
        if place.named:
            raise _not_found(probes, place.source)
    gone = None if fresh else _kept_without_nvcc(tuple(probes))
    if gone is None:
        raise _not_found(probes, "")
    return gone


def _not_found(probes: list[Probe], named: str) -> ToolchainNotFound:
    lines = "".join(f"\n  tried {probe}" for probe in probes)
    fix = HOW_TO_INSTALL
    other = next((place for place in _unnamed() if _problem(place) is None), None)
    if named in os.environ and other is not None:
        fix = f"unset {named}, since there is {other.nvcc}; or {fix}"
    return ToolchainNotFound(
        f"no working CUDA toolkit, which sources of CUDA (.cu) need{lines}", fix=fix, probes=probes
    )


# ---- places ----


def _places(home: str | None) -> Iterator[_Place]:
    if home is not None:
        yield _rooted("argument", os.fspath(home), named=True)
    elif config.nvcc is not None:
        program = store.find_program(config.nvcc) or config.nvcc
        yield _Place("OPKILN_NVCC", program, "", named=True)
    elif config.cuda_home is not None:
        yield _rooted(_variable("cuda_home"), config.cuda_home, named=True)
    else:
        yield from _unnamed()


def _variable(name: str) -> str:
    """The variable that a setting came from; `config.name` if the program itself set it."""
    row = next(row for row in Config.table() if row.name == name)
    value = getattr(config, name)
    for variable in row.variables:
        text = os.environ.get(variable, "")
        if text.strip():
            return variable if row.checked(text, variable) == value else f"config.{name}"
    return f"config.{name}"


def _unnamed() -> Iterator[_Place]:
    for path in wheels.consolidated():
        yield _rooted("wheel", path)
    for path in wheels.split("cuda_nvcc"):
        parts = [f"{os.path.dirname(path)}/{name}" for name in ("cuda_runtime", "cuda_cccl")]
        includes = tuple(f"{part}/include" for part in parts if os.path.isdir(f"{part}/include"))
        yield _rooted("wheels in parts", path, includes, library_folders(parts[0]))
    program = store.find_program(f"nvcc{_EXE}")
    if program is not None:
        yield _Place("PATH", program, "")
    else:
        yield _Place("PATH", "nvcc", "")
    for path in _system():
        yield _rooted("system", path)


def _system() -> Iterator[str]:
    if sys.platform == "win32":  # untested
        base = r"C:\Program Files\NVIDIA GPU Computing Toolkit\CUDA"
        versions: list[tuple[int, ...]] = []
        with contextlib.suppress(OSError):
            for name in os.listdir(base):
                if re.fullmatch(r"v\d+\.\d+", name):
                    versions.append(tuple(map(int, name[1:].split("."))))
        for major, minor in sorted(versions, reverse=True):
            yield rf"{base}\v{major}.{minor}"
    else:
        yield "/usr/local/cuda"


def _rooted(
    source: str,
    root: str,
    includes: tuple[str, ...] = (),
    libraries: tuple[str, ...] = (),
    *,
    named: bool = False,
) -> _Place:
    root = root.rstrip("/\\") or root
    own = library_folders(root)
    return _Place(source, f"{root}/bin/nvcc{_EXE}", root, includes, (*own, *libraries), named)


def library_folders(root: str) -> tuple[str, ...]:
    """The directories of libraries below a root; a link to another of them counts once."""
    names = ("lib64", "lib") if sys.platform != "win32" else ("lib/x64", "bin")
    found = {os.path.realpath(p): p for n in reversed(names) if os.path.isdir(p := f"{root}/{n}")}
    return tuple(reversed(found.values()))


def _header_folder(root: str, includes: tuple[str, ...]) -> str | None:
    every = (f"{root}/include", f"{root}/targets/x86_64-linux/include", *includes)
    return next((path for path in every if os.path.exists(f"{path}/{_HEADER}")), None)


def _problem(place: _Place) -> str | None:
    """Why a place cannot be a toolkit, as far as looking tells; None if it can."""
    if place.root and not os.path.isdir(place.root):
        return "no such directory"
    if not store.find_program(place.nvcc):
        missing = f"no bin/nvcc{_EXE} in it" if place.root else "not found"
        return missing if not os.path.exists(place.nvcc) else "not executable"
    if place.root and _header_folder(place.root, place.include_paths) is None:
        return f"no include/{_HEADER} in it"
    return None


# ---- asking, and remembering the answer ----


def _try(place: _Place, probes: list[Probe], *, fresh: bool) -> CudaToolchain | None:
    shown = place.root or place.nvcc
    problem = _problem(place)
    found = None
    if problem is None:
        try:
            found = (None if fresh else _kept(place)) or _ask(place)
        except ToolchainNotFound as error:
            problem = str(error)
    if found is None:
        probes.append(Probe(_TOOL, place.source, shown, won=False, why=problem or ""))
        return None
    why = f"CUDA {found.version} in {found.root}"
    probes.append(Probe(_TOOL, place.source, shown, won=True, why=why))
    return _with_probes(found, probes)


def _with_probes(found: CudaToolchain, probes: list[Probe]) -> CudaToolchain:
    from dataclasses import replace

    return replace(found, probes=tuple(probes))


def _ask(place: _Place) -> CudaToolchain:
    """Ask nvcc for version, root and architectures; raise ToolchainNotFound with what it said."""
    host = toolchain.default_program()
    ccbin = ["-ccbin", host] if host else []
    questions = [
        [place.nvcc, "--version"],
        [place.nvcc, "--list-gpu-code"],
        [place.nvcc, "--dryrun", *ccbin, "-x", "cu", os.devnull, "-o", os.devnull],
    ]
    try:
        said = spawn.ask(questions, time.monotonic() + config.compile_timeout)
    except spawn.NotStarted as error:
        raise ToolchainNotFound(f"could not be started: {error}") from None
    except spawn.OutOfTime:
        raise ToolchainNotFound(f"no answer in {config.compile_timeout:g} s") from None
    version = re.search(r"\bV(\d+\.\d+\.\d+)", said[0].out)
    if said[0].code not in (0, spawn.UNKNOWN) or version is None:
        words = " ".join((said[0].err or said[0].out).split())[-300:]
        raise ToolchainNotFound(f"not a working nvcc: status {said[0].code}: {words}")
    root = place.root or _root_of(place.nvcc, said[2].err + said[2].out)
    libraries = place.library_paths or library_folders(root)
    headers = _header_folder(root, place.include_paths)
    if headers is None:
        raise ToolchainNotFound(f"its root {root} has no include/{_HEADER}")
    facts = [said[0].out, *_header_versions(headers, version[1])]
    known = tuple(dict.fromkeys(re.findall(r"^sm_\w+$", said[1].out, re.MULTILINE)))
    found = CudaToolchain(
        place.nvcc,
        root,
        version[1],
        sha256("\n".join(facts).encode()),
        tuple(sorted(known, key=lambda name: (len(name), name))),
        place.include_paths,
        libraries,
    )
    _keep(place, found)
    return found


def _root_of(nvcc: str, said: str) -> str:
    """The root that nvcc itself names; where it names none, that of the file behind the links."""
    top = re.search(r"^#\$ TOP=(.+)$", said, re.MULTILINE)
    if top:
        return os.path.normpath(top[1].strip().strip('"'))
    return os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))


def _header_versions(headers: str, nvcc: str) -> list[str]:
    """What the headers say of themselves; raise ToolchainNotFound if they are of another nvcc."""
    text = _start_of(f"{headers}/cuda_runtime_api.h")
    found = re.search(r"#define CUDART_VERSION\s+(\d+)", text)
    library = re.search(r"#define CCCL_VERSION\s+(\d+)", _cccl(headers))
    major, minor = divmod(int(found[1]) if found else 0, 1000)
    if found and major != int(nvcc.split(".", maxsplit=1)[0]):
        raise ToolchainNotFound(
            f"nvcc is of CUDA {nvcc} and {headers} of CUDA {major}.{minor // 10}: "
            "parts of different toolkits are mixed"
        )
    return [match[0] for match in (found, library) if match]


def _cccl(headers: str) -> str:
    for base in (f"{headers}/cccl", headers):
        text = _start_of(f"{base}/cuda/std/__cccl/version.h")
        if text:
            return text
    return ""


def _start_of(path: str) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(2**16).decode("utf-8", "replace")
    return ""


def _record_name(place: _Place) -> str:
    """The file of the answer: it changes with nvcc's file, and with what else decides."""
    real = os.path.realpath(place.nvcc)
    decides = [
        ("schema", _SCHEMA),
        ("nvcc", toolchain.stamp(place.nvcc)),
        ("place", [place.nvcc, place.root, *place.include_paths]),
        ("profile", toolchain.stamp(f"{os.path.dirname(real)}/nvcc.profile")),
        ("environment", [f"{name}={os.environ.get(name, '')}" for name in _ENVIRONMENT]),
    ]
    return f"nvcc-{KeyParts(decides).short}.json"


def _kept(place: _Place) -> CudaToolchain | None:
    name = _record_name(place)
    for layer in store.layers():
        with contextlib.suppress(OSError, ValueError):
            record = toolchain.read_answer(layer, name)
            if record is not None and _still_there(record):
                return _of_record(record, place.nvcc)
    return None


def _still_there(record: Record) -> bool:
    """Whether the compiler behind a wrapper is the one that answered."""
    inner = record.texts("inner")
    return bool(inner) and toolchain.stamp(inner[0]) == inner


def _of_record(record: Record, nvcc: str) -> CudaToolchain | None:
    if record.text("schema") != _SCHEMA:
        return None
    return CudaToolchain(
        nvcc,
        record.text("root"),
        record.text("version"),
        record.text("digest"),
        tuple(record.texts("known")),
        tuple(record.texts("include_paths")),
        tuple(record.texts("library_paths")),
    )


def _keep(place: _Place, found: CudaToolchain) -> None:
    fields: dict[str, str | int | list[str]] = {
        "schema": _SCHEMA,
        "root": found.root,
        "version": found.version,
        "digest": found.digest,
        "known": list(found.known),
        "include_paths": list(found.include_paths),
        "library_paths": list(found.library_paths),
        "inner": toolchain.stamp(f"{found.root}/bin/nvcc{_EXE}"),
    }
    folder = store.make_folder(f"{store.root()}/{store.COMPILERS}")
    store.write_whole(f"{folder}/{_record_name(place)}", render(fields))


def _kept_without_nvcc(probes: tuple[Probe, ...]) -> CudaToolchain | None:
    """The newest answer of an nvcc that is gone: what it made is still found in the cache."""
    for layer in store.layers():
        for name in toolchain.answers(layer, "nvcc-"):
            with contextlib.suppress(OSError, ValueError):
                record = toolchain.read_answer(layer, name)
                found = _of_record(record, "") if record is not None else None
                if found is not None:
                    return _with_probes(found, list(probes))
    return None
