"""Single flight in a process: in goes work, out comes one build's result for all threads."""

from __future__ import annotations

import _thread
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from opkiln.runtime.config import config
from opkiln.runtime.errors import NotCached, OpkilnError
from opkiln.runtime.jit import build, nearest
from opkiln.runtime.locks import ForkLock

if TYPE_CHECKING:
    from opkiln.runtime.jit.build import Work
    from opkiln.runtime.jit.nearest import Difference

T = TypeVar("T")


class _Flight:
    """One build under way."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.leader = _thread.get_ident()
        self.opened: Any = None
        self.error: OpkilnError | None = None


_guard = ForkLock()
_flights: dict[str, _Flight] = {}


def _after_fork() -> None:
    # The threads that would finish these builds exist only in the parent.
    _flights.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def build_once(work: Work[T]) -> tuple[T, str, tuple[Difference, ...]]:
    """Build, or wait for the thread that builds the same key; a failure is told to all of them.

    Returns what was opened, how it came, and why it was not there.
    """
    key = work.entry.path
    while True:
        with _guard:
            flight = _flights.get(key)
            mine = flight is None
            if flight is None:
                flight = _flights[key] = _Flight()
        if mine:
            return _lead(key, flight, work)
        if flight.leader == _thread.get_ident():
            # A signal's handler or a finaliser runs in the middle of this thread's own build, which
            # goes on only after it. So it builds for itself, and does not wait for its own lock.
            return _build(work, 0)
        flight.done.wait()
        if flight.opened is not None:
            return flight.opened, "disk", ()
        if flight.error is not None:
            import copy

            raise copy.copy(flight.error)
        # The builder was interrupted (Ctrl-C, a disk problem): that says nothing about the kernel.


def _lead(key: str, flight: _Flight, work: Work[T]) -> tuple[T, str, tuple[Difference, ...]]:
    try:
        opened, hit, why = _build(work, config.lock_wait)
        flight.opened = opened
    except OpkilnError as error:
        flight.error = error
        raise
    finally:
        with _guard:
            if _flights.get(key) is flight:
                del _flights[key]
        flight.done.set()
    return opened, hit, why


def _build(work: Work[T], lock_wait: float) -> tuple[T, str, tuple[Difference, ...]]:
    why = work.why()
    if config.assert_cached:
        raise NotCached(
            f"{work.entry.name} is not in the cache {work.entry.folder!r}; {nearest.text_of(why)}",
            fix="run once without OPKILN_ASSERT_CACHED, or set OPKILN_CACHE_DIR to the full cache",
        )
    opened, hit = build.build(work, lock_wait)
    return opened, hit, why if hit == "built" else ()
