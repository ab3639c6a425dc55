"""Who uses what in a cache: in go a cache directory and a number, out comes a lock on that byte.

A claim is a shared lock on one byte of the file `.in-use`; the byte's number comes from the key of
an entry or from the name of a private directory. The system drops it when its process ends, in
whatever way. Whoever wants to remove the thing asks for the exclusive lock and learns that it is
in use, also in another container and, where the file system carries locks, on another machine.
A loaded library holds its claim natively (`Library.claim`); this is the rest: builds and removers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from typing import TYPE_CHECKING

from opkiln.runtime.jit.descriptors import open_unshared

if TYPE_CHECKING:
    from io import FileIO

with contextlib.suppress(ImportError):  # `_lock` imports it again, this loads it (see jit)
    import fcntl as _  # noqa: F401

_BUSY = {errno.EAGAIN, errno.EACCES}
_FLOCK = "hhqqi4x"  # struct flock: kind, whence, start, length, pid


class Claims:
    """One open `.in-use` file; a context manager that drops what was claimed through it."""

    def __init__(self, path: str, *, create: bool = True) -> None:
        """Open the file; without it nothing can be told."""
        self._file: FileIO | None = None
        with contextlib.suppress(OSError):
            flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
            self._file = open_unshared(path, flags)

    def share(self, at: int) -> None:
        """Say that the thing is in use, as far as the file system can."""
        self._lock("F_RDLCK", at)

    def seize(self, at: int) -> bool | None:
        """Whether nobody uses the thing, and nobody may start to; None where that is unknown."""
        return self._lock("F_WRLCK", at)

    def drop(self, at: int) -> None:
        """End `share` or `seize`."""
        self._lock("F_UNLCK", at)

    def _lock(self, kind: str, at: int) -> bool | None:
        if self._file is None or self._file.closed:
            return None
        try:
            import fcntl

            request = struct.pack(_FLOCK, getattr(fcntl, kind), os.SEEK_SET, at, 1, 0)
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, request)
        except OSError as error:
            return False if error.errno in _BUSY else None
        except (AttributeError, ImportError):  # a system without such locks
            return None
        return True

    def __enter__(self) -> Claims:
        """Nothing to do: the file is open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file, which drops every claim made through it."""
        if self._file is not None:
            self._file.close()
