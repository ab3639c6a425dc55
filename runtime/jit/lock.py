"""A lock between processes that dies with its holder: in goes a path, out comes held or not held.

flock on a file: the kernel releases it when the holder ends in whatever way, so a left-over file
means nothing. The lock only saves work, entries are whole without it; so where it cannot be had
(strange file systems, a directory in the way, a holder that takes too long) the caller goes on.
The lock belongs to the open file, which a forked child shares: the child closes its copy (a hook in
`descriptors`), and the holder unlocks in words instead of only closing its own.
`filelock` is not used: importing it takes 36 ms, more than a whole build, and its Unix lock falls
back to a lock file whose mere existence blocks others.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from opkiln.runtime.jit.descriptors import open_unshared

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import FileIO

with contextlib.suppress(ImportError):  # its users import it again, this loads it (see jit)
    import fcntl as _  # noqa: F401

MESSAGE_AFTER = 5.0  # seconds


class ProcessLock:
    """Context manager; `held` says whether this process has the lock."""

    def __init__(
        self, path: str, wait: float, on_slow: Callable[[str], None], *, keep: bool = False
    ) -> None:
        """Wait at most `wait` seconds; `on_slow(holder)` is called once after five.

        With `keep` the file outlives the lock.
        """
        self._keep = keep
        self._locked = False
        self._path = path
        self._wait = wait
        self._on_slow = on_slow
        self._file: FileIO | None = None

    @property
    def held(self) -> bool:
        """Whether this process has the lock; a forked child never has its parent's."""
        return self._locked and not self._lost()

    def __enter__(self) -> ProcessLock:
        """Acquire, or give up with `held` False."""
        start = time.monotonic()
        pause, told = 0.002, False
        try:
            while not self._try():
                waited = time.monotonic() - start
                if waited >= self._wait:
                    break
                if waited >= MESSAGE_AFTER and not told:
                    told = True
                    self._on_slow(self._holder())
                time.sleep(min(pause, max(self._wait - waited, 0.0)))
                pause = min(pause * 1.5, 0.1)
        except (OSError, ImportError):
            self._close()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Release; the file goes first, so that a waiter that opened it sees it is no longer it."""
        if self.held and not self._keep:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self._close()

    def _try(self) -> bool:
        import fcntl

        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        if self._file is None or self._lost():
            self._file = open_unshared(self._path, flags)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        self._locked = self._still_there(self._file.fileno())
        if self._locked:
            self._sign(self._file.fileno())
        else:
            self._close()  # the former holder removed this file: lock the one that is there now
        return self._locked

    def _lost(self) -> bool:
        """Whether this is a forked child's copy of its parent's lock."""
        return self._file is not None and self._file.closed

    def _still_there(self, descriptor: int) -> bool:
        try:
            mine, there = os.fstat(descriptor), os.lstat(self._path)
        except FileNotFoundError:
            return False
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)

    @staticmethod
    def _sign(descriptor: int) -> None:
        # For the message of others only; nobody decides by it.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()} on {os.uname().nodename}".encode(), 0)

    def _holder(self) -> str:
        text = ""
        if self._file is not None:
            with contextlib.suppress(OSError, ValueError):
                text = os.pread(self._file.fileno(), 200, 0).decode("utf-8", "replace").strip()
        return text if text.isprintable() and text else "another process"

    def _close(self) -> None:
        self._locked = False
        file, self._file = self._file, None
        if file is None or file.closed:
            return
        with contextlib.suppress(OSError, ImportError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_UN)  # closing alone would leave it to a copy elsewhere
        file.close()
