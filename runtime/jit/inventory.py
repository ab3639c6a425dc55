"""What the caches hold, for people: in go the settings, out come records of entries and damage.

Nothing here makes a cache directory, falls back to another one, or loads code; a cache may be
absent, unreadable or on a read-only disk. Only `prune`, `clear` and `repair` remove anything, and
never from the lower cache.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

from opkiln.ops.record import record
from opkiln.runtime.config import config
from opkiln.runtime.errors import CacheError
from opkiln.runtime.jit import evict, store
from opkiln.runtime.jit.claims import Claims
from opkiln.runtime.jit.record import Record, render

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from opkiln.runtime.jit.evict import Kept
    from opkiln.runtime.jit.store import Entry, Layer


ABSENT = "does not exist"


@record
class Kernel:
    """One entry of a cache."""

    path: str
    lower: bool
    target: str
    size: int  # bytes of disk
    used: float  # seconds since 1970
    in_use: bool | None  # by a living process; None where that cannot be known
    kind: str  # "kernel" or "extension"
    functions: int
    operations: tuple[str, ...]  # of an extension, its functions
    dtypes: tuple[str, ...]
    made: int  # seconds since 1970
    compiler: str
    flags: str
    features: tuple[str, ...]
    key: str
    problem: str  # why nothing is known of it, or ""


@record
class Directory:
    """One cache directory."""

    path: str
    lower: bool
    problem: str  # why it is not used as it is, or ""
    entries: int
    in_use: int
    size: int  # bytes of entries
    targets: tuple[str, ...]
    compilers: tuple[str, ...]
    leftovers: int
    leftover_size: int


@record
class Damage:
    """One thing in a cache that does not serve."""

    path: str
    lower: bool
    reason: str


@record
class Removal:
    """What was removed, or would be."""

    removed: tuple[str, ...]
    size: int
    in_use: tuple[str, ...]  # stay, because a living process has them loaded
    leftovers: tuple[str, ...]
    left: int  # bytes of entries that stay


# ---- directories ----


def _upper() -> Layer:
    return store.Layer(store.wanted())


def layers() -> list[Layer]:
    """The directories of the settings, usable or not."""
    below = config.cache_lower
    lower = [] if below is None else [store.Layer(os.path.realpath(below), lower=True)]
    return [_upper(), *lower]


def problem_of(layer: Layer) -> str:
    """Say why a cache directory cannot be read or used, '' if it can."""
    if not os.path.lexists(layer.base):
        return ABSENT
    if layer.lower:
        return store.lower_problem(layer.base)
    return _foreign(layer) or ("" if os.access(layer.base, os.W_OK) else "is not writable")


def _foreign(layer: Layer) -> str:
    """Say why nothing here may be believed, '' if it may."""
    try:
        problem = store.distrust(os.lstat(layer.base), directory=True, any_owner=layer.lower)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    readable = os.access(layer.base, os.R_OK | os.X_OK)
    return problem or ("" if readable else "cannot be read")


def _readable() -> Iterator[Layer]:
    """The layers that can be listed; raises CacheError for one that is there but cannot."""
    for layer in layers():
        if not os.path.lexists(layer.base):
            continue
        problem = _foreign(layer)
        if problem:
            raise CacheError(f"cache directory {layer.base!r} {problem}", fix=store.FIX)
        yield layer


def summary() -> list[Directory]:
    """Each directory in a few numbers."""
    return [_directory(layer) for layer in layers()]


def _directory(layer: Layer) -> Directory:
    found: list[Kept] = []
    leftovers: list[str] = []
    compilers: list[str] = []
    if os.path.lexists(layer.base) and not _foreign(layer):
        found = list(evict.kept(layer.base))
        if not layer.lower:
            leftovers = [*evict.sweep(layer.base, dry_run=True), *evict.failed_builds(layer.base)]
        compilers = sorted({said.text("version") for _, said in _compilers(layer) if said})
    return Directory(
        path=layer.base,
        lower=layer.lower,
        problem=problem_of(layer),
        entries=len(found),
        in_use=sum(1 for used in _in_use(layer, found) if used),
        size=sum(one.size for one in found),
        targets=tuple(sorted({os.path.basename(one.entry.folder) for one in found})),
        compilers=tuple(compilers),
        leftovers=len(set(leftovers)),
        leftover_size=sum(map(evict.size_of, set(leftovers))),
    )


def _compilers(layer: Layer) -> Iterator[tuple[str, Record | None]]:
    """What compilers said; None for a damaged answer."""
    folder = f"{layer.base}/{store.COMPILERS}"
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for name in sorted(e.name for e in entries if e.name.endswith(".json")):
            path = f"{folder}/{name}"
            try:
                yield path, Record(store.read_owned(path, any_owner=layer.lower))
            except (OSError, ValueError):
                yield path, None


def _in_use(layer: Layer, found: list[Kept]) -> Iterator[bool | None]:
    path = store.claims_file(layer.base)
    if layer.lower or not os.path.exists(path):
        yield from (None if layer.lower else False for _ in found)
        return
    with Claims(path, create=False) as claims:
        for one in found:
            free = claims.seize(one.entry.claim)
            claims.drop(one.entry.claim)
            yield None if free is None else not free


# ---- entries ----


def entries() -> list[Kernel]:
    """All entries of all layers, those used last first."""
    kernels: list[Kernel] = []
    for layer in _readable():
        found = sorted(evict.kept(layer.base), key=lambda one: one.used, reverse=True)
        for one, used in zip(found, list(_in_use(layer, found)), strict=True):
            kernels.append(_kernel(one, layer, used))
    return kernels


def _kernel(one: Kept, layer: Layer, in_use: bool | None) -> Kernel:
    entry, problem = one.entry, ""
    said, text = Record(render({})), ""
    try:
        said = _manifest(entry, layer)
        data = store.read_owned(entry.source, any_owner=layer.lower)
        text = data.decode("utf-8", "replace")
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except ValueError as error:
        problem = str(error)
    parts = dict(part.split("=", 1) for part in said.texts("parts") if "=" in part)
    named = ("flags.optimize", "flags.extra", "cpp.flags", "compiler.flags", "compiler.arch")
    operations, dtypes = describe(text)
    if entry.extension:
        operations = tuple(said.texts("symbols"))
    return Kernel(
        path=entry.path,
        lower=layer.lower,
        target=os.path.basename(entry.folder),
        size=one.size,
        used=one.used,
        in_use=in_use,
        kind=entry.kind,
        functions=len(said.texts("symbols")),
        operations=operations,
        dtypes=dtypes,
        made=max(said.number("made"), 0),
        compiler=parts.get("compiler.version", ""),
        flags=" ".join(filter(None, (parts.get(name, "") for name in named))),
        features=tuple(said.texts("features")),
        key=said.text("key"),
        problem=problem,
    )


def _manifest(entry: Entry, layer: Layer) -> Record:
    path = f"{entry.path}/{store.MANIFEST}"
    return Record(store.read_owned(path, any_owner=layer.lower))


# A statement as the emitter writes it above a kernel: "//     v2 = multiply v0 v1".
_STATEMENT = re.compile(
    r"^//     v\d+ = (?:(?:load|scalar) \d+ : (?P<dtype>\w+)|(?:fold )?(?P<name>\w+)(?: v\d+)+)$",
    re.MULTILINE,
)
_CONVERSION = re.compile(r"(?:u?int|float|complex)\d+|bool")


def describe(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The operations and dtypes of a kernel's text, each once, in the order in which they come."""
    operations: dict[str, None] = {}
    dtypes: dict[str, None] = {}
    for found in _STATEMENT.finditer(text):
        word = found["dtype"] or found["name"]
        conversion = found["dtype"] or _CONVERSION.fullmatch(word)
        (dtypes if conversion else operations)[word] = None
    return tuple(operations), tuple(dtypes)


# ---- damage ----


def verify() -> list[Damage]:
    """Read every file of every layer and compare it with its checksum."""
    return [damage for layer in _readable() for damage in _damages(layer)]


def _damages(layer: Layer) -> Iterator[Damage]:
    for folder in evict.targets(layer.base):
        problem = store.distrust(os.lstat(folder), directory=True, any_owner=layer.lower)
        if problem:
            yield Damage(folder, layer.lower, problem)
        for name in _names(folder):
            reason = _check(store.Entry(folder, name, layer.lower), layer)
            if reason:
                yield Damage(f"{folder}/{name}", layer.lower, reason)
    for path, said in _compilers(layer):
        if said is None:
            yield Damage(path, layer.lower, "does not match its checksum")


def _names(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as found:
            return sorted(one.name for one in found if store.is_entry_name(one.name))
    except OSError as error:
        raise CacheError(f"cannot read {folder!r}: {error.strerror}", fix=store.FIX) from None


def _check(entry: Entry, layer: Layer) -> str:
    try:
        status = os.lstat(entry.path)
        problem = store.distrust(status, directory=True, any_owner=layer.lower)
        if problem:
            return problem
        said = _manifest(entry, layer)
        key = said.text("key")
        if said.text("schema") != store.SCHEMA or not entry.name.endswith(f"-{key[:24]}"):
            return "its manifest belongs to another key"
        store.check_files(entry, said)
    except FileNotFoundError as error:
        if not os.path.lexists(entry.path):
            return ""  # removed meanwhile
        return f"{os.path.basename(str(error.filename))} is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except (ValueError, store.Damaged) as error:
        return str(error)
    return ""


def repair(damages: list[Damage]) -> list[str]:
    """Remove what `verify` found in the first cache; return the paths, which are built again."""
    layer = _upper()
    now = {damage.path for damage in _damages(layer)}  # others may have built anew since
    removed: list[str] = []
    for damage in damages:
        if not damage.lower and damage.path in now and _remove(damage.path):
            removed.append(damage.path)
    return removed


def _remove(path: str) -> bool:
    """Remove an entry or what a compiler said; False for anything else."""
    folder, name = os.path.split(path)
    with _typed(path):
        if store.is_entry_name(name):
            store.discard(store.Entry(folder, name))
        elif name.endswith(".json"):
            os.unlink(path)
        else:
            return False
    return True


# ---- removing ----


def prune(
    *, max_bytes: int | None = None, older_than: float | None = None, dry_run: bool = False
) -> Removal:
    """Remove entries of the first cache until it fits, and what killed processes left."""
    base = _writable()
    if base is None:
        return Removal((), 0, (), (), 0)
    with _typed(base):
        done = evict.prune(base, max_bytes=max_bytes, older_than=older_than, dry_run=dry_run)
        leftovers = evict.sweep(base, dry_run=dry_run)
    return Removal(
        removed=tuple(one.entry.path for one in done.removed),
        size=sum(one.size for one in done.removed),
        in_use=tuple(one.entry.path for one in done.in_use),
        leftovers=tuple(leftovers),
        left=done.left,
    )


def clear() -> Removal:
    """Empty the first cache, but for what living processes use."""
    base = _writable()
    if base is None:
        return Removal((), 0, (), (), 0)
    with _typed(base):
        for damage in _damages(_upper()):
            _remove(damage.path)
        for path, _ in _compilers(_upper()):
            _remove(path)
        for path in evict.failed_builds(base):
            store.remove(path)
        done = prune(max_bytes=0)
        for folder in (*evict.targets(base), f"{base}/{store.COMPILERS}"):
            with contextlib.suppress(OSError):
                os.rmdir(folder)  # if nothing is left in it
    return done


def _writable() -> str | None:
    """The first cache, None if there is none; raises CacheError if nothing may be removed there."""
    layer = _upper()
    problem = problem_of(layer)
    if problem == ABSENT:
        return None
    if problem:
        raise CacheError(f"cache directory {layer.base!r} {problem}", fix=store.FIX)
    return layer.base


@contextlib.contextmanager
def _typed(path: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, CacheError):
            raise
        raise CacheError(f"cannot remove from {path!r}: {error.strerror}", fix=store.FIX) from None
