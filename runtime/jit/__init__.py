"""The loader: in goes generated C++ text, out come the addresses of its functions.

The artifact is looked up on disk by content; only if it is absent is it built, once, whatever the
number of threads and processes that ask for it.
"""

from __future__ import annotations

import _thread
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from opkiln.runtime.config import config
from opkiln.runtime.errors import CacheError, NotCached, OpkilnError, ToolchainNotFound
from opkiln.runtime.jit import store, toolchain
from opkiln.runtime.jit.flags import Flags
from opkiln.runtime.jit.load import Opened, Order, is_noexec, look_up
from opkiln.runtime.key import KeyParts, sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opkiln.runtime.errors import Probe
    from opkiln.runtime.jit.flags import DeviceFlags
    from opkiln.runtime.jit.nvrtc import Nvrtc
    from opkiln.runtime.jit.store import Layer
    from opkiln.runtime.jit.toolchain import Compiler, Request

    Makers = Callable[[], Sequence[Compiler | Nvrtc]]  # that could make an artifact, best first

__all__ = [
    "KERNEL_ABI",
    "Flags",
    "Loaded",
    "assembly",
    "build_or_load",
    "compiler",
    "compilers",
    "import_builder",
    "key_parts",
    "on_disk",
    "placed",
    "typed",
]

T = TypeVar("T")
# Of native/core/abi.h, which every kernel obeys. Raise it with each change there.
KERNEL_ABI = "2"


class Loaded(NamedTuple):
    """A loaded artifact; keep it (or `library`) alive as long as an address is in use.

    Of a GPU's code `library` is the code itself, and there are no addresses.
    """

    path: str
    addresses: dict[str, int]
    library: Any
    hit: str  # "disk" or "built"
    seconds: float
    parts: KeyParts
    why: tuple[tuple[str, str, str], ...]  # of a build: (part, in the cache, wanted)


# ---- the compiler in use ----

_guard = _thread.allocate_lock()
_known: dict[tuple[tuple[Layer, ...], str | None, str | None, str | None], Compiler] = {}


def _after_fork() -> None:
    global _guard  # noqa: PLW0603
    _guard = _thread.allocate_lock()


# Held while a thread imports what builds need. A fork waits for that: a child in which no thread
# is left to finish an import waits for it for ever.
_importing = _thread.RLock()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
    os.register_at_fork(
        before=_importing.acquire,
        after_in_parent=_importing.release,
        after_in_child=_importing.release,
    )


def import_builder() -> None:
    """Import what a warm start does not need, with all that a build imports in turn."""
    with _importing:
        import opkiln.runtime.jit.flight as _  # noqa: F401


def compiler() -> Compiler:
    """The compiler in use: asked once per machine, then read from the cache directory."""
    return compilers()[0]


def compilers() -> list[Compiler]:
    """The compiler in use or, if none is left, all that once filled the cache on this machine."""
    layers = tuple(store.layers())
    slot = (layers, config.cxx, os.environ.get("PATH"), os.environ.get("CONDA_PREFIX"))
    found = _known.get(slot)
    if found is not None:
        return [found]
    with _guard:
        tried: list[Probe] = []
        found = _known.get(slot) or _identify(layers, tried)
        if found is not None:
            _known[slot] = found
            return [found]
        left = [c for layer in layers for c in toolchain.stored_without_compiler(layer)]
    if not left:
        raise _not_found(tried)
    return left


def _identify(layers: Sequence[Layer], tried: list[Probe]) -> Compiler | None:
    for request in toolchain.requests():
        if not request.program:
            tried.append(toolchain.lost(request, "not found"))
            continue
        for layer in layers:
            known = toolchain.stored(layer, request)
            if known is not None:
                return known
        try:
            return _probe(request)
        except ToolchainNotFound as error:
            tried.append(toolchain.lost(request, str(error)))
    return None


def _probe(request: Request) -> Compiler:
    """Ask the compiler, unless another process has just done so."""
    import_builder()
    from opkiln.runtime.jit.lock import ProcessLock

    layer = store.Layer(store.root())
    folder = store.make_folder(f"{layer.base}/{store.COMPILERS}")
    with ProcessLock(f"{folder}/.lock", config.lock_wait, lambda _: None):
        return toolchain.stored(layer, request) or toolchain.probe(folder, request)


def _not_found(tried: list[Probe]) -> ToolchainNotFound:
    lines = "".join(f"\n  tried {_short(str(probe), 500)}" for probe in tried)
    setting = "OPKILN_CXX or CXX" if config.cxx is not None else "PATH"
    path = _short(os.environ.get("PATH", ""), 200)
    fix = toolchain.HOW_TO_INSTALL
    other = toolchain.default_program() if config.cxx is not None else None
    if other is not None:
        fix = f"unset {setting}, since there is {_short(other, 200)}; or {fix}"
    return ToolchainNotFound(
        f"no working C++ compiler (from {setting}, PATH={path!r}){lines}", fix=fix, probes=tried
    )


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


# ---- the door ----


def key_parts(
    text: bytes, symbols: Sequence[str], flags: Flags | DeviceFlags, made_by: Compiler | Nvrtc
) -> KeyParts:
    """The named parts that decide what the machine code is; no path, version of ours or time."""
    return KeyParts(
        [
            ("schema", store.SCHEMA),
            ("kernel.abi", KERNEL_ABI),
            ("text", sha256(text)),
            ("symbols", symbols),
            *flags.parts(),
            *made_by.parts(),
        ]
    )


def build_or_load(
    text: str, symbols: Sequence[str], *, name: str, flags: Flags | None = None
) -> Loaded:
    """Return the functions `symbols` of the C++ `text`, from disk or from a build.

    Raises ToolchainNotFound, CompileFailed, CompileTimeout, LoadFailed, SymbolMissing, NotCached or
    CacheError; nothing half-written is left, and the next call starts afresh.
    """
    return obtain(text, symbols, name, (flags or Flags()).checked(), compilers)


def obtain(
    text: str, symbols: Sequence[str], name: str, flags: Flags | DeviceFlags, makers: Makers
) -> Loaded:
    """Return the artifact of a text, from disk or from a build by the first of the `makers`."""
    start = time.perf_counter()
    data = text.encode("utf-8", "surrogateescape")
    return placed(lambda: _find(data, tuple(symbols), name, flags, makers, start))


def placed(work: Callable[[], T]) -> T:
    """Do what needs the cache directory, in another place where the disk is the problem."""
    for attempt in range(3):
        try:
            return work()
        except OSError as error:
            if not _other_place(error, attempt):
                raise typed(error) from error
    raise CacheError("the cache directory keeps failing", fix=store.FIX)


def on_disk(text: str, symbols: Sequence[str], *, name: str) -> Loaded | None:
    """The same from disk only: None where a build is needed, or the disk has a problem."""
    start = time.perf_counter()
    data = text.encode("utf-8", "surrogateescape")
    try:
        found = _look(data, tuple(symbols), name, Flags().checked(), compilers, start)
    except (OSError, OpkilnError):
        return None
    return found if isinstance(found, Loaded) else None


def _other_place(error: OSError, attempt: int) -> bool:
    """After a problem of the disk, make another try sensible; False if it is not."""
    if isinstance(error, FileNotFoundError) and attempt == 0:
        store.forget_root()  # someone removed the cache directory: make it again
        return True
    if isinstance(error, OpkilnError):
        place = isinstance(error, CacheError) and not isinstance(error, NotCached)
        return (place or is_noexec(error)) and store.use_temporary_root(str(error).splitlines()[0])
    reason = f"the cache directory {store.root()!r} cannot take a new kernel ({error})"
    return store.use_temporary_root(reason)


def typed(error: OSError) -> OpkilnError:
    """Say what a problem of the disk means here."""
    if isinstance(error, OpkilnError):
        return error
    return CacheError(f"kernels can be kept nowhere: {error}", fix=store.FIX)


def assembly(text: str, flags: Flags | None = None) -> str:
    """The assembly of a text with the flags of `build_or_load`, for people to read."""
    import tempfile

    from opkiln.runtime.jit import build

    with tempfile.TemporaryDirectory(prefix="opkiln-") as folder:
        source, output = f"{folder}/{store.SOURCE}", f"{folder}/kernel.s"
        store.write_file(source, text.encode("utf-8", "surrogateescape"))
        wanted = (flags or Flags()).checked()
        build.assembly(compiler(), wanted, source, output, f"{folder}/{store.LOG}")
        return store.read_owned(output).decode("utf-8", "replace")


def _look(
    data: bytes,
    symbols: tuple[str, ...],
    name: str,
    flags: Flags | DeviceFlags,
    makers: Makers,
    start: float,
) -> Loaded | list[Order]:
    """The artifact from disk, or what to build, the best place first."""
    orders: list[Order] = []
    for made_by in makers():
        parts = key_parts(data, symbols, flags, made_by)
        for layer in store.layers():
            entry = store.entry_for(layer, made_by.target, name, parts)
            order = Order(data, symbols, flags, made_by, parts, entry)
            opened = look_up(order, heal=False)
            if opened is not None:
                return _loaded(order, opened, "disk", start)
            orders.append(order)
    return orders


def _find(
    data: bytes,
    symbols: tuple[str, ...],
    name: str,
    flags: Flags | DeviceFlags,
    makers: Makers,
    start: float,
) -> Loaded:
    found = _look(data, symbols, name, flags, makers, start)
    if isinstance(found, Loaded):
        return found
    import_builder()
    from opkiln.runtime.jit.build import Kernel
    from opkiln.runtime.jit.flight import build_once

    order = found[0]
    if order.entry.lower:  # the first cache cannot be used: build in the one that stands in for it
        place = store.Layer(store.root())
        entry = store.entry_for(place, order.compiler.target, name, order.parts)
        order = order._replace(entry=entry)
    opened, hit, why = build_once(Kernel(order))
    return _loaded(order, opened, hit, start, why)


def _loaded(
    order: Order, opened: Opened, hit: str, start: float, why: tuple[tuple[str, str, str], ...] = ()
) -> Loaded:
    seconds = time.perf_counter() - start
    path = order.entry.library
    return Loaded(path, opened.addresses, opened.library, hit, seconds, order.parts, why)
