"""Compilers in, what `opkiln doctor --toolchain` says of them out: where each was looked for.

Each is asked anew: nothing here is taken from what an earlier process wrote down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opkiln.runtime.cli.probes import NOTE, OK, Check, compilers
from opkiln.runtime.errors import OpkilnError, ToolchainNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from opkiln.runtime.errors import Probe


def every_check() -> Iterator[tuple[str, Callable[[], Iterator[Check]]]]:
    """The probes by section."""
    yield "compiler", compilers
    yield "C++ library", library
    yield "CUDA toolkit", toolkit
    yield "cuDNN", cudnn
    yield "GPU architectures", architectures


def _lines(section: str, probes: Iterable[Probe]) -> Iterator[Check]:
    for probe in probes:
        state, verdict = (OK, "won") if probe.won else (NOTE, "lost")
        yield Check(section, state, probe.source, f"{probe.place} {verdict}: {probe.why}")


def library() -> Iterator[Check]:
    """The C++ library of the compiler in use, and that of this process."""
    from opkiln.runtime.toolchains import CompileOptions, CppBackend, abi

    section = "C++ library"
    facts = CppBackend.find().abi(CompileOptions())
    here = abi.of_process() or "unknown"
    yield Check(section, OK, "of sources", f"{facts.name} {facts.release}, {facts.standard}")
    same = facts.name == here
    yield Check(section, OK if same else NOTE, "of this process", here)
    if not same:
        text = 'C++ types cannot be shared with this process; extern "C" functions do not care'
        yield Check(section, NOTE, "so", text)


def toolkit() -> Iterator[Check]:
    """Each place where a CUDA toolkit was looked for. None is no problem: C++ needs none."""
    from opkiln.runtime.toolchains.toolkit import find_cuda

    section = "CUDA toolkit"
    try:
        found = find_cuda(fresh=True)
    except ToolchainNotFound as error:
        yield from _lines(section, error.probes)
        yield Check(section, NOTE, "in use", f"none; {error.fix}")
        return
    yield from _lines(section, found.probes)
    yield Check(section, OK, "compiles for", ", ".join(found.known) or "nvcc does not say")
    yield Check(section, OK, "libraries", ", ".join(found.library_paths) or "none")


def cudnn() -> Iterator[Check]:
    """Each place where cuDNN was looked for."""
    from opkiln.runtime.toolchains.cudnn import HOW_TO_INSTALL, find_cudnn
    from opkiln.runtime.toolchains.toolkit import find_cuda

    section = "cuDNN"
    try:
        root = find_cuda().root
    except ToolchainNotFound:
        root = ""
    try:
        yield from _lines(section, find_cudnn(toolkit=root).probes)
    except ToolchainNotFound as error:
        yield from _lines(section, error.probes)
        text = f"none, which only sources that link it need; {HOW_TO_INSTALL}"
        yield Check(section, NOTE, "in use", text)


def architectures() -> Iterator[Check]:
    """What CUDA sources would be compiled for."""
    from opkiln.runtime.toolchains import archs

    section = "GPU architectures"
    try:
        yield Check(section, OK, "sources", ", ".join(archs.resolve()))
    except OpkilnError as error:
        yield Check(section, NOTE, "sources", str(error).replace("\n  how to fix", "; how to fix"))
