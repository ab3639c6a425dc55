"""A lock that a forked child finds open, for the thread that held it does not live there."""

from __future__ import annotations

import _thread
import os
from types import TracebackType


class ForkLock:
    """A re-entrant lock; use it with `with`. What it guards must be whole or absent at any moment.

    Source: FIELD-CASES F086 (a fork while another thread builds).
    """

    __slots__ = ("_lock", "_pid")

    def __init__(self) -> None:
        """Make an open lock of this process."""
        self._lock = _thread.RLock()
        self._pid = os.getpid()

    def __enter__(self) -> None:
        """Take the lock, a new one in a child."""
        pid = os.getpid()
        if pid != self._pid:
            self._lock, self._pid = _thread.RLock(), pid
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release it."""
        self._lock.release()
