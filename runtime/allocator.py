"""Who gives memory for results: an allocator in, the native call path told of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from opkiln import native
from opkiln.runtime.errors import ArgumentError
from opkiln.runtime.scoped import Scoped

#: `(device, nbytes, function) -> object with a writable buffer`
Allocate = Callable[[str, int, native.Compiled], Any]

_IN_FORCE: Scoped[Allocate | None] = Scoped("opkiln_allocator")
_default: list[Allocate | None] = [None]


def _checked(allocate: Allocate | None, where: str) -> Allocate | None:
    if allocate is None or callable(allocate):
        return allocate
    raise ArgumentError(
        f"{where}: expected a callable (device, nbytes, function) or None, got {allocate!r}"
    )


class allocator(contextlib.ContextDecorator):
    """Take the memory of results from `allocate` until the block ends.

    Called as `allocate(device, nbytes, function)` for each array that a compiled function returns:
    the device ("cpu"), the bytes wanted (never 0), the compiled function that is running. It
    returns an object with a writable, contiguous buffer of at least so many bytes, which becomes
    the base of the result. It may call compiled functions, also the same one, to make room. What it
    raises reaches the caller; after a MemoryError the thread's idle executors are dropped and it is
    asked once more.

    It holds for compiled functions called in this context (thread or task). Scalars, empty arrays,
    arrays of other libraries and given out= need no memory from it. May also be used as a
    decorator, and again and again.

    Args:
        allocate: the callable, or None for NumPy's own memory.

    Raises:
        ArgumentError: neither.
    """

    __slots__ = ("_allocate",)

    def __init__(self, allocate: Allocate | None) -> None:
        self._allocate = _checked(allocate, "allocator()")

    def __enter__(self) -> None:
        """Begin the block."""
        native.use_allocator(_IN_FORCE.variable, _default[0])
        _IN_FORCE.begin(self._allocate)

    def __exit__(self, *_: object) -> None:
        """End it: what held before holds again."""
        _IN_FORCE.end()


def set_allocator(allocate: Allocate | None) -> Allocate | None:
    """Set the allocator of the whole process, for where no `with ok.allocator(...)` holds.

    Args:
        allocate: as `ok.allocator` takes it, or None for NumPy's own memory.

    Returns:
        What held before, so that it can be set again.

    Raises:
        ArgumentError: neither a callable nor None.
    """
    before = _default[0]
    _default[0] = _checked(allocate, "set_allocator()")
    native.use_allocator(_IN_FORCE.variable, _default[0])
    return before
