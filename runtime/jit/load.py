"""From disk to callable: in goes an order, out come the loaded library and addresses, or a miss.

This is all that a warm start runs, so it imports nothing that only a build needs.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from opkiln.runtime.errors import LoadFailed, SymbolMissing, warn
from opkiln.runtime.jit import store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opkiln.runtime.jit.flags import DeviceFlags, Flags
    from opkiln.runtime.jit.nvrtc import Nvrtc
    from opkiln.runtime.jit.store import Entry
    from opkiln.runtime.jit.toolchain import Compiler
    from opkiln.runtime.key import KeyParts


class Order(NamedTuple):
    """Everything one look-up or build needs."""

    text: bytes
    symbols: tuple[str, ...]
    flags: Flags | DeviceFlags
    compiler: Compiler | Nvrtc
    parts: KeyParts
    entry: Entry


class Opened(NamedTuple):
    """A loaded library and the addresses of its functions; of a GPU's code only its bytes."""

    library: Any
    addresses: dict[str, int]


def look_up(order: Order, *, heal: bool) -> Opened | None:
    """Load a whole entry; a damaged one counts as absent.

    With `heal`, which is for whoever is about to build, it is also moved away with one warning;
    others must not do so, because it may have been healed since they looked. In the lower cache
    nothing is moved, and what is built lies in front of it, so the warning comes once as well.
    """
    entry = order.entry
    try:
        if not store.check(entry, order.parts, order.compiler.features, order.text):
            return None
        opened = open_entry(entry, entry.library, order.symbols)
    except LoadFailed as problem:
        if is_noexec(problem) and not entry.lower:
            raise  # building it again in the same place would not help
        reason = str(problem)
    except (store.Damaged, SymbolMissing) as problem:
        reason = str(problem)
    else:
        claim(opened, entry)
        return opened
    if heal or entry.lower:
        if heal:
            with contextlib.suppress(OSError):
                store.discard(entry)
        first = reason.splitlines()[0]
        warn(f"cached kernel {entry.path} is not usable and is built again: {first}")
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
    fix = "remove the file; it will be built again"
    if "failed to map segment" in reason or "Operation not permitted" in reason:
        fix = (
            f"the disk of {os.path.dirname(path)} seems to be mounted noexec: "
            "set OPKILN_CACHE_DIR to a directory on one that allows programs"
        )
    elif any(t in reason for t in ("wrong ELF class", "invalid ELF header", "file too short")):
        fix = "the file is damaged or made for another machine: remove it"
    elif "undefined symbol" in reason:
        fix = "the text calls a function that this process does not provide"
    elif "version `" in reason:
        fix = (
            "the compiler is newer than the C++ library of this process: set OPKILN_CXX to an "
            "older compiler, or install a newer libstdc++ in this environment"
        )
    elif "cannot open shared object" in reason and os.path.exists(path):
        fix = "a library that it depends on is missing: add its directory to LD_LIBRARY_PATH"
    return LoadFailed(f"cannot load {path!r}: {reason}", fix=fix)
