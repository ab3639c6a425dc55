"""NVRTC: in goes CUDA text, out comes a cubin, from the artifact cache or compiled in this process.

The library is that of the wheel nvidia-cuda-nvrtc or of an installed CUDA toolkit. It is called
through ctypes, which needs no compiler at installation and is imported with this module only:
a build calls nine functions, once each.
"""

from __future__ import annotations

import ctypes
import os
import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from opkiln.runtime.config import config
from opkiln.runtime.errors import ConfigError, ToolchainNotFound
from opkiln.runtime.jit import Loaded, device, obtain, store, wheels
from opkiln.runtime.jit.flags import DeviceFlags

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HOW_TO_INSTALL = "pip install 'opkiln[cuda]' (the wheel nvidia-cuda-nvrtc), or a CUDA toolkit"
_MAJORS = (13, 12)


class Nvrtc(NamedTuple):
    """The compiler of one GPU architecture, as far as keys and builds need it."""

    path: str  # of the library
    version: str
    arch: str
    features: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """The directory of its artifacts."""
        return store.DEVICE + self.arch

    def parts(self) -> list[tuple[str, str | tuple[str, ...]]]:
        """Key parts: what the compiler is, not where it lies."""
        return [("compiler.version", f"NVRTC {self.version}"), ("compiler.arch", self.arch)]

    def options(self, flags: DeviceFlags) -> list[str]:
        """The options of a build."""
        return [f"--gpu-architecture={self.arch}", *flags.compile_flags()]


# ---- finding ----


def _folders() -> Iterator[str]:
    """Where the library may lie: wheels first, which match the Python that runs, then toolkits."""
    for folder in (*wheels.consolidated(), *wheels.split("cuda_nvrtc")):
        yield f"{folder}/lib"
    nvcc = store.find_program("nvcc")
    beside = os.path.dirname(os.path.dirname(os.path.realpath(nvcc))) if nvcc else None
    for toolkit in (*filter(None, (config.cuda_home, beside)), "/usr/local/cuda"):
        yield f"{toolkit}/lib64"
        yield f"{toolkit}/lib"


def _candidates() -> Iterator[str]:
    names = [f"libnvrtc.so.{major}" for major in _MAJORS]
    for folder in dict.fromkeys(_folders()):
        yield from (path for name in names if os.path.exists(path := f"{folder}/{name}"))
    yield from names  # where the system's loader looks


@cache
def _load() -> tuple[ctypes.CDLL, str, str]:
    """The library, its path and version."""
    tried: list[str] = []
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            tried.append(str(error))
            continue
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return library, path, f"{major.value}.{minor.value}"
    lines = "".join(f"\n  tried {line}" for line in tried)
    raise ToolchainNotFound(f"no NVRTC library, which compiles CUDA{lines}", fix=HOW_TO_INSTALL)


def compiler(arch: str | None = None) -> Nvrtc:
    """The compiler in use; `arch` wins over OPKILN_CUDA_ARCH, which wins over the GPU at hand.

    Raises:
        ToolchainNotFound: there is no NVRTC.
        ConfigError: no architecture is named and none is at hand, or NVRTC does not know it.
    """
    library, path, version = _load()
    wanted = arch or config.cuda_arch or _device_arch()
    known = _architectures(library)
    number = re.fullmatch(r"sm_(\d+)[af]?", wanted)
    if number is None or int(number[1]) not in known:
        names = ", ".join(f"sm_{n}" for n in known)
        raise ConfigError(
            f"GPU architecture: expected one that NVRTC {version} knows ({names}), got {wanted!r}",
            fix="name another, or install an NVRTC of the GPU's time",
        )
    return Nvrtc(path, version, wanted)


def _architectures(library: ctypes.CDLL) -> list[int]:
    count = ctypes.c_int()
    library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    numbers = (ctypes.c_int * count.value)()
    library.nvrtcGetSupportedArchs(numbers)
    return list(numbers)


def _device_arch() -> str:
    """The architecture of the first GPU."""
    found = device.devices()
    if not found.archs:
        raise ConfigError(
            f"GPU architecture: none is named and there is no CUDA device to ask: {found.why}",
            fix="name one (arch=), or set OPKILN_CUDA_ARCH, for example to sm_90",
        )
    return found.archs[0]


# ---- the door ----


def cubin(
    text: str,
    symbols: Sequence[str],
    *,
    name: str,
    arch: str | None = None,
    flags: DeviceFlags | None = None,
) -> Loaded:
    """The machine code of the kernels `symbols` of a CUDA text, as the `library` of the result.

    Raises ToolchainNotFound, ConfigError, CompileFailed, NotCached or CacheError; as with C++, only
    whole artifacts are ever seen, and one process builds what all wait for.
    """
    made_by = compiler(arch)
    return obtain(text, symbols, name, flags or DeviceFlags(), lambda: [made_by])


def compile_text(made_by: Nvrtc, flags: DeviceFlags, source: str, output: str, log: str) -> bytes:
    """Compile the file `source` into the cubin `output`; return the log, or raise CompileFailed."""
    from opkiln.runtime.jit import build

    library, _, _ = _load()
    text = store.read_owned(source)
    options = made_by.options(flags)
    command = [f"nvrtc-{made_by.version}", *options, os.path.basename(source)]
    program = ctypes.c_void_p()
    _check(library, library.nvrtcCreateProgram(
        ctypes.byref(program), text, os.path.basename(source).encode(), 0, None, None))  # fmt: skip
    try:
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        code = library.nvrtcCompileProgram(program, len(options), words)
        said = _content(library, "ProgramLog", program).rstrip(b"\0")
        store.write_file(log, _with_lines(said, text))
        if code:
            raise build.failure([command], log, code)
        store.write_file(output, _content(library, "CUBIN", program))
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
    return build.read_log([command], log)


def _content(library: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(library, library[f"nvrtcGet{what}Size"](program, ctypes.byref(size)))
    data = ctypes.create_string_buffer(size.value)
    _check(library, library[f"nvrtcGet{what}"](program, data))
    return data.raw


def _check(library: Any, code: int) -> None:
    if code:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        said = library.nvrtcGetErrorString(code).decode()
        raise ToolchainNotFound(f"NVRTC does not work here: {said}", fix=HOW_TO_INSTALL)


def _with_lines(said: bytes, text: bytes) -> bytes:
    """What the compiler said, with the kernel at whose line it said it."""
    lines = text.splitlines()
    told: list[bytes] = []
    for line in said.splitlines():
        told.append(line)
        place = re.match(rb"\S+\((\d+)\): (?:catastrophic )?error", line)
        if place and int(place[1]) <= len(lines):
            heads = (t for t in reversed(lines[: int(place[1])]) if b"__global__" in t)
            told += [b"    in " + head.strip(b" {") for head in list(heads)[:1]]
    return b"\n".join(told)
