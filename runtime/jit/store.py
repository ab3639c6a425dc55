"""Artifacts on disk: in goes a key, out comes a whole, checked entry or a miss.

An entry is the directory `<root>/<target>/<name>-<24 hex>/` with kernel.cpp, kernel.so, build.log
and manifest.json. It is made in a private directory beside it and appears by one rename, so it is
whole or absent; the manifest holds size and SHA-256 of each file, so damage is a miss. Code is only
ever loaded from directories that belong to this user and that nobody else may write.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from opkiln.runtime.config import config
from opkiln.runtime.errors import CacheError, NotYet, warn
from opkiln.runtime.jit.descriptors import READ, WRITE, open_file
from opkiln.runtime.jit.record import Record, render
from opkiln.runtime.key import sha256

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opkiln.runtime.key import KeyParts

SCHEMA = "artifact-1"
MANIFEST = "manifest.json"
SOURCE, LIBRARY, LOG = "kernel.cpp", "kernel.so", "build.log"
FILES = (SOURCE, LIBRARY, LOG)
_DAY = 86400.0
_TOUCH = 3600.0
_MAX_FILE = 2**30
FIX = "set OPKILN_CACHE_DIR to a directory of your own, on a disk that allows programs"


# ---- the root directory ----

_roots: dict[str, str] = {}  # setting -> directory in use
_temporary: str | None = None


def default_root() -> str:
    """The user's cache directory, as platformdirs names it."""
    if sys.platform.startswith("linux"):  # platformdirs takes 15 ms to import
        base = os.environ.get("XDG_CACHE_HOME", "").strip() or os.path.expanduser("~/.cache")
        return os.path.join(base, "opkiln")
    import platformdirs

    return platformdirs.user_cache_dir("opkiln", appauthor=False)


def _wanted() -> str:
    setting = config.cache_dir
    return os.path.abspath(setting) if setting is not None else default_root()


def root() -> str:
    """The cache directory in use: the configured one, else a private one with one warning."""
    if config.cache_lower is not None:
        raise NotYet(
            "OPKILN_CACHE_LOWER: a second, read-only cache is not supported yet",
            fix="unset it, or copy its entries into OPKILN_CACHE_DIR",
        )
    wanted = _wanted()
    used = _roots.get(wanted)
    if used is None:
        try:
            used = _checked_root(wanted)
        except CacheError as error:
            used = temporary_root(str(error).splitlines()[0])
        _roots[wanted] = used
    return used


def _checked_root(path: str) -> str:
    if not os.path.isabs(path):
        raise CacheError(f"cache directory {path!r}: there is no home directory", fix=FIX)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        problem = _distrust(os.lstat(path), directory=True)
        if not problem and not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            problem = "is not writable"
    except OSError as error:
        problem = f"cannot be made ({error.strerror})"
    if problem:
        raise CacheError(f"cache directory {path!r} {problem}", fix=FIX)
    return path


def _distrust(status: os.stat_result, *, directory: bool) -> str:
    """Say why code from here must not be loaded, '' if it may."""
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link"
    if directory != stat.S_ISDIR(status.st_mode) or not (directory or stat.S_ISREG(status.st_mode)):
        return f"is not a {'directory' if directory else 'regular file'}"
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, not to you ({os.geteuid()})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written by other users"
    return ""


def temporary_root(reason: str) -> str:
    """A private directory that lives as long as this process; says why it is needed."""
    global _temporary  # noqa: PLW0603
    if _temporary is None or not os.path.isdir(_temporary):
        import atexit
        import tempfile

        try:
            _temporary = tempfile.mkdtemp(prefix="opkiln-")
        except OSError as error:
            raise CacheError(f"{reason}, and no temporary directory: {error}", fix=FIX) from error
        atexit.register(_remove_temporary, _temporary, os.getpid())
    warn(f"{reason}; kernels are kept in {_temporary} until this process ends ({FIX})")
    return _temporary


def _remove_temporary(path: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked child must not take its parent's files
        remove(path)


def forget_root() -> None:
    """Look at the configured directory again at the next use."""
    _roots.clear()


def use_temporary_root(reason: str) -> bool:
    """Switch this process to the temporary directory; False if it is in use already."""
    wanted = _wanted()
    if _temporary is not None and _roots.get(wanted) == _temporary:
        return False
    _roots[wanted] = temporary_root(reason)
    return True


# ---- files ----


def read_owned(path: str) -> bytes:
    """Read a regular file that belongs to us; links and foreign files raise ValueError."""
    with open_file(path, READ | os.O_NOFOLLOW | os.O_NONBLOCK) as file:
        descriptor = file.fileno()
        status = os.fstat(descriptor)
        problem = _distrust(status, directory=False)
        if problem or status.st_size > _MAX_FILE:
            raise ValueError(f"{os.path.basename(path)} {problem or 'is too large'}")
        size = status.st_size
        data = os.read(descriptor, size + 1)
        while len(data) < size:
            more = os.read(descriptor, size - len(data))
            if not more:
                break
            data += more
        return data


def write_file(path: str, data: bytes) -> None:
    """Write a new file completely."""
    with open_file(path, WRITE | os.O_TRUNC | os.O_NOFOLLOW) as file:
        view = memoryview(data)
        while view:
            view = view[os.write(file.fileno(), view) :]


def write_whole(path: str, data: bytes) -> None:
    """Put a single file in place by one rename; failing to is not an error, it only costs time."""
    temporary = f"{path}.{os.getpid()}-{os.urandom(4).hex()}"
    try:
        write_file(temporary, data)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def find_program(name: str, path: str | None = None) -> str | None:
    """Return the path of an executable file called `name`, searching PATH if it has no slash."""
    if os.sep in name:
        return name if _executable(name) else None
    folders = os.environ.get("PATH", os.defpath) if path is None else path
    for folder in folders.split(os.pathsep):
        candidate = os.path.join(folder, name) if folder else name
        if _executable(candidate):
            return candidate
    return None


def _executable(path: str) -> bool:
    return os.access(path, os.X_OK) and not os.path.isdir(path)


def make_folder(path: str) -> str:
    """Make a directory below the root that is ours alone."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    problem = _distrust(os.lstat(path), directory=True)
    if problem:
        raise CacheError(f"cache directory {path!r} {problem}", fix=f"remove it, or {FIX}")
    return path


def sync(*paths: str) -> None:
    """Make files durable, where the system can."""
    for path in paths:
        with contextlib.suppress(OSError), open_file(path, READ) as file:
            os.fsync(file)


def remove(path: str) -> None:
    """Remove a file or a directory with all it holds, as far as possible; follows no link."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            with contextlib.suppress(OSError), os.scandir(path) as entries:
                for entry in entries:
                    remove(entry.path)
            os.rmdir(path)
        else:
            os.unlink(path)


# ---- entries ----


class Entry(NamedTuple):
    """Where an artifact lies (or would lie)."""

    folder: str  # <root>/<target>
    name: str  # <name>-<24 hex>

    @property
    def path(self) -> str:
        """The entry's directory."""
        return f"{self.folder}/{self.name}"

    @property
    def library(self) -> str:
        """The shared library in it."""
        return f"{self.folder}/{self.name}/{LIBRARY}"


class Damaged(Exception):
    """An entry exists but must not be used; the text says why."""


def clean_name(name: str) -> str:
    """Letters, digits and underscores only, at most 40: names from users reach paths only so."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name[:40])
    return kept or "kernel"


def entry_for(base: str, target: str, name: str, parts: KeyParts) -> Entry:
    """The place of an artifact."""
    return Entry(f"{base}/{clean_target(target)}", f"{clean_name(name)}-{parts.short}")


def clean_target(target: str) -> str:
    """A target triple as a directory name."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in target) or "unknown"


def manifest(
    parts: KeyParts, features: Sequence[str], symbols: Sequence[str], files: dict[str, bytes]
) -> bytes:
    """The manifest of the given files."""
    fields: dict[str, str | int | list[str]] = {
        "schema": SCHEMA,
        "key": parts.hexdigest,
        "features": list(features),
        "symbols": list(symbols),
        "made": int(time.time()),
    }
    for name, data in files.items():
        fields[f"{name} size"] = len(data)
        fields[f"{name} sha256"] = sha256(data)
    fields["parts"] = [f"{name}={value}" for name, value in parts.digests().items()]
    return render(fields)


def check(entry: Entry, parts: KeyParts, features: Sequence[str], text: bytes) -> bool:
    """Tell whether the entry is there and whole; raise Damaged if it is there but not usable."""
    try:
        status = os.lstat(entry.path)
    except OSError:
        return False
    try:
        problem = _distrust(status, directory=True)
        if problem:
            raise Damaged(f"it {problem}")
        record = Record(read_owned(f"{entry.path}/{MANIFEST}"))
        if record.text("schema") != SCHEMA or record.text("key") != parts.hexdigest:
            raise Damaged("its manifest belongs to another key")
        lacking = set(record.texts("features")).difference(features)
        if lacking:
            raise Damaged(f"it needs CPU features that are missing here: {sorted(lacking)}")
        for name in FILES:
            data = read_owned(f"{entry.path}/{name}")
            if len(data) != record.number(f"{name} size"):
                raise Damaged(f"{name} has {len(data)} bytes, not as recorded")
            if data != text if name == SOURCE else sha256(data) != record.text(f"{name} sha256"):
                raise Damaged(f"{name} has changed since it was built")
    except OSError as error:
        raise Damaged(f"it cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise Damaged(str(error)) from None
    if time.time() - status.st_mtime > _TOUCH:
        with contextlib.suppress(OSError):
            os.utime(entry.path)  # when an entry was last used decides what pruning takes
    return True


def nearest(entry: Entry, parts: KeyParts) -> list[tuple[str, str, str]]:
    """What differs from the newest entry of the same name: (part, there, here); [] if none."""
    prefix = entry.name[:-24]
    best: tuple[int, str] | None = None
    with contextlib.suppress(OSError), os.scandir(entry.folder) as entries:
        for other in entries:
            if other.name.startswith(prefix) and len(other.name) == len(entry.name):
                stamp = other.stat().st_mtime_ns
                if other.name != entry.name and (best is None or stamp > best[0]):
                    best = (stamp, other.path)
    if best is None:
        return []
    try:
        record = Record(read_owned(f"{best[1]}/{MANIFEST}"))
    except (OSError, ValueError):
        return []
    there = dict(part.split("=", 1) for part in record.texts("parts") if "=" in part)
    return parts.diff(there)


def private_folder(entry: Entry, kind: str = "build") -> str:
    """The path of a directory no one else uses, on the same file system as the entry."""
    return f"{entry.folder}/.{kind}-{entry.name}-{os.getpid()}-{os.urandom(6).hex()}"


def publish(private: str, entry: Entry) -> bool:
    """Move the private directory into place; False if another process was first."""
    # No more than these two: on a busy disk each takes as long as a compiler step. What a power cut
    # may still spoil (source, log, the name itself) is noticed by the manifest, or is a plain miss.
    sync(f"{private}/{LIBRARY}", f"{private}/{MANIFEST}")
    try:
        os.rename(private, entry.path)
    except OSError:
        if not os.path.lexists(entry.path):
            raise
        return False
    return True


def discard(entry: Entry) -> None:
    """Move a damaged entry out of the way, whatever it is, then remove it."""
    trash = private_folder(entry, "trash")
    with contextlib.suppress(FileNotFoundError):
        os.rename(entry.path, trash)
    remove(trash)


_PRUNE_EVERY = 64
_builds: dict[str, int] = {}  # builds of this process by directory


def tidy(folder: str) -> None:
    """Called by each build: now and then, remove left-overs and what exceeds the size limit."""
    count = _builds.get(folder, 0)
    _builds[folder] = count + 1
    if count % _PRUNE_EVERY == 0:
        sweep(folder)
        prune(folder, config.cache_max_bytes)


def prune(folder: str, limit: int) -> None:
    """Remove the entries used longest ago until the rest fits; never one used within the hour.

    Programs that have such an entry loaded keep it: the system frees a file after its last user.
    """
    if limit == 0:
        return
    found: list[tuple[float, int, str]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                used = entry.stat(follow_symlinks=False).st_mtime
                found.append((used, _size(entry.path), entry.name))
    total = sum(size for _, size, _ in found)
    for used, size, name in sorted(found):
        if total <= limit or time.time() - used < _TOUCH:
            break
        discard(Entry(folder, name))
        total -= size


def _size(folder: str) -> int:
    total = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            total += entry.stat(follow_symlinks=False).st_size
    return total


def sweep(folder: str) -> None:
    """Remove what killed builds left: only private names, only after a day."""
    limit = time.time() - _DAY
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            private = entry.name.startswith((".build-", ".trash-", ".failed-", ".lock-"))
            if private and entry.stat(follow_symlinks=False).st_mtime < limit:
                remove(entry.path)


def keep_newest(folder: str, prefix: str, count: int) -> None:
    """Remove the oldest of the directories of this prefix beyond `count`."""
    found: list[tuple[float, str]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(prefix):
                found.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
    for _, path in sorted(found)[: max(len(found) - count, 0)]:
        remove(path)
