"""Recursion: a function that enters its own trace in, an error that says so out, in time."""

from __future__ import annotations

import threading

from opkiln.runtime.errors import TraceError
from opkiln.runtime.trace.session import failure

MOST = 50  # a recursion over a static number may be this deep; Python's own limit is 1000 frames
FIX = (
    "write a loop over a static number; what depends on the data ends only at run time, so keep "
    "that loop outside and compile one step of it"
)


class _Depths(threading.local):
    def __init__(self) -> None:
        self.of: dict[int, int] = {}


_depths = _Depths()


class Nested:
    """While this is entered, `function` is being traced or inlined on this thread."""

    def __init__(self, function: object, name: str) -> None:
        """Name the function by its identity."""
        self._key = id(function)
        self._name = name

    def __enter__(self) -> None:
        """Count, and refuse a recursion that does not end.

        Raises:
            TraceError: the function is `MOST` deep in itself.
        """
        depth = _depths.of.get(self._key, 0)
        if depth >= MOST:
            raise failure(
                TraceError,
                f"{self._name} calls itself {MOST} deep while it is traced",
                fix=FIX,
            )
        _depths.of[self._key] = depth + 1

    def __exit__(self, *_: object) -> None:
        """Leave the function."""
        depth = _depths.of[self._key] - 1
        if depth:
            _depths.of[self._key] = depth
        else:
            del _depths.of[self._key]
