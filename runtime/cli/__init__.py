"""Command-line arguments in, exit status out: the `opkiln` command.

One module per command. Each has `add(subparsers)`, which declares it, and `run(arguments)`, which
returns the exit status and imports what it needs: `opkiln --version` must not wait for NumPy.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import opkiln
from opkiln.runtime.cli import bench, cache, demo, doctor, show
from opkiln.runtime.cli.command import Parser
from opkiln.runtime.cli.console import escaped

COMMANDS = (demo, doctor, show, bench, cache)
FAILED, USAGE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141  # the last two: 128 + the signal
EPILOG = """\
start with:
  opkiln doctor                    is all there that is needed?
  opkiln demo                      what does it do?
  opkiln show FILE.py:FUNC ...     what becomes of my function?
  opkiln COMMAND --help            what can a command do?

exit status: 0 done, 1 failed, 2 wrong arguments, 130 interrupted, 141 nobody reads the output.
Settings are variables of the environment, OPKILN_...; `opkiln doctor` shows those that are set."""


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="opkiln",
        description="Compiles NumPy functions and runs them from a cache.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for module in COMMANDS:
        module.add(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; 0 is success, 1 a failed command, 2 wrong arguments."""
    escaped(sys.stdout)
    try:
        try:
            return _run(argv)
        finally:
            _flush(sys.stdout)  # here, so that a reader that is gone is met below
    except BrokenPipeError:
        _silence()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return _failed("interrupted", INTERRUPTED)
    except OSError as error:  # standard output on a full disk, for one
        _silence()
        return _failed(str(error), FAILED)


def _run(argv: Sequence[str] | None) -> int:
    parser = _parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:  # by the command's own parser, so that its usage shows, not that of `opkiln`
        of = getattr(arguments, "parser", parser)
        of.error(f"unrecognized arguments: {' '.join(unknown)}")
    if arguments.version:
        print(f"opkiln {opkiln.__version__}")
        return 0
    if not hasattr(arguments, "run"):
        parser.print_help()
        return USAGE
    from opkiln.runtime.errors import OpkilnError, UsageError

    try:
        with _plain_warnings():
            return int(arguments.run(arguments))
    except UsageError as error:
        return _failed(str(error), USAGE)
    except OpkilnError as error:
        return _failed(f"{type(error).__name__}: {error}", FAILED)


@contextmanager
def _plain_warnings() -> Generator[None]:
    """Our warnings as one line; which line of ours gives them says nothing to a user."""
    import warnings

    from opkiln.runtime.errors import OpkilnWarning

    usual = warnings.formatwarning

    def formatted(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> str:
        if issubclass(category, OpkilnWarning):
            return f"opkiln: warning: {str(message).removeprefix('opkiln: ')}\n"
        return usual(message, category, *where, **more)

    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = usual


def _failed(text: str, status: int) -> int:
    print(f"opkiln: {text}", file=sys.stderr)
    return status


def _flush(stream: TextIO | None) -> None:
    if stream is not None:  # None: the caller has closed it
        stream.flush()


def _silence() -> None:
    """Let what cannot be written go nowhere, or the interpreter complains of it when it ends."""
    try:
        _flush(sys.stdout)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
