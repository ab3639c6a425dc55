"""Open files that are never lost: in go paths and flags, out come objects that own a descriptor.

Ctrl-C may come between any two steps of Python, also between a system call and the assignment of
what it returned. So the call and the object that owns its result are made in one step, by built-in
iterators; an object that is dropped closes its descriptor.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from io import FileIO
from itertools import chain, starmap
from weakref import WeakSet

READ = os.O_RDONLY | os.O_CLOEXEC
WRITE = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC

_ours: WeakSet[FileIO] = WeakSet()
_forks = 0


def _in_parent() -> None:
    global _forks  # noqa: PLW0603
    _forks += 1


def _in_child() -> None:
    # Closing says nothing to others: a lock stays with the parent, which shares the open file.
    for file in list(_ours):
        with contextlib.suppress(OSError):
            file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_in_parent, after_in_child=_in_child)


def owned(call: Callable[..., int], *arguments: object) -> FileIO:
    """Own the descriptor that a built-in function returns."""
    return next(map(FileIO, starmap(call, [arguments])))


def open_file(path: str, flags: int) -> FileIO:
    """Open a file for `os.read` and `os.write`, or for a stream of a child."""
    return owned(os.open, path, flags, 0o600)


def open_unshared(path: str, flags: int) -> FileIO:
    """Open a file that no forked child keeps open, so that a lock on it ends with this process."""
    return _unshared(lambda: map(os.open, [path], [flags], [0o600]))[0]


def open_pipe() -> tuple[FileIO, FileIO]:
    """Both ends of a pipe; no forked child keeps one, or the reader would never see the end."""
    read, write = _unshared(lambda: chain.from_iterable(starmap(os.pipe, [()])))
    return read, write


def _unshared(opened: Callable[[], Iterable[int]]) -> list[FileIO]:
    while True:
        before = _forks
        files = [*map(FileIO, opened())]
        _ours.update(files)
        if before == _forks:
            return files
        for file in files:  # another thread forked meanwhile, and its child knows nothing of these
            file.close()
