"""`opkiln demo`: three functions compiled, checked against NumPy and timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opkiln.runtime.cli.command import command

if TYPE_CHECKING:
    import argparse

    from opkiln.runtime.cli.command import Subparsers


def add(subparsers: Subparsers) -> None:
    """Declare the command."""
    command(
        subparsers,
        "demo",
        run,
        summary="compile three functions, check them against NumPy, and time them",
        text="Compiles three functions over 1,797 handwritten digits, checks each against NumPy,\n"
        "and times a NumPy call, an uncached call, a cached call and one with out=.",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from opkiln.runtime.cli.console import Console
    from opkiln.runtime.cli.digits import show

    return show(Console(plain=arguments.plain))
