"""A bounded cache of costly values: one thread makes a value, the others wait for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from opkiln.runtime.locks import ForkLock

V = TypeVar("V")


def _self() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


class _Making:
    __slots__ = ("done", "owner")

    def __init__(self) -> None:
        self.done, self.owner = threading.Event(), _self()


class Memo(Generic[V]):
    """Keys are compared by `==`; the least recently used value goes first. Failures are not kept.

    Source: seed rows K21 and K28, caches per thread and by hash alone.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.hits = self.misses = 0
        self._lock = ForkLock()
        self._making: dict[Hashable, _Making] = {}
        self._held: Any = None  # made late: cachetools is no part of an import

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of the key; `make` runs without a lock, in one thread per key."""
        while True:
            with self._lock:
                if self._held is None:
                    from cachetools import LRUCache

                    self._held = LRUCache(self.size)
                found = self._held.get(key, self)
                if found is not self:
                    self.hits += 1
                    return found  # type: ignore[no-any-return]
                other = self._making.get(key)
                # One's own: a recursion. Of another process: that thread is not in this child.
                if other is None or other.owner == _self() or other.owner[0] != os.getpid():
                    mine = self._making[key] = _Making()
                    self.misses += 1
                    break
            other.done.wait()
        try:
            value = make()
            with self._lock:
                if self._held is not None:  # cleared meanwhile
                    self._held[key] = value
            return value
        finally:
            with self._lock:
                if self._making.get(key) is mine:
                    del self._making[key]
            mine.done.set()

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._held = None

    def __len__(self) -> int:
        return 0 if self._held is None else len(self._held)
