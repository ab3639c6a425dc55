"""Child processes: in go argument lists, out comes an exit status; nothing outlives its time limit.

posix_spawn is used directly: it does not copy the page tables of a large parent, and importing
`subprocess` takes a fifth of a build. The children of one job share a process group of their own,
so a time limit or Ctrl-C ends all of them, grandchildren included.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from opkiln.runtime.jit.descriptors import owned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from io import FileIO

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
_LOST = -1  # its wait status
_TICK = 0.1  # seconds


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
    if sys.platform == "win32":  # untested
        from opkiln.runtime.jit import msvc

        kept |= msvc.environment()
    # Without PATH the driver finds no linker, although we found the driver.
    return {"PATH": os.defpath} | kept | {"LC_ALL": "C"}


class Job:
    """One or more children in one process group; a context manager that leaves none alive.

    Each is waited for in whatever way the block ends. Ctrl-C can come between a system call and the
    assignment of its result, so what a call returns goes into its container in the same step.
    """

    def __init__(self) -> None:
        """Start with no children."""
        self._pids: list[int] = []
        self._ended: dict[int, int] = {}  # pid -> wait status; 0 holds nothing of interest
        self._owner = os.getpid()
        # For the rare case that Ctrl-C comes in place of `__exit__`, and for an interpreter that
        # ends below a thread. Not __del__: it would run each time, and could swallow a Ctrl-C.
        self._at_last = weakref.finalize(self, _end, self._owner, self._pids, self._ended)

    def start(self, command: Sequence[str], *, stdin: int | None, stdout: int, stderr: int) -> None:
        """Start one child; descriptors are the parent's, stdin None is /dev/null."""
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = []
        copies: list[FileIO] = []
        if stdin is None:
            actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
        for source, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
            if source is not None:
                actions.append((os.POSIX_SPAWN_DUP2, _above_standard(source, copies), target))
        spawn = functools.partial(
            os.posix_spawn,
            file_actions=actions,
            setpgroup=self._pids[0] if self._pids else 0,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM),
        )
        try:
            self._pids.extend(map(spawn, [command[0]], [list(command)], [environment()]))
        except OSError as error:
            raise NotStarted(command[0], error) from None
        finally:
            for copy in copies:
                copy.close()

    def wait(self, deadline: float, tick: Callable[[], None] | None = None) -> list[int]:
        """Wait for all children; return exit codes (negative: signal) or raise OutOfTime.

        Meanwhile `tick` is called about ten times a second.
        """
        for pid in self._pids:
            self._wait_one(pid, deadline, tick)
        return [_exit_code(self._ended[pid]) for pid in self._pids]

    def _wait_one(self, pid: int, deadline: float, tick: Callable[[], None] | None) -> None:
        file = _pidfd(pid)
        try:
            pause = 0.0005
            while not _reap(pid, os.WNOHANG, self._ended):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise OutOfTime
                if tick is not None:
                    tick()
                if file is not None:
                    _sleep_until_ready(file, min(left, 3600.0 if tick is None else _TICK))
                else:
                    time.sleep(min(pause, left))
                    pause = min(pause * 1.5, 0.02)
        finally:
            if file is not None:
                file.close()

    def __enter__(self) -> Job:
        """Nothing to do: children start by `start`."""
        return self

    def __exit__(self, *_: object) -> None:
        """End whatever still runs, at once and with its whole group."""
        state = self._owner, self._pids, self._ended
        try:
            _end(*state)
        except BaseException:  # Ctrl-C once more: what is left is still ended first
            _end(*state)
            raise
        self._at_last.detach()


def _end(owner: int, pids: list[int], ended: dict[int, int]) -> None:
    running = [pid for pid in pids if pid not in ended]
    if not running or os.getpid() != owner:  # in a forked child they are not ours
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pids[0], signal.SIGKILL)
    for pid in running:  # not reaped, so the number cannot belong to anyone else
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in running:
        _reap(pid, 0, ended)


def _reap(pid: int, options: int, ended: dict[int, int]) -> bool:
    """Whether the child has ended; with options 0, wait for that."""
    if pid not in ended:
        try:
            ended.update(map(os.waitpid, [pid], [options]))
        except ChildProcessError:
            ended[pid] = _LOST
    return pid in ended


def _exit_code(status: int) -> int:
    return UNKNOWN if status == _LOST else os.waitstatus_to_exitcode(status)


def _above_standard(descriptor: int, copies: list[FileIO]) -> int:
    """A descriptor above 2, so that setting up one of a child's first three spoils no other."""
    if descriptor > 2:
        return descriptor
    import fcntl

    copies.append(owned(fcntl.fcntl, descriptor, fcntl.F_DUPFD_CLOEXEC, 3))
    return copies[-1].fileno()


def _pidfd(pid: int) -> FileIO | None:
    """A file that becomes readable when the child ends, where the system has that."""
    with contextlib.suppress(OSError, AttributeError):
        return owned(os.pidfd_open, pid)
    return None


def _sleep_until_ready(file: FileIO, seconds: float) -> None:
    poll = select.poll()
    poll.register(file, select.POLLIN)
    poll.poll(seconds * 1000 + 1)


def run(
    command: Sequence[str],
    *,
    stdout: int,
    stderr: int,
    deadline: float,
    tick: Callable[[], None] | None = None,
) -> int:
    """Run one command to its end and return its exit code."""
    with Job() as job:
        job.start(command, stdin=None, stdout=stdout, stderr=stderr)
        return job.wait(deadline, tick)[0]


class Said(NamedTuple):
    """What one child wrote, decoded leniently, and its exit code."""

    code: int
    out: str
    err: str


def ask(commands: Sequence[Sequence[str]], deadline: float) -> list[Said]:
    """Run commands side by side and read what they say, at most 1 MiB each; raise OutOfTime."""
    with contextlib.ExitStack() as stack, Job() as job:
        files = [
            (stack.enter_context(_scratch()), stack.enter_context(_scratch())) for _ in commands
        ]
        for command, (out, err) in zip(commands, files, strict=True):
            job.start(command, stdin=None, stdout=out.fileno(), stderr=err.fileno())
        codes = job.wait(deadline)
        return [
            Said(code, _content(out), _content(err))
            for code, (out, err) in zip(codes, files, strict=True)
        ]


def _scratch() -> Any:
    with contextlib.suppress(OSError, AttributeError):
        return owned(os.memfd_create, "opkiln")
    import tempfile

    return tempfile.TemporaryFile()


def _content(file: Any) -> str:
    file.seek(0)
    return str(file.read(2**20).decode("utf-8", "replace"))
