"""What files hold: in goes a path, out comes the digest of its content.

Times, size and inode only save reading a file again; two that agree on all of them differ only if
the file was written within the same tick of the clock, so what is that young is always read.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from opkiln.runtime.jit.descriptors import READ, open_file
from opkiln.runtime.key import sha256

_YOUNG = 2 * 10**9  # nanoseconds: the coarsest clock of a file system in use


class Seen(NamedTuple):
    """One reading of a file."""

    stamp: str  # "" if it is too young to tell by it that nothing has changed since
    digest: str


_seen: dict[str, Seen] = {}


def stamp_of(status: os.stat_result) -> str:
    """What changes when a file does, nearly always."""
    s = status
    return f"{s.st_size}-{s.st_mtime_ns}-{s.st_ctime_ns}-{s.st_ino}"


def read(path: str) -> Seen:
    """The digest of a file's content; raises OSError."""
    status = os.stat(path)
    stamp = stamp_of(status)
    known = _seen.get(path)
    if known is not None and known.stamp == stamp:
        return known
    settled = 0 <= status.st_ctime_ns < time.time_ns() - _YOUNG
    with open_file(path, READ) as file:
        digest = sha256(file.readall())
    _seen[path] = seen = Seen(stamp if settled else "", digest)
    return seen


def same(path: str, seen: Seen) -> bool:
    """Whether a file still holds what it did."""
    try:
        return (seen.stamp != "" and stamp_of(os.stat(path)) == seen.stamp) or (
            read(path).digest == seen.digest
        )
    except OSError:
        return False
