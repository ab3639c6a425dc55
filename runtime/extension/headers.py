"""The headers of an extension: in goes a manifest, out comes whether they are what was compiled.

A header has changed if its content has, or if a file of the same name has come into a directory
that the compiler searches before it. Headers of the system go with the compiler's identity; those
of this package are named relative to it, so that an artifact serves in any environment.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from opkiln.native import include_dir
from opkiln.ops.record import record
from opkiln.runtime.extension.files import Seen, read, same

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opkiln.runtime.jit.record import Record

_OURS = "<opkiln>"


@record
class Headers:
    """What one build read beside the sources."""

    files: tuple[tuple[str, Seen], ...]
    search: tuple[str, ...]  # directories of the user that includes are searched in
    names: tuple[str, ...]  # by which the included files can be named
    others: tuple[str, ...]  # files of these names in those directories that were not included

    def fields(self) -> dict[str, str | int | list[str]]:
        """The fields of a manifest."""
        return {
            "headers": [f"{s.digest} {s.stamp or '-'} {_written(path)}" for path, s in self.files],
            "search": [_written(path) for path in self.search],
            "names": list(self.names),
            "others": list(self.others),
        }

    def digests(self) -> list[str]:
        """What enters the key."""
        return [f"{seen.digest} {_written(path)}" for path, seen in self.files]

    def fresh(self) -> bool:
        """Whether a compiler would read the same again."""
        if not all(same(path, seen) for path, seen in self.files):
            return False
        included = {path for path, _ in self.files}
        return shadowing(self.search, self.names, included).issubset(self.others)


def of_record(record: Record) -> Headers:
    """Read the fields of a manifest."""
    files: list[tuple[str, Seen]] = []
    for line in record.texts("headers"):
        digest, stamp, path = line.split(" ", 2)
        files.append((_read_back(path), Seen("" if stamp == "-" else stamp, digest)))
    search = tuple(_read_back(path) for path in record.texts("search"))
    return Headers(
        tuple(files), search, tuple(record.texts("names")), tuple(record.texts("others"))
    )


def seen(included: Iterable[str], names: Iterable[str], search: Iterable[str]) -> Headers:
    """Read the headers that a build has just included."""
    files = tuple((path, read(path)) for path in sorted(included))
    known, folders = tuple(sorted(names)), tuple(search)
    others = shadowing(folders, known, {path for path, _ in files})
    return Headers(files, folders, known, tuple(sorted(others)))


def shadowing(search: Iterable[str], names: Iterable[str], included: set[str]) -> set[str]:
    """Files that an include might find in these directories, but for those that were included."""
    wanted = [(name, name.split("/", 1)[0]) for name in names]
    found: set[str] = set()
    for folder in search:
        there: set[str] = set()
        with contextlib.suppress(OSError):
            there.update(os.listdir(folder))
        for name, first in wanted:
            path = f"{folder}/{name}"
            if first in there and path not in included and os.path.isfile(path):
                found.add(path)
    return found


def _written(path: str) -> str:
    ours = include_dir()
    return _OURS + path.removeprefix(ours) if path.startswith(ours) else path


def _read_back(path: str) -> str:
    return include_dir() + path.removeprefix(_OURS) if path.startswith(_OURS) else path
