"""Text in; on a terminal colours, boxes and a progress bar out, in a pipe plain aligned lines.

A terminal gets the pretty form if rich is installed and TERM is not "dumb"; rich itself honours
NO_COLOR and draws boxes with ASCII where the encoding has no lines. Nothing is ever cut: long cells
are folded on a terminal and printed whole in a pipe.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

# What a text means, and how rich shows it; in a pipe the words alone have to say it.
STYLES = {
    "": "",
    "title": "bold",
    "good": "green",
    "bad": "bold red",
    "warn": "yellow",
    "dim": "dim",
}
FOLDED = 16  # columns that a column which is folded needs to be read


class Cell(NamedTuple):
    """A text of a table with one of STYLES."""

    text: str
    style: str = ""


def is_terminal(stream: TextIO | None) -> bool:
    """Whether the stream is a screen that understands control sequences; None if closed."""
    dumb = os.environ.get("TERM", "") in {"dumb", "unknown"}
    return stream is not None and not stream.closed and stream.isatty() and not dumb


def _rich(stream: TextIO, plain: bool) -> RichConsole | None:
    if plain or not is_terminal(stream):
        return None
    try:
        from rich.console import Console as RichConsole
    except ImportError:
        return None
    console = RichConsole(file=stream, highlight=False, markup=False, emoji=False)
    return console if console.width > 0 else None  # COLUMNS=0: rich would print nothing


class Console:
    """Standard output for one command."""

    def __init__(self, *, plain: bool = False) -> None:
        self.plain = plain
        self.rich = _rich(sys.stdout, plain)

    def line(self, text: str = "", style: str = "") -> None:
        """One or more lines of text."""
        if self.rich is None:
            print(text)
        else:
            self.rich.print(text, style=STYLES[style] or None, soft_wrap=True)

    def title(self, text: str) -> None:
        """A heading, with an empty line before it."""
        self.line()
        self.line(text, "title")

    def item(self, mark: str, style: str, name: str, text: str) -> None:
        """A line of a list: a mark, a name and a text that wraps under itself on a terminal."""
        # A screen that is too narrow gets the plain line, which it folds itself: nothing is cut.
        if self.rich is None or len(name) + 8 + FOLDED > self.rich.width:
            indent = "\n" + " " * (len(name) + 8)
            self.line(f"  {mark:<2}  {name}  {indent.join(text.splitlines())}".rstrip())
            return
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=4)
        grid.add_column(width=len(name))
        grid.add_column(overflow="fold")
        grid.add_row(Text(f"  {mark}", STYLES[style]), Text(name), Text(text))
        self.rich.print(grid)

    def code(self, text: str, language: str) -> None:
        """Source text, with its own line ends; `language` is a name of Pygments or empty."""
        if self.rich is None:
            print(text.rstrip("\n"))
            return
        from rich.syntax import Syntax
        from rich.text import Text

        shown = Text(text)
        if language:
            look = Syntax(text, language, theme="ansi_dark", background_color="default")
            shown = look.highlight(text)
        shown.rstrip()
        self.rich.print(shown, soft_wrap=True)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str | Cell]]) -> None:
        """Rows under a header; the first column is text, the others are aligned to the right."""
        cells = [[c if isinstance(c, Cell) else Cell(c) for c in row] for row in rows]
        wide = [
            max(len(name), *(len(c.text) for c in column))
            for name, *column in zip(header, *cells, strict=True)
        ]
        # A screen that is too narrow folds the first column, or else whole lines: nothing is cut.
        if self.rich is None or sum(wide[1:]) + 2 * len(wide) + FOLDED > self.rich.width:
            for line in aligned([header, *([c.text for c in row] for row in cells)]):
                self.line(line)
            return
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        pretty = Table(box=SIMPLE_HEAD, pad_edge=False)
        for i, name in enumerate(header):
            column = Text(name)
            if i:
                pretty.add_column(column, justify="right", no_wrap=True)
            else:
                pretty.add_column(column, overflow="fold")
        for row in cells:
            pretty.add_row(*(Text(c.text, style=STYLES[c.style]) for c in row))
        self.rich.print(pretty)

    @contextmanager
    def progress(self, total: int) -> Generator[Callable[[str], None]]:
        """A bar on standard error while the block runs; call what it yields before each step."""
        rich = _rich(sys.stderr, self.plain)
        if rich is not None:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
            with Progress(*columns, console=rich, transient=True) as bar:
                task, done = bar.add_task("", total=total), count()
                yield lambda text: bar.update(task, completed=next(done), description=text)
        elif is_terminal(sys.stderr) and not self.plain:
            try:
                yield lambda text: _overwrite(text + " ...")
            finally:
                _overwrite("")
        else:
            yield lambda text: None


def _overwrite(text: str) -> None:
    print(f"\r\x1b[K{text}", end="", flush=True, file=sys.stderr)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def escaped(stream: Any) -> None:
    """Let a stream write what its encoding lacks as escapes: a name is never lost, nor an error."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
