"""Which files a compiler has read: in go its dependency files, out come headers and their names."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from opkiln.runtime.jit import store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# A word ends at a blank that no backslash precedes; a backslash at the end of a line joins lines.
_WORD = re.compile(r"(?:\\.|[^\\\s])+", re.DOTALL)


def parse(text: str) -> list[str]:
    """The prerequisites of the first rule of a makefile, as a compiler writes it."""
    text = text.replace("\\\r\n", " ").replace("\\\n", " ")
    words = [_plain(word) for word in _WORD.findall(text.split("\n", 1)[0])]
    at = next((i for i, word in enumerate(words) if word.endswith(":")), -1)
    return words[at + 1 :]


def _plain(word: str) -> str:
    return re.sub(r"\\([ #\\\t:])", r"\1", word).replace("$$", "$")


def read(paths: Iterable[str]) -> set[str]:
    """All files that the given dependency files name, as absolute paths; `..` stays as it is."""
    here = os.getcwd()
    found: set[str] = set()
    for path in paths:
        text = os.fsdecode(store.read_owned(path))
        found.update(os.path.join(here, name) for name in parse(text))
    return found


def names(path: str, search: Sequence[str], *, system: bool) -> Iterator[str]:
    """How an include may have named a file: its last words, and its place below a directory."""
    words = path.split("/")
    for count in range(1, 3 if system else 4):
        if count < len(words):
            yield "/".join(words[-count:])
    for folder in search:
        if path.startswith(f"{folder}/"):
            yield path[len(folder) + 1 :]
