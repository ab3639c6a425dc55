"""From disk to callable: in goes an order, out come the loaded library and addresses, or a miss.

This is all that a warm start runs, so it imports nothing that only a build needs.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from opkiln.ops.record import record
from opkiln.runtime.errors import LoadFailed, SymbolMissing, warn
from opkiln.runtime.jit import store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opkiln.runtime.jit.flags import DeviceFlags, Flags
    from opkiln.runtime.jit.nvrtc import Nvrtc
    from opkiln.runtime.jit.store import Entry
    from opkiln.runtime.jit.toolchain import Compiler
    from opkiln.runtime.key import KeyParts

T = TypeVar("T")


class Order(NamedTuple):
    """Everything one look-up or build needs."""

    text: bytes
    symbols: tuple[str, ...]
    flags: Flags | DeviceFlags
    compiler: Compiler | Nvrtc
    parts: KeyParts
    entry: Entry


@record
class Opened:
    """A loaded library and the addresses of its functions; of a GPU's code only its bytes."""

    library: Any
    addresses: dict[str, int]


def look_up(order: Order, *, heal: bool) -> Opened | None:
    """Load a whole entry of a kernel."""
    entry = order.entry

    def load() -> Opened | None:
        if store.check(entry, order.parts.hexdigest, order.compiler.features, order.text) is None:
            return None
        opened = open_entry(entry, entry.library, order.symbols)
        claim(opened, entry)
        return opened

    return usable(entry, load, heal=heal)


def usable(entry: Entry, load: Callable[[], T | None], *, heal: bool) -> T | None:
    """What `load` makes of an entry; None if the entry is absent, or damaged, which counts as that.

    With `heal`, which is for whoever is about to build, it is also moved away with one warning;
    others must not do so, because it may have been healed since they looked. In the lower cache
    nothing is moved, and what is built lies in front of it, so the warning comes once as well.
    """
    try:
        return load()
    except LoadFailed as problem:
        if is_noexec(problem) and not entry.lower:
            raise  # building it again in the same place would not help
        reason = str(problem)
    except (store.Damaged, SymbolMissing) as problem:
        reason = str(problem)
    if heal or entry.lower:
        if heal:
            with contextlib.suppress(OSError):
                store.discard(entry)
        first = reason.splitlines()[0]
        warn(f"cached {entry.kind} {entry.path} is not usable and is built again: {first}")
    return None


def claim(opened: Opened, entry: Entry) -> None:
    """Tell whoever prunes the cache that this entry is in use, for as long as it is loaded."""
    if not (entry.lower or entry.device):  # what was read as a whole needs its file no more
        opened.library.claim(store.claims_file(os.path.dirname(entry.folder)), entry.claim)


def open_entry(entry: Entry, path: str, symbols: Sequence[str]) -> Opened:
    """Load what the entry holds, from `path`: a shared library, or the code of a GPU."""
    if not entry.device:
        return open_library(path, symbols)
    code = store.read_owned(path, any_owner=entry.lower)
    for name in symbols:
        if not re.search(rb"\b%b\0" % re.escape(name.encode()), code):  # the ELF file's names
            raise SymbolMissing(f"{path!r} has no kernel {name!r}", fix="remove the file")
    return Opened(code, {})


def open_library(path: str, symbols: Sequence[str]) -> Opened:
    """Load a shared library and look all symbols up; LoadFailed says why not."""
    from opkiln.native import Library

    try:
        library = Library(path)
    except OSError as error:
        raise _explain(path, str(error).splitlines()[0]) from None
    return Opened(library, {name: library.symbol(name) for name in symbols})


def is_noexec(error: BaseException) -> bool:
    """Whether the disk, not the library, is why it cannot be loaded."""
    return isinstance(error, LoadFailed) and "noexec" in str(error)


def _explain(path: str, reason: str) -> LoadFailed:
    for said_already in (f"cannot load {path}: ", f"{path}: "):
        reason = reason.removeprefix(said_already)
    return LoadFailed(f"cannot load {path!r}: {reason}", fix=_how_to_load(path, reason))


def _how_to_load(path: str, reason: str) -> str:
    """What to do about the system's reason."""
    symbol = reason.partition("undefined symbol: ")[2].split(" ")[0].split(",")[0]
    if "failed to map segment" in reason or "Operation not permitted" in reason:
        return (
            f"the disk of {os.path.dirname(path)} seems to be mounted noexec: "
            "set OPKILN_CACHE_DIR to a directory on one that allows programs"
        )
    if any(t in reason for t in ("wrong ELF class", "invalid ELF header", "file too short")):
        return f"the file is damaged or made for another machine ({_machine(path)}): remove it"
    if "cxx11" in symbol:
        return (
            f"{symbol} is of the strings of the C++11 ABI, which a library here lacks: build both "
            'with the same -D_GLIBCXX_USE_CXX11_ABI (0 or 1), or keep to extern "C"'
        )
    if re.fullmatch(r"cu[A-Z]\w+", symbol):
        return (
            f"the driver is older than the CUDA toolkit of the build and lacks {symbol}: install a "
            "newer NVIDIA driver, or build with an older toolkit (OPKILN_CUDA_HOME)"
        )
    if symbol:
        return (
            f"nothing in this process provides {symbol}: link the library that has it, or define it"
        )
    if "version `" in reason:
        return (
            "the compiler is newer than the C++ library of this process: set OPKILN_CXX to an "
            "older compiler, install a newer libstdc++ in this environment, or link with "
            "-static-libstdc++"
        )
    if "cannot open shared object" in reason and os.path.exists(path):
        missing = reason.split(":", maxsplit=1)[0]
        return (
            f"{missing}, which it depends on, is missing: install it, or name its directory "
            "in the link options (-Wl,-rpath,DIR) or in LD_LIBRARY_PATH"
        )
    return "remove the file; it will be built again"


_MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 190: "CUDA", 243: "riscv"}


def _machine(path: str) -> str:
    """For what machine a file is made, as far as its first bytes tell."""
    try:
        with open(path, "rb") as file:
            head = file.read(20)
    except OSError:
        return "it cannot be read"
    if head[:4] != b"\x7fELF" or len(head) < 20:
        return "it is no ELF file"
    number = int.from_bytes(head[18:20], "big" if head[5] == 2 else "little")
    return f"{_MACHINES.get(number, f'machine {number}')}, {32 * head[4]} bits"
