"""Child processes: in go argument lists, out comes an exit status; nothing outlives its time limit.

posix_spawn is used directly: it does not copy the page tables of a large parent, and importing
`subprocess` takes a fifth of a build. The children of one job share a process group of their own,
so a time limit or Ctrl-C ends all of them, grandchildren included.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Variables that would change what a compiler reads or writes behind the key's back.
_DROPPED = frozenset(
    [
        *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LD_RUN_PATH", "LANG", "LANGUAGE"),
        *("DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES", "GCC_COLORS", "GCC_COMPARE_DEBUG"),
    ]
)


# The exit code of a child that someone else has waited for (the host program ignores SIGCHLD, or
# waits for any child): its outputs must decide.
UNKNOWN = 1000


class OutOfTime(Exception):
    """The children were ended because their time was up."""


class NotStarted(Exception):
    """A program could not be started; holds the program and the system's error."""

    def __init__(self, program: str, error: OSError) -> None:
        """Keep both for the message."""
        super().__init__(f"{program}: {error.strerror or error}")
        self.program = program
        self.error = error


def environment() -> dict[str, str]:
    """The environment of a compiler: the user's, without what changes results, in plain English."""
    kept = {k: v for k, v in os.environ.items() if k not in _DROPPED and not k.startswith("LC_")}
    return kept | {"LC_ALL": "C"}


class Job:
    """One or more children in one process group; a context manager that leaves none alive."""

    def __init__(self) -> None:
        """Start with no children."""
        self._group = 0
        self._running: dict[int, int] = {}  # pid -> position in `statuses`
        self.statuses: list[int] = []

    def start(self, command: Sequence[str], *, stdin: int | None, stdout: int, stderr: int) -> None:
        """Start one child; descriptors are the parent's, stdin None is /dev/null."""
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = []
        copies: list[int] = []
        if stdin is None:
            actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
        for source, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
            if source is not None:
                actions.append((os.POSIX_SPAWN_DUP2, _above_standard(source, copies), target))
        try:
            pid = os.posix_spawn(
                command[0],
                list(command),
                environment(),
                file_actions=actions,
                setpgroup=self._group,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM),
            )
        except OSError as error:
            raise NotStarted(command[0], error) from None
        finally:
            for copy in copies:
                os.close(copy)
        self._group = self._group or pid
        self._running[pid] = len(self.statuses)
        self.statuses.append(-1)

    def wait(self, deadline: float) -> list[int]:
        """Wait for all children; return exit codes (negative: signal) or raise OutOfTime."""
        for pid in list(self._running):
            self._wait_one(pid, deadline)
        return self.statuses

    def _wait_one(self, pid: int, deadline: float) -> None:
        ready = _waiter(pid)
        try:
            pause = 0.0005
            while not self._reap(pid, os.WNOHANG):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise OutOfTime
                if ready is not None:
                    ready(min(left, 3600.0))
                else:
                    time.sleep(min(pause, left))
                    pause = min(pause * 1.5, 0.02)
        finally:
            if ready is not None:
                ready(-1.0)

    def _reap(self, pid: int, options: int) -> bool:
        try:
            done, status = os.waitpid(pid, options)
        except ChildProcessError:
            self.statuses[self._running.pop(pid)] = UNKNOWN
            return True
        if done:
            self.statuses[self._running.pop(pid)] = os.waitstatus_to_exitcode(status)
        return bool(done)

    def __enter__(self) -> Job:
        """Nothing to do: children start by `start`."""
        return self

    def __exit__(self, *_: object) -> None:
        """End whatever still runs, at once and with its whole group."""
        if not self._running:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._group, signal.SIGKILL)
        for pid in self._running:  # not reaped, so the number cannot belong to anyone else
            os.kill(pid, signal.SIGKILL)
        for pid in list(self._running):
            self._reap(pid, 0)


def _above_standard(descriptor: int, copies: list[int]) -> int:
    """A descriptor above 2, so that setting up one of a child's first three spoils no other."""
    if descriptor > 2:
        return descriptor
    import fcntl

    copies.append(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3))
    return copies[-1]


def _waiter(pid: int) -> Callable[[float], None] | None:
    """Return a function that sleeps until the child ends or so many seconds pass; -1 closes it."""
    if not hasattr(os, "pidfd_open"):
        return None
    import select

    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)

    def wait(seconds: float) -> None:
        if seconds < 0:
            os.close(descriptor)
        else:
            poll.poll(seconds * 1000 + 1)

    return wait


def run(command: Sequence[str], *, stdout: int, stderr: int, deadline: float) -> int:
    """Run one command to its end and return its exit code."""
    with Job() as job:
        job.start(command, stdin=None, stdout=stdout, stderr=stderr)
        return job.wait(deadline)[0]
