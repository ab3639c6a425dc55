"""What a compiler said: in go command, code and output, out come the lines to show a person."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SHOWN_LINES = 50
_SHOWN_WIDTH = 500
_MAX_SOURCE = 2**22  # bytes of a source that are read to show one line of it

# file:line:column: error: (GCC, Clang), file(line): error: (nvcc's front end), file(line,column):
# error C2065: (MSVC, clang-cl)
_ERROR = re.compile(
    r"^(?P<path>\S.*?)(?::(?P<line>\d+)(?::\d+)?:|\((?P<row>\d+)(?:,\d+)?\) ?:)"
    r" (?:fatal |catastrophic |internal )?error(?: [A-Z]+\d+)?:"
)
# What has no place: linkers, drivers, nvcc itself and a compiler that fell over.
_PLAIN = re.compile(
    r"(?:^|\s)(?:fatal )?error\s?:|undefined reference|multiple definition|undefined symbol"
    r"|cannot find -l|^nvcc fatal|^ptxas (?:fatal|error)|^LINK : fatal|internal compiler error",
    re.IGNORECASE,
)
# Lines above an error that say how the compiler came to it.
_LEAD = re.compile(
    r"^In file included from|^ {4,}from |^\S.*: In (?:\w+ )*(?:function|member|constructor)"
    r"|^\S.*: At global scope:"
)


class Place(NamedTuple):
    """Where the first error of an output lies: its line there, and the source if it names one."""

    at: int
    path: str = ""
    line: int = 0


def shell(command: Sequence[str]) -> str:
    """A command as a line that can be pasted into a shell."""
    import shlex

    return shlex.join(command)


def first_error(lines: Sequence[str]) -> Place | None:
    """The first line that reports an error; one that names a source wins over one that does not."""
    plain: int | None = None
    for at, line in enumerate(lines):
        found = _ERROR.match(line)
        if found:
            return Place(at, found["path"], int(found["line"] or found["row"]))
        if plain is None and _PLAIN.search(line):
            plain = at
    return None if plain is None else Place(plain)


def shown(output: str) -> str:
    """The lines from the first error on, with its line of the source, at most 50 of 500 characters.

    Without an error in it, the output from its start.
    """
    lines = output.splitlines()
    place = first_error(lines) or Place(0)
    start = place.at
    while start and place.at - start < _SHOWN_LINES // 2 and _LEAD.match(lines[start - 1]):
        start -= 1
    picked = [line[:_SHOWN_WIDTH] for line in lines[start : start + _SHOWN_LINES]]
    picked[place.at - start + 1 : place.at - start + 1] = _source_line(lines, place)
    if len(lines) > start + _SHOWN_LINES:
        picked.append("... (more in the log)")
    return "\n".join(f"    {line}" for line in picked)


def _source_line(lines: Sequence[str], place: Place) -> Iterator[str]:
    """The line at fault, where the compiler was told not to print it, or never does."""
    if not place.line:
        return
    text = ""
    with contextlib.suppress(OSError, IndexError), open(place.path, "rb") as file:
        text = file.read(_MAX_SOURCE).splitlines()[place.line - 1].decode("utf-8", "replace")
    code = text.strip()
    near = lines[place.at + 1 : place.at + 3]
    if code and not any(code[:_SHOWN_WIDTH] in line for line in near):
        yield f"{place.line:5} | {text[:_SHOWN_WIDTH]}"
