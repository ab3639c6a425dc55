"""What leaves a cache: in goes its directory, out go left-overs and the entries over the limit.

Only builds and the command line come here; a warm start does not. Order is by last use, and an
entry that a living process has loaded is left for a later time.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import TYPE_CHECKING, NamedTuple

from opkiln.runtime.config import config
from opkiln.runtime.jit import store
from opkiln.runtime.jit.claims import Claims
from opkiln.runtime.jit.descriptors import WRITE, open_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opkiln.runtime.jit.store import Entry

_DAY = 86400.0
_UNKNOWN_USE = 3600.0  # where no locks tell what is in use, what was used within the hour counts
_LEDGER = ".sizes"
_BUILD = ".build-"
_LEDGER_BYTES = 4096
_SLACK = 16  # a sixteenth of the limit is made free, so that a full cache is not searched each time
_SWEEP_EVERY = 64
_builds: dict[str, int] = {}  # builds of this process by cache directory


class Kept(NamedTuple):
    """One entry on disk."""

    used: float  # seconds since 1970
    size: int  # bytes of disk
    entry: Entry


class Pruned(NamedTuple):
    """What `prune` did, or would do."""

    removed: tuple[Kept, ...]
    in_use: tuple[Kept, ...]  # were to go, but a living process has them loaded
    left: int  # bytes


# ---- after builds ----


def before_build(entry: Entry) -> None:
    """Now and then, remove left-overs."""
    base = os.path.dirname(entry.folder)
    count = _builds.get(base, 0)
    _builds[base] = count + 1
    if count % _SWEEP_EVERY == 0:
        sweep(base)


def after_build(entry: Entry) -> None:
    """Keep the cache within its limit, by a ledger of what all processes added since a search.

    The file holds one number a line: the total when someone last looked at all entries, then the
    size of each entry since. So the limit holds whoever builds, and a build costs one short write.
    """
    limit = config.cache_max_bytes
    if limit == 0:
        return
    base = os.path.dirname(entry.folder)
    ledger = f"{base}/{_LEDGER}"
    with contextlib.suppress(OSError):
        known = _read_ledger(ledger)
        if known is None or known + size_of(entry.path) > limit:
            left = prune(base, max_bytes=limit, target=limit - limit // _SLACK).left
            # More than that can only be in use: search again when a little more has come.
            store.write_whole(ledger, b"%d\n" % min(left, limit - limit // _SLACK))
        else:
            with open_file(ledger, WRITE | os.O_APPEND | os.O_NOFOLLOW) as file:
                os.write(file.fileno(), b"%d\n" % size_of(entry.path))


def _read_ledger(path: str) -> int | None:
    try:
        data = store.read_owned(path)
        return sum(map(int, data.split())) if 0 < len(data) < _LEDGER_BYTES else None
    except (OSError, ValueError):
        return None


# ---- size ----


def kept(base: str) -> Iterator[Kept]:
    """All entries below a cache directory, in no order."""
    for folder in targets(base):
        with contextlib.suppress(OSError), os.scandir(folder) as found:
            for one in found:
                with contextlib.suppress(OSError):
                    if store.is_entry_name(one.name) and one.is_dir(follow_symlinks=False):
                        used = one.stat(follow_symlinks=False).st_mtime
                        yield Kept(used, size_of(one.path), store.Entry(folder, one.name))


def targets(base: str) -> Iterator[str]:
    """The directories that hold entries, one per target machine."""
    with contextlib.suppress(OSError), os.scandir(base) as found:
        for one in found:
            public = not one.name.startswith(".") and one.name != store.COMPILERS
            if public and one.is_dir(follow_symlinks=False):
                yield one.path


def size_of(path: str) -> int:
    """The disk that a file or directory takes with all it holds, as far as it can be seen."""
    total = 0
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        # Blocks are what a quota counts; some file systems report them late.
        total = max(status.st_size, 512 * getattr(status, "st_blocks", 0))
        if stat.S_ISDIR(status.st_mode):
            for name in os.listdir(path):
                total += size_of(f"{path}/{name}")
    return total


def prune(
    base: str,
    *,
    max_bytes: int | None = None,
    older_than: float | None = None,
    target: int | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Remove entries, those used longest ago first, until none is too old and the rest fits.

    `older_than` is in seconds. Above `max_bytes`, entries go until `target` (default: the same) is
    reached. What a living process has loaded stays and counts as used now.
    """
    now = time.time()
    found = sorted(kept(base), key=lambda one: min(one.used, now))
    left = sum(one.size for one in found)
    fits = (
        left if max_bytes is None or left <= max_bytes else max_bytes if target is None else target
    )
    removed: list[Kept] = []
    in_use: list[Kept] = []
    with Claims(store.claims_file(base), create=not dry_run) as claims:
        for one in found:
            old = older_than is not None and now - one.used > older_than
            if left <= fits and not old:
                break
            if not _evict(one, claims, now, dry_run=dry_run):
                in_use.append(one)
                continue
            removed.append(one)
            left -= one.size
    return Pruned(tuple(removed), tuple(in_use), left)


def _evict(one: Kept, claims: Claims, now: float, *, dry_run: bool) -> bool:
    at = one.entry.claim
    free = claims.seize(at)
    try:
        if free is None:
            free = abs(now - one.used) > _UNKNOWN_USE
        if free and not dry_run:
            store.discard(one.entry)
        elif not dry_run:
            with contextlib.suppress(OSError):
                os.utime(one.entry.path)
        return free
    finally:
        claims.drop(at)


# ---- left-overs ----


def sweep(base: str, *, dry_run: bool = False) -> list[str]:
    """Remove what killed processes left; return the paths. Only private names are touched.

    A directory of a build goes once its builder is dead, if that can be known: it ran under this
    very kernel and its claim is gone. All else goes after a day.
    """
    gone: list[str] = []
    limit = time.time() - _DAY
    with Claims(store.claims_file(base), create=not dry_run) as claims:
        for folder in (*targets(base), f"{base}/{store.COMPILERS}"):
            for path, used in _private(folder):
                if used < limit or _abandoned(path, claims, dry_run=dry_run):
                    gone.append(path)
                    if not dry_run:
                        store.remove(path)
            for path in _orphans(folder):
                gone.append(path)
                if not dry_run:
                    store.remove(path)
    return gone


def _orphans(folder: str) -> list[str]:
    """Lists of extensions of which none is left, and none is being built."""
    with contextlib.suppress(OSError):
        names = os.listdir(folder)
        builds = (n.removeprefix(_BUILD).rsplit("-", 3)[0] for n in names if n.startswith(_BUILD))
        stems = {n.rpartition("-")[0] for n in (*names, *builds) if store.is_entry_name(n)}
        return [
            f"{folder}/{name}"
            for name in names
            if name.startswith(store.INDEX) and name.removeprefix(store.INDEX) not in stems
        ]
    return []


def failed_builds(base: str) -> Iterator[str]:
    """What is kept of builds that failed: text and log."""
    for folder in targets(base):
        for path, _ in _private(folder):
            if os.path.basename(path).startswith(".failed-"):
                yield path


def _private(folder: str) -> Iterator[tuple[str, float]]:
    """Paths of the names that only a process at work uses, with the time of their last change."""
    temporary = os.path.basename(folder) == store.COMPILERS
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if temporary:
                private = ".json." in entry.name
            else:
                private = entry.name.startswith((".build-", ".trash-", ".failed-", ".lock-"))
            if private:
                with contextlib.suppress(OSError):
                    yield entry.path, entry.stat(follow_symlinks=False).st_mtime


def _abandoned(path: str, claims: Claims, *, dry_run: bool) -> bool:
    name = os.path.basename(path)
    if name.startswith(".trash-"):
        return True  # nobody comes back for it
    if name.startswith(".lock-"):
        return _unlocked(path, keep=dry_run)
    host, _, mark = ("--" + name).split("-")[-3:]
    if not name.startswith(".build-") or host != store.host() or not store.is_mark(mark):
        return False
    at = int(mark, 16)
    free = claims.seize(at)
    claims.drop(at)
    return free is True


def _unlocked(path: str, *, keep: bool) -> bool:
    """Whether nobody holds a lock file; it is removed by whoever holds it, which is us then."""
    from opkiln.runtime.jit.lock import ProcessLock

    with ProcessLock(path, 0, lambda _: None, keep=keep) as lock:
        return lock.held


def keep_newest(folder: str, prefix: str, count: int) -> None:
    """Remove the oldest of the directories of this prefix beyond `count`."""
    found: list[tuple[float, str]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(prefix):
                found.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
    for _, path in sorted(found)[: max(len(found) - count, 0)]:
        store.remove(path)
