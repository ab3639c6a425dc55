"""What every command has in common: how it is declared, and how its help is laid out."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

_NAME_A_FILE = "name a file in a directory that exists and may be written"


class Subparsers(Protocol):
    """What `add` of a command module gets: argparse's `add_subparsers()`."""

    def add_parser(self, name: str, **kwargs: Any) -> argparse.ArgumentParser:
        """Make the parser of one command."""
        ...


class Parser(argparse.ArgumentParser):
    """argparse's own, but help that cannot be written is an error and not lost."""

    def print_help(self, file: Any = None) -> None:
        """Write the help to standard output."""
        print(self.format_help(), end="", file=file or sys.stdout)


def command(
    subparsers: Subparsers,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    summary: str,
    text: str,
    examples: str = "",
) -> argparse.ArgumentParser:
    """A command with the options that all share: `summary` in the list, `text` in its own help."""
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=text,
        epilog=f"examples:\n{examples}" if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--plain", action="store_true", help="plain text even on a terminal")
    parser.set_defaults(run=run, parser=parser)
    return parser


def write(path: str, data: bytes, option: str) -> None:
    """Write a file that an option names.

    Raises:
        UsageError: it cannot be written.
    """
    from opkiln.runtime.errors import UsageError

    try:
        with open(path, "wb") as file:  # noqa: PTH123 - a start must not wait for pathlib
            file.write(data)
    except OSError as error:
        raise UsageError(
            f"{option} {path}: cannot be written ({error.strerror})", fix=_NAME_A_FILE
        ) from None


def writable(path: str, option: str) -> None:
    """Refuse a file that could not be written, before the work for it is done.

    Raises:
        UsageError: its directory does not exist or may not be written, or it is a directory.
    """
    from opkiln.runtime.errors import UsageError

    folder = os.path.dirname(path) or "."  # noqa: PTH120
    if os.path.isdir(path) or not os.access(folder, os.W_OK):  # noqa: PTH112
        raise UsageError(f"{option} {path}: cannot be written", fix=_NAME_A_FILE)
