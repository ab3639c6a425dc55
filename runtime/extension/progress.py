"""What a build shows: in go the log and the number of steps, out come lines on the terminal."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Any

from opkiln.runtime.jit import build

if TYPE_CHECKING:
    from types import TracebackType

_DONE = re.compile(rb"^\[(\d+)/\d+\]", re.MULTILINE)
_QUIET = 1.0  # seconds for which a build says nothing


class Progress:
    """A context manager around a build; says nothing where nobody looks."""

    def __init__(self, name: str, steps: int, log: str) -> None:
        """Show `steps` commands, of which ninja's log tells how many are done."""
        self._name = name
        self._steps = steps
        self._log = log
        self._start = time.monotonic()
        self._bar: Any = None
        self._said = False

    def __enter__(self) -> Progress:
        """Begin."""
        return self

    def update(self) -> None:
        """Show where the build is; called some ten times a second."""
        if not sys.stderr or not sys.stderr.isatty():
            return
        if not self._said and time.monotonic() - self._start >= _QUIET:
            self._said = True
            self._bar = _rich(self._name, self._steps)
            if self._bar is None:
                print(f"opkiln: building {self._name} ({self._steps} steps)", file=sys.stderr)
        if self._bar is not None:
            done = [int(at) for at in _DONE.findall(build.head(self._log, 2**20))]
            self._bar.update(0, completed=max(done, default=0))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End, and leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()


def _rich(name: str, steps: int) -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    except ImportError:
        return None
    columns = (TextColumn("building {task.description}"), BarColumn(), MofNCompleteColumn())
    shown = Progress(*columns, console=Console(stderr=True), transient=True)
    shown.add_task(name, total=steps)
    shown.start()
    return shown
