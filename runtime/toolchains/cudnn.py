"""cuDNN: in go an argument and the settings, out come its directories and the probes."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opkiln.runtime.config import config
from opkiln.runtime.errors import Probe, ToolchainNotFound
from opkiln.runtime.jit import wheels
from opkiln.runtime.toolchains.toolkit import library_folders

if TYPE_CHECKING:
    from collections.abc import Iterator

_SYSTEM = () if sys.platform == "win32" else ("/usr", "/usr/local")
_HEADERS = ("cudnn_version.h", "cudnn.h")
HOW_TO_INSTALL = "pip install nvidia-cudnn-cu13 (or -cu12), or set OPKILN_CUDNN_ROOT"


@dataclass(frozen=True, slots=True)
class Cudnn:
    """Where cuDNN lies."""

    root: str
    include_path: str
    library_path: str
    probes: tuple[Probe, ...]


def find_cudnn(root: str | None = None, toolkit: str = "") -> Cudnn:
    """The cuDNN in use: an argument, OPKILN_CUDNN_ROOT, wheels, the CUDA toolkit, the system.

    Raises ToolchainNotFound, which lists every place and why it lost.
    """
    probes: list[Probe] = []
    for source, place, named in _places(root, toolkit):
        include = _include(place)
        library = _library(place)
        problem = (
            "no such directory"
            if not os.path.isdir(place)
            else f"no include/{_HEADERS[1]} in it"
            if include is None
            else "no libcudnn in its lib64 or lib"
            if library is None
            else ""
        )
        probes.append(Probe("cuDNN", source, place, won=not problem, why=problem or "whole"))
        if include is not None and library is not None:
            return Cudnn(place, include, library, tuple(probes))
        if named:
            break
    lines = "".join(f"\n  tried {probe}" for probe in probes)
    raise ToolchainNotFound(
        f"no cuDNN, which the link options ask for{lines}", fix=HOW_TO_INSTALL, probes=probes
    )


def _places(root: str | None, toolkit: str) -> Iterator[tuple[str, str, bool]]:
    if root is not None:
        yield "argument", os.fspath(root), True
    elif config.cudnn_root is not None:
        yield "OPKILN_CUDNN_ROOT or CUDNN_ROOT_DIR", config.cudnn_root, True
    else:
        yield from (("wheel", path, False) for path in wheels.split("cudnn"))
        if toolkit:
            yield "CUDA toolkit", toolkit, False
        yield from (("system", path, False) for path in _SYSTEM)


def _include(root: str) -> str | None:
    folders = (f"{root}/include", *(f"{root}/include/{one}" for one in _multiarch()))
    return next(
        (f for f in folders if any(os.path.exists(f"{f}/{name}") for name in _HEADERS)), None
    )


def _library(root: str) -> str | None:
    folders = (*library_folders(root), *(f"{root}/lib/{one}" for one in _multiarch()))
    return next((folder for folder in folders if _holds(folder)), None)


def _holds(folder: str) -> bool:
    try:
        return any(name.startswith(("libcudnn.so", "cudnn")) for name in os.listdir(folder))
    except OSError:
        return False


def _multiarch() -> tuple[str, ...]:
    """Debian's directories of one machine."""
    return (f"{os.uname().machine}-linux-gnu",) if hasattr(os, "uname") else ()
