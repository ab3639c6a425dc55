"""Command-line arguments in, exit status out: the `opkiln` command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def _version() -> str:
    import importlib.metadata

    return f"opkiln {importlib.metadata.version('opkiln')}"


def _demo(arguments: argparse.Namespace) -> int:
    from opkiln.runtime.demo import run

    return run(plain=arguments.plain)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="opkiln", description="Compiles NumPy functions and runs them from a cache."
    )
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="compile three functions, check them against NumPy, and time them",
        description="Compiles three functions over 1,797 handwritten digits, checks each against "
        "NumPy, and times a NumPy call, an uncached call, a cached call and one with out=.",
    )
    demo.add_argument("--plain", action="store_true", help="plain text even on a terminal")
    demo.set_defaults(run=_demo)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; 0 is success, 1 a failed command, 2 wrong arguments."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.version:
        print(_version())
        return 0
    if not hasattr(arguments, "run"):
        parser.print_help()
        return 2
    from opkiln.runtime.errors import OpkilnError

    try:
        return int(arguments.run(arguments))
    except OpkilnError as error:
        parser.exit(1, f"opkiln: {type(error).__name__}: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "opkiln: interrupted\n")
    except BrokenPipeError:
        return 1
