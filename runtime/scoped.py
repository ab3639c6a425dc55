"""Values that hold until a block ends: in goes a value per `with` block, out one context variable.

The native path reads such a variable itself, and knows of it once the first block has begun.
"""

from __future__ import annotations

import contextvars
from typing import Generic, TypeVar

T = TypeVar("T")


class Scoped(Generic[T]):
    """A value of the current context (thread or task), set block by block."""

    __slots__ = ("_tokens", "variable")

    def __init__(self, name: str) -> None:
        """Name the variable; outside of all blocks it is unset."""
        self.variable: contextvars.ContextVar[T] = contextvars.ContextVar(name)
        # One per block of this context, so that threads and tasks may share what opens the blocks.
        self._tokens: contextvars.ContextVar[tuple[contextvars.Token[T], ...]] = (
            contextvars.ContextVar(f"{name}_tokens", default=())
        )

    def begin(self, value: T) -> None:
        """Set the value until the matching `end`."""
        self._tokens.set((*self._tokens.get(), self.variable.set(value)))

    def end(self) -> None:
        """Let what held before hold again."""
        *others, last = self._tokens.get()
        self._tokens.set(tuple(others))
        self.variable.reset(last)
