"""A lock between processes that dies with its holder: in goes a path, out comes held or not held.

flock on a file: the kernel releases it when the holder ends in whatever way, so a left-over file
means nothing. The lock only saves work, entries are whole without it; so where it cannot be had
(strange file systems, a directory in the way, a holder that takes too long) the caller goes on.
`filelock` is not used: importing it takes 36 ms, more than a whole build, and its Unix lock falls
back to a lock file whose mere existence blocks others.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGE_AFTER = 5.0  # seconds


class ProcessLock:
    """Context manager; `held` says whether this process has the lock."""

    def __init__(self, path: str, wait: float, on_slow: Callable[[str], None]) -> None:
        """Wait at most `wait` seconds; `on_slow(holder)` is called once after five."""
        self.held = False
        self._path = path
        self._wait = wait
        self._on_slow = on_slow
        self._descriptor = -1

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
        if self.held:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self._close()

    def _try(self) -> bool:
        import fcntl

        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, flags, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        self.held = self._still_there()
        if self.held:
            self._sign()
        else:
            self._close()  # the former holder removed this file: lock the one that is there now
        return self.held

    def _still_there(self) -> bool:
        try:
            mine, there = os.fstat(self._descriptor), os.lstat(self._path)
        except FileNotFoundError:
            return False
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)

    def _sign(self) -> None:
        # For the message of others only; nobody decides by it.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"pid {os.getpid()} on {os.uname().nodename}".encode(), 0)

    def _holder(self) -> str:
        try:
            text = os.pread(self._descriptor, 200, 0).decode("utf-8", "replace").strip()
        except OSError:
            text = ""
        return text if text.isprintable() and text else "another process"

    def _close(self) -> None:
        self.held = False
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
