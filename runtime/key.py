"""The key of an artifact: in go named parts in a fixed order, out comes one SHA-256 digest.

The digest covers each name and each value with its length in front, so that no two different
lists of parts meet. Nothing enters by address, time, `hash()` or set order: any process gets the
same key.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def _find_sha256() -> Any:
    # hashlib loads OpenSSL, which takes as long (5 ms) as a whole warm start may; the interpreter's
    # own implementation gives the same digests.
    # Looking for a module that is not there lists every directory of the path.
    module = "_sha2" if sys.version_info >= (3, 12) else "_sha256"
    try:
        return __import__(module).sha256
    except (ImportError, AttributeError):
        import hashlib

        return hashlib.sha256


_SHA256 = _find_sha256()


def sha256(data: bytes) -> str:
    """Return the SHA-256 of `data` in 64 hexadecimal digits."""
    return cast("str", _SHA256(data).hexdigest())


def _encode(value: str | bytes | Iterable[str]) -> bytes:
    """Encode one value; the letter in front keeps a text, bytes and a list of texts apart."""
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogateescape")
    items = [item.encode("utf-8", "surrogateescape") for item in value]
    return b"l" + b"".join(b"%d:%b" % (len(item), item) for item in items)


class KeyParts:
    """Named parts in order; equal parts give equal digests in every process."""

    __slots__ = ("_digest", "_parts")

    def __init__(self, parts: Iterable[tuple[str, str | bytes | Iterable[str]]] = ()) -> None:
        """Take the parts; a name may occur once."""
        self._parts: dict[str, str | bytes | tuple[str, ...]] = {}
        self._digest: str | None = None
        for name, value in parts:
            self.add(name, value)

    def add(self, name: str, value: str | bytes | Iterable[str]) -> None:
        """Append one part."""
        if name in self._parts:
            raise ValueError(f"key: expected each part once, got {name!r} twice")
        self._parts[name] = value if isinstance(value, (str, bytes)) else tuple(value)
        self._digest = None

    @property
    def hexdigest(self) -> str:
        """All 256 bits in hexadecimal."""
        if self._digest is None:
            fields: list[bytes] = []
            for name, value in self._parts.items():
                for field in (name.encode(), _encode(value)):
                    fields.append(b"%d:" % len(field))
                    fields.append(field)
            self._digest = sha256(b"".join(fields))
        return self._digest

    @property
    def short(self) -> str:
        """The 24 digits used in file names."""
        return self.hexdigest[:24]

    def digests(self) -> dict[str, str]:
        """A readable value per part: the text itself if short, else the start of its digest."""
        return {name: _shown(value) for name, value in self._parts.items()}

    def diff(self, other: KeyParts | dict[str, str]) -> list[tuple[str, str, str]]:
        """List (name, value in other, value here) of each part that differs; absent is ''."""
        here = self.digests()
        there = other.digests() if isinstance(other, KeyParts) else other
        names = [*here, *(name for name in there if name not in here)]
        pairs = ((name, there.get(name, ""), here.get(name, "")) for name in names)
        return [pair for pair in pairs if pair[1] != pair[2]]

    def __iter__(self) -> Iterator[tuple[str, str | bytes | tuple[str, ...]]]:
        """Iterate over (name, value) in order."""
        return iter(self._parts.items())

    def __eq__(self, other: object) -> bool:
        """Equal parts in equal order."""
        if not isinstance(other, KeyParts):
            return NotImplemented
        return self.hexdigest == other.hexdigest

    def __hash__(self) -> int:
        """Hash of the digest."""
        return hash(self.hexdigest)

    def __repr__(self) -> str:
        """Show the short digest and the parts."""
        return f"KeyParts({self.short}, {self.digests()})"


def _shown(value: str | bytes | tuple[str, ...]) -> str:
    text = value.hex() if isinstance(value, bytes) else value
    text = text if isinstance(text, str) else " ".join(text)
    if len(text) > 120 or not text.isascii() or not text.isprintable():
        return "sha256:" + sha256(_encode(value))[:24]
    return text
