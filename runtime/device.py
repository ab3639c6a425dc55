"""Where arrays live and work runs, as a value: a name in, its kind and number out."""

from __future__ import annotations

import re
from typing import Final, final

from opkiln.runtime.errors import ArgumentError

_SPELLING: Final = re.compile(r"(cpu|cuda)(?::(\d{1,3}))?")


@final
class Device:
    """A device: `Device("cpu")`, `Device("cuda:0")`. Equal names are equal devices; frozen.

    Args:
        name: "cpu", "cuda" (its first), "cuda:N", or a Device.

    Raises:
        ArgumentError: no such device.
    """

    __slots__ = {"index": "The number among its kind.", "kind": '"cpu" or "cuda".'}
    kind: str
    index: int

    def __init__(self, name: str | Device) -> None:
        """Read the name."""
        found = _SPELLING.fullmatch(str(name)) if isinstance(name, (str, Device)) else None  # pyright: ignore[reportUnnecessaryIsInstance]
        kind, index = (found[1], int(found[2] or 0)) if found else ("", 0)
        if not kind or index > (0 if kind == "cpu" else 255):
            raise ArgumentError(f"device: expected 'cpu' or 'cuda:N', got {name!r}")
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "index", index)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: a device is a value."""
        raise AttributeError(f"a Device is frozen: {name} cannot be set")

    def __str__(self) -> str:
        """Return the name in its canonical spelling."""
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"

    def __repr__(self) -> str:
        """Return the code that makes it."""
        return f"Device({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        """Compare by name."""
        return str(self) == str(other) if isinstance(other, Device) else NotImplemented

    def __hash__(self) -> int:
        """Hash by name."""
        return hash(str(self))

    def __reduce__(self) -> tuple[type[Device], tuple[str]]:
        """Pickle by name."""
        return Device, (str(self),)
