"""Why a kernel is not in the cache: an order in, named differences from what is there out.

Each difference is (name, what the cache has, what is wanted). The nearest cached kernel is the one
of the same text; with none, the text itself is new, and its other parts compare with nothing.
"""

from __future__ import annotations

import contextlib
import os
from itertools import islice
from typing import TYPE_CHECKING

from opkiln.runtime.jit import store
from opkiln.runtime.jit.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from opkiln.runtime.jit.load import Order
    from opkiln.runtime.key import KeyParts

Difference = tuple[str, str, str]

_MOST = 4096  # entries looked at; a build takes longer than that many
_NAMES = {
    "schema": "cache format",
    "kernel.abi": "kernel interface",
    "text": "kernel text",
    "symbols": "kernel names",
    "compiler.version": "compiler",
    "compiler.digest": "compiler macros",
    "compiler.target": "target",
    "compiler.flags": "flags of the compiler setting",
    "compiler.arch": "architecture flags",
}
_REMARKS = frozenset(["cache directory", "cache entry", "kernel text"])  # have no old value


def why(order: Order) -> tuple[Difference, ...]:
    """What keeps the order from being served by the cache."""
    if os.path.lexists(order.entry.path):  # yet it did not serve: a warning tells what is wrong
        return (("cache entry", "", f"{order.entry.path} is damaged, built again"),)
    target = store.clean_target(order.compiler.target)
    entries = [e for layer in store.layers() for e in _entries(layer, target)]
    if not entries:
        return (("cache directory", "", f"{order.entry.folder} has no kernels yet"),)
    best: tuple[Difference, ...] | None = None
    for entry in _with_size(entries, len(order.text)):
        found = _differences(order, entry)
        if found == ():
            return (("cache entry", "", f"{entry.path} is damaged, built again"),)
        if found is not None and (best is None or len(found) < len(best)):
            best = found
    return best or (("kernel text", "", "new to the cache"),)


def text_of(differences: Iterable[Difference]) -> str:
    """The differences in one line."""
    return ", ".join(
        f"{name}: {old or 'absent'} -> {new or 'absent'}"
        if name not in _REMARKS
        else f"{name}: {new}"
        for name, old, new in differences
    )


def _entries(layer: store.Layer, target: str) -> Iterator[store.Entry]:
    folder = f"{layer.base}/{target}"
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for entry in islice(found, _MOST):
            if store.is_entry_name(entry.name):
                yield store.Entry(folder, entry.name, layer.lower)


def _with_size(entries: list[store.Entry], size: int) -> Iterator[store.Entry]:
    """Entries whose text has this size: equal texts are among them, and few others."""
    for entry in entries:
        with contextlib.suppress(OSError):
            if os.stat(entry.source).st_size == size:
                yield entry


def differences(parts: KeyParts, entry: store.Entry) -> tuple[Difference, ...] | None:
    """How the key of an entry differs from these parts; None if it cannot be read."""
    try:
        record = Record(store.read_owned(f"{entry.path}/{store.MANIFEST}", any_owner=entry.lower))
    except (OSError, ValueError):
        return None
    return tuple(parts.diff(_parts_of(record)))


def _parts_of(record: Record) -> dict[str, str]:
    return dict(part.split("=", 1) for part in record.texts("parts") if "=" in part)


def _differences(order: Order, entry: store.Entry) -> tuple[Difference, ...] | None:
    """How the key of an entry with the same text differs; None if the text is another."""
    try:
        record = Record(store.read_owned(f"{entry.path}/{store.MANIFEST}", any_owner=entry.lower))
        parts = _parts_of(record)
        features = record.texts("features")
    except (OSError, ValueError):
        return None
    if parts.get("text") != order.parts.digests()["text"]:
        return None
    found = {name: (old, new) for name, old, new in order.parts.diff(parts)}
    if "compiler.version" in found:
        found.pop("compiler.digest", None)  # another version has other macros
    lacking = sorted(set(features).difference(order.compiler.features))
    gained = sorted(set(order.compiler.features).difference(features))
    if lacking or gained:
        found.pop("compiler.digest", None)  # the macros that name CPU features
        found["CPU features"] = (" ".join(lacking), " ".join(gained))
    return tuple((_NAMES.get(name, name), old, new) for name, (old, new) in found.items())
