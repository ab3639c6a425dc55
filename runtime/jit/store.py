"""Artifacts on disk: in goes a key, out comes a whole, checked entry or a miss.

An entry is the directory `<root>/<target>/<name>-<24 hex>/` with kernel.cpp, kernel.so, build.log
and manifest.json; of a GPU's target, as cuda-sm_90, with kernel.cu and kernel.cubin instead; of
the target ext-..., which holds extensions, with interface.py and extension.so. It is made in a
private directory beside it and appears by one rename, so it is whole or absent; the manifest holds
size and SHA-256 of each file, so damage is a miss. Code is only ever loaded from directories that
belong to this user and that nobody else may write.
Below it may lie a second cache that is only read: OPKILN_CACHE_LOWER, which may belong to anyone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from typing import TYPE_CHECKING

from opkiln.ops.record import record
from opkiln.runtime.config import config
from opkiln.runtime.errors import CacheError, warn
from opkiln.runtime.jit.descriptors import READ, WRITE, open_file
from opkiln.runtime.jit.record import Record, render
from opkiln.runtime.key import sha256

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opkiln.runtime.key import KeyParts

SCHEMA = "artifact-1"
MANIFEST = "manifest.json"
SOURCE, LIBRARY, LOG = "kernel.cpp", "kernel.so", "build.log"
FILES = (SOURCE, LIBRARY, LOG)
DEVICE = "cuda-"  # how the name of a GPU's target begins
DEVICE_FILES = ("kernel.cu", "kernel.cubin", LOG)
EXTENSION = "ext-"  # how the name of the target of extensions begins
INDEX = ".index-"  # how the name of a list of extensions begins
EXTENSION_FILES = ("interface.py", "extension.so", LOG)
COMPILERS = "compilers"  # the directory, beside those of targets, of what compilers said
_TOUCH = 60.0  # seconds by which the time of last use may be off
_LOOKS = 3
_MARK_DIGITS = 15  # 60 bits: the offset of a lock has 63
_MAX_FILE = 2**30
FIX = "set OPKILN_CACHE_DIR to a directory of your own, on a disk that allows programs"


# ---- the root directory ----

_roots: dict[str, str] = {}  # setting -> directory in use
_lowers: dict[str, str | None] = {}  # setting -> directory, None if it cannot be used
_temporary: str | None = None


@record
class Layer:
    """One cache directory to look in."""

    base: str
    lower: bool = False  # only read, whoever owns it


def default_root() -> str:
    """The user's cache directory, as platformdirs names it."""
    if sys.platform.startswith("linux"):  # platformdirs takes 15 ms to import
        base = os.environ.get("XDG_CACHE_HOME", "").strip() or os.path.expanduser("~/.cache")
        return os.path.join(base, "opkiln")
    import platformdirs

    return platformdirs.user_cache_dir("opkiln", appauthor=False)


def wanted() -> str:
    """The directory that the settings name, usable or not."""
    setting = config.cache_dir
    if setting is None:
        return default_root()
    try:
        return os.path.abspath(setting)
    except FileNotFoundError:  # it is relative, and the working directory has been removed
        return setting


def root() -> str:
    """The cache directory in use: the configured one, else a private one with one warning."""
    place = wanted()
    used = _roots.get(place)
    if used is None:
        try:
            used = usable_root(place)
        except CacheError as error:
            used = temporary_root(str(error).splitlines()[0])
        _roots[place] = used
    return used


def layers() -> list[Layer]:
    """The caches to look in, in order."""
    below = lower()
    if below is None:
        return [Layer(root())]
    place = wanted()
    try:
        used = _roots.get(place) or _roots.setdefault(place, usable_root(place))
    except CacheError:
        return [Layer(below, lower=True)]  # a build will say what is wrong with the first one
    return [Layer(used), Layer(below, lower=True)]


def lower() -> str | None:
    """The read-only cache of OPKILN_CACHE_LOWER, if there is one that can be trusted."""
    setting = config.cache_lower
    if setting is None:
        return None
    if setting not in _lowers:
        path = os.path.realpath(setting)
        problem = lower_problem(path)
        _lowers[setting] = None if problem else path
        if problem:
            warn(f"OPKILN_CACHE_LOWER: {path!r} {problem}, so nothing is read from it")
    return _lowers[setting]


def lower_problem(path: str) -> str:
    """Say why a directory may not serve as a lower cache, '' if it may."""
    try:
        problem = distrust(os.lstat(path), directory=True, any_owner=True)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if problem:
        return f"{problem} (chmod -R go-w)" if "written" in problem else problem
    readable = os.access(path, os.R_OK | os.X_OK)
    return "" if readable else "cannot be read by you (chmod -R a+rX)"


def usable_root(path: str) -> str:
    """Make a cache directory if there is none; raise CacheError if it cannot be used."""
    if not os.path.isabs(path):
        raise CacheError(f"cache directory {path!r} is below no directory that exists", fix=FIX)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        problem = distrust(os.lstat(path), directory=True)
        if not problem and not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            problem = "is not writable (to use what it holds, name it in OPKILN_CACHE_LOWER)"
    except OSError as error:
        problem = f"cannot be made ({error.strerror})"
    if problem:
        raise CacheError(f"cache directory {path!r} {problem}", fix=FIX)
    return path


def distrust(status: os.stat_result, *, directory: bool, any_owner: bool = False) -> str:
    """Say why code from here must not be loaded, '' if it may."""
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link"
    if directory != stat.S_ISDIR(status.st_mode) or not (directory or stat.S_ISREG(status.st_mode)):
        return f"is not a {'directory' if directory else 'regular file'}"
    if not any_owner and hasattr(os, "geteuid") and status.st_uid != os.geteuid():
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
    place = wanted()
    if _temporary is not None and _roots.get(place) == _temporary:
        return False
    _roots[place] = temporary_root(reason)
    return True


# ---- files ----


def read_owned(path: str, *, any_owner: bool = False) -> bytes:
    """Read a regular file that belongs to us; links and foreign files raise ValueError."""
    with open_file(path, READ | os.O_NOFOLLOW | os.O_NONBLOCK) as file:
        descriptor = file.fileno()
        status = os.fstat(descriptor)
        problem = distrust(status, directory=False, any_owner=any_owner)
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
    problem = distrust(os.lstat(path), directory=True)
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


@record
class Entry:
    """Where an artifact lies (or would lie)."""

    folder: str  # <root>/<target>
    name: str  # <name>-<24 hex>
    lower: bool = False  # in the cache that is only read

    @property
    def path(self) -> str:
        """The entry's directory."""
        return f"{self.folder}/{self.name}"

    @property
    def device(self) -> bool:
        """Whether it holds the code of a GPU, which is read, not linked into the process."""
        return os.path.basename(self.folder).startswith(DEVICE)

    @property
    def extension(self) -> bool:
        """Whether it holds a library of a user's sources."""
        return os.path.basename(self.folder).startswith(EXTENSION)

    @property
    def kind(self) -> str:
        """What it is called in messages."""
        return "extension" if self.extension else "kernel"

    @property
    def files(self) -> tuple[str, str, str]:
        """The names of source, library and log; of an extension, its interface is the source."""
        if self.extension:
            return EXTENSION_FILES
        return DEVICE_FILES if self.device else FILES

    @property
    def source(self) -> str:
        """The text in it."""
        return f"{self.path}/{self.files[0]}"

    @property
    def library(self) -> str:
        """The shared library in it, or a GPU's code."""
        return f"{self.path}/{self.files[1]}"

    @property
    def claim(self) -> int:
        """The byte whose lock says that someone uses it."""
        return int(self.name[-24:][:_MARK_DIGITS], 16)


class Damaged(Exception):
    """An entry exists but must not be used; the text says why."""


def clean_name(name: str) -> str:
    """Letters, digits and underscores only, at most 40: names from users reach paths only so."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name[:40])
    return kept or "kernel"


def entry_for(layer: Layer, target: str, name: str, parts: KeyParts) -> Entry:
    """The place of an artifact."""
    folder = f"{layer.base}/{clean_target(target)}"
    return Entry(folder, f"{clean_name(name)}-{parts.short}", layer.lower)


def is_entry_name(name: str) -> bool:
    """Whether `entry_for` may have made this name."""
    stem, _, digits = name.rpartition("-")
    return bool(stem) and clean_name(stem) == stem and is_short_key(digits)


def is_short_key(text: str) -> bool:
    """Whether `KeyParts.short` may have made this."""
    return len(text) == 24 and _is_hex(text)


def is_mark(text: str) -> bool:
    """Whether `private_folder` may have made this last part of a name."""
    return len(text) == _MARK_DIGITS and _is_hex(text)


def _is_hex(text: str) -> bool:
    return all(c in "0123456789abcdef" for c in text)


def claims_file(base: str) -> str:
    """The file of a cache whose locked bytes say what is in use."""
    return f"{base}/.in-use"


def clean_target(target: str) -> str:
    """A target triple as a directory name."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in target) or "unknown"


def manifest(
    parts: KeyParts,
    features: Sequence[str],
    symbols: Sequence[str],
    files: dict[str, bytes],
    more: Mapping[str, str | int | list[str]] | None = None,
) -> bytes:
    """The manifest of the given files, and what else is to be known of them."""
    fields: dict[str, str | int | list[str]] = {
        "schema": SCHEMA,
        "key": parts.hexdigest,
        "features": list(features),
        "symbols": list(symbols),
        "made": int(time.time()),
        **(more or {}),
    }
    for name, data in files.items():
        fields[f"{name} size"] = len(data)
        fields[f"{name} sha256"] = sha256(data)
    fields["parts"] = [f"{name}={value}" for name, value in parts.digests().items()]
    return render(fields)


def check(
    entry: Entry, key: str, features: Sequence[str], text: bytes | None = None, field: str = "key"
) -> Record | None:
    """The manifest if the entry is there and whole; raise Damaged if it is there but not usable.

    `key` is what the manifest holds in `field`; `text` saves the digest of the first file.
    """
    for look in range(_LOOKS):
        try:
            status = os.lstat(entry.path)
        except OSError:
            return None
        try:
            record = _check_files(entry, status, (field, key), features, text)
        except (OSError, ValueError, Damaged) as problem:
            if look + 1 < _LOOKS and _in_flux(entry, status, problem):
                continue
            if isinstance(problem, OSError):
                raise Damaged(f"it cannot be read ({problem.strerror})") from None
            raise Damaged(str(problem)) from None
        # When an entry was last used decides what pruning takes.
        if not entry.lower and abs(time.time() - status.st_mtime) > _TOUCH:
            with contextlib.suppress(OSError):
                os.utime(entry.path)
        return record
    return None


def _check_files(
    entry: Entry,
    status: os.stat_result,
    key: tuple[str, str],
    features: Sequence[str],
    text: bytes | None,
) -> Record:
    folders = [status, os.lstat(entry.folder)] if entry.lower else [status]
    for folder in folders:
        problem = distrust(folder, directory=True, any_owner=entry.lower)
        if problem:
            raise Damaged(f"it {problem}")
    record = Record(read_owned(f"{entry.path}/{MANIFEST}", any_owner=entry.lower))
    if record.text("schema") != SCHEMA or record.text(key[0]) != key[1]:
        raise Damaged("its manifest belongs to another key")
    lacking = set(record.texts("features")).difference(features)
    if lacking:
        raise Damaged(f"it needs CPU features that are missing here: {sorted(lacking)}")
    check_files(entry, record, text)
    return record


def check_files(entry: Entry, record: Record, text: bytes | None = None) -> None:
    """Compare the files with the manifest; raise Damaged, OSError or ValueError."""
    for name in entry.files:
        data = read_owned(f"{entry.path}/{name}", any_owner=entry.lower)
        if len(data) != record.number(f"{name} size"):
            raise Damaged(f"{name} has {len(data)} bytes, not as recorded")
        known = text if name == entry.files[0] else None
        same = data == known if known else sha256(data) == record.text(f"{name} sha256")
        if not same:
            raise Damaged(f"{name} has changed since it was built")


def _in_flux(entry: Entry, status: os.stat_result, problem: Exception) -> bool:
    """Whether a problem may be gone at the next look: the entry was replaced, or NFS is late."""
    if isinstance(problem, OSError) and problem.errno in (errno.ESTALE, errno.ENOENT):
        refresh(entry.path)
        return True
    try:
        now = os.lstat(entry.path)
    except OSError:
        return True
    return (now.st_dev, now.st_ino) != (status.st_dev, status.st_ino)


def refresh(folder: str) -> None:
    """Make an NFS client ask its server again what is in a directory; it does so on opening it."""
    with contextlib.suppress(OSError), os.scandir(folder):
        pass


def private_folder(entry: Entry, kind: str = "build") -> str:
    """The path of a directory no one else uses, on the same file system as the entry.

    Its name ends in the machine, the process and a mark, which is also the byte to claim.
    """
    mark = os.urandom(8).hex()[:_MARK_DIGITS]
    return f"{entry.folder}/.{kind}-{entry.name}-{host()}-{os.getpid()}-{mark}"


def host() -> str:
    """The kernel that this process runs under: one per boot of a machine, '0' if unknown."""
    with contextlib.suppress(OSError), open_file("/proc/sys/kernel/random/boot_id", READ) as file:
        return os.read(file.fileno(), 8).decode("ascii", "replace")
    return "0"


def publish(private: str, entry: Entry) -> bool:
    """Move the private directory into place; False if another process was first."""
    # No more than these two: on a busy disk each takes as long as a compiler step. What a power cut
    # may still spoil (source, log, the name itself) is noticed by the manifest, or is a plain miss.
    sync(f"{private}/{entry.files[1]}", f"{private}/{MANIFEST}")
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
