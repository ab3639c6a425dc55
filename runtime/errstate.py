"""What an integer division fault does: `with ok.errstate(...)` in, one context variable out.

The native path reads the variable itself, and only when a kernel has reported a fault or `out=` is
given.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from opkiln import native
from opkiln.runtime.errors import ArgumentError
from opkiln.runtime.scoped import Scoped

if TYPE_CHECKING:
    from typing import Literal

MODES = ("ignore", "warn", "raise")  # by the number that the native side uses

_STATE: Scoped[int] = Scoped("opkiln_errstate")


class errstate(contextlib.ContextDecorator):
    """Set what integer division by zero and its overflow (MIN // -1) do, until the block ends.

    It holds for compiled functions called in this context (thread or task) and wins over their
    `errstate=` option. np.errstate is another setting: neither changes the other. May also be used
    as a decorator, and again and again.

    Args:
        integer_divide: "ignore" gives NumPy's value and counts the call in info(); "warn" also
            gives NumPy's RuntimeWarning; "raise" raises IntegerDivisionError, which is a
            FloatingPointError, and leaves out= untouched.

    Raises:
        ArgumentError: another word.
    """

    __slots__ = ("_mode",)

    def __init__(self, *, integer_divide: Literal["ignore", "warn", "raise"]) -> None:
        if integer_divide not in MODES:
            raise ArgumentError(
                f"errstate(integer_divide=): expected {MODES}, got {integer_divide!r}"
            )
        self._mode = MODES.index(integer_divide)

    def __enter__(self) -> None:
        """Begin the block."""
        native.use_errstate(_STATE.variable)
        _STATE.begin(self._mode)

    def __exit__(self, *_: object) -> None:
        """End it: what held before holds again."""
        _STATE.end()
