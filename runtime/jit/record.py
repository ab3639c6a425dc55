"""Small checked files: in go named fields, out comes JSON, one field a line, that shows any damage.

The last field holds the digest of all text above it. Reading needs no JSON parser, because a warm
start has no 2 ms for one: the text must be exactly what `render` writes, or it counts as damaged.
"""

from __future__ import annotations

from typing import Any, cast

from opkiln.runtime.key import sha256

_LAST = '  "check": "'


def _quote(text: str) -> str:
    plain = text.isascii() and text.isprintable() and '"' not in text and "\\" not in text
    if plain:
        return f'"{text}"'
    import json

    return json.dumps(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))


def render(fields: dict[str, str | int | list[str]]) -> bytes:
    """Write the fields as JSON."""
    lines: list[str] = []
    for name, value in fields.items():
        if isinstance(value, int):
            shown = str(value)
        elif isinstance(value, str):
            shown = _quote(value)
        else:
            shown = "[" + ", ".join(_quote(item) for item in value) + "]"
        lines.append(f'  "{name}": {shown},\n')
    body = "{\n" + "".join(lines)
    return f'{body}{_LAST}{sha256(body.encode())}"\n}}\n'.encode()


class Record:
    """The fields of one file, decoded on demand."""

    __slots__ = ("_raw",)

    def __init__(self, data: bytes) -> None:
        """Check and split the text; raise ValueError if it is not what `render` wrote."""
        text = data.decode("utf-8")
        at = text.rfind(_LAST)
        if at < 0 or text[at:] != f'{_LAST}{sha256(text[:at].encode())}"\n}}\n':
            raise ValueError("the record does not match its own checksum")
        self._raw: dict[str, str] = {}
        for line in text[2:at].splitlines():
            name, _, value = line.partition(": ")
            self._raw[name[3:-1]] = value[:-1]

    def text(self, name: str) -> str:
        """Return a text field, '' if absent."""
        raw = self._raw.get(name, '""')
        if "\\" not in raw:
            return raw[1:-1]
        return cast("str", self._json(raw))

    def number(self, name: str) -> int:
        """Return a whole number, -1 if absent."""
        return int(self._raw.get(name, "-1"))

    def texts(self, name: str) -> list[str]:
        """Return a list of texts, [] if absent."""
        raw = self._raw.get(name, "[]")
        if raw == "[]":
            return []
        if "\\" not in raw:  # then no item holds a quote, so this separator cannot be inside one
            return raw[2:-2].split('", "')
        return cast("list[str]", self._json(raw))

    @staticmethod
    def _json(raw: str) -> Any:
        import json

        return json.loads(raw)
