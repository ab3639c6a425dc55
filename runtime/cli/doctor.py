"""`opkiln doctor`: whether kernels can be built here, what was found, how to mend what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opkiln.runtime.cli.command import command

if TYPE_CHECKING:
    import argparse

    from opkiln.runtime.cli.command import Subparsers
    from opkiln.runtime.cli.console import Console
    from opkiln.runtime.cli.probes import Check

TEXT = """\
Looks at versions, settings, compiler, flags, CPU, cache and CUDA, then builds a kernel and runs it.

The exit status is 0 if kernels can be built and kept; otherwise it is 1, and a line for each
problem says how to mend it."""
EXAMPLES = """\
  opkiln doctor
  OPKILN_CXX=clang++ opkiln doctor
  opkiln doctor --toolchain               why this compiler, why this CUDA
  opkiln doctor --json > report.json      for a bug report"""


_NEED_A_COMPILER = ("build", "C++ library")


def add(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = command(
        subparsers,
        "doctor",
        run,
        summary="check that kernels can be built here, and say what to mend",
        text=TEXT,
        examples=EXAMPLES,
    )
    parser.add_argument("--json", action="store_true", help="the findings as JSON")
    parser.add_argument(
        "--toolchain",
        action="store_true",
        help="each place where a compiler, CUDA and cuDNN were looked for, and why it won or lost",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from opkiln.runtime.cli import probes, tools
    from opkiln.runtime.cli.console import Console

    console = Console(plain=arguments.plain)
    found: list[Check] = []
    every = list(tools.every_check() if arguments.toolchain else probes.every_check())
    with console.progress(len(every)) as now:
        for section, probe in every:
            now(section)
            states = {(check.section, check.state) for check in found}
            if section in _NEED_A_COMPILER and ("compiler", probes.PROBLEM) in states:
                continue  # it would say the same again
            # One cause may show in several probes.
            told = {check.text for check in found}
            found += [c for c in probes.run(probe, section) if c.text not in told]
            if any(check.name == probes.UNREADABLE for check in found):
                break  # every other probe would meet the same setting
    problems = [check for check in found if check.state == probes.PROBLEM]
    if arguments.json:
        _json(found, not problems)
    else:
        what = "C++ sources" if arguments.toolchain else "Kernels"
        _report(found, problems, console, f"{what} can be built here.")
    return 1 if problems else 0


def _json(found: list[Check], well: bool) -> None:
    import json
    from dataclasses import asdict

    print(json.dumps({"ok": well, "checks": [asdict(check) for check in found]}, indent=2))


def _report(found: list[Check], problems: list[Check], console: Console, well: str) -> None:
    wide = max(len(check.name) for check in found)
    section = ""
    for check in found:
        if check.section != section:
            section = check.section
            console.title(section)
        _line(check, wide, console)
    console.line()
    if not problems:
        console.line(well, "good")
        return
    count = f"{len(problems)} problem{'s' * (len(problems) != 1)}"
    console.line(f"{count}:", "bad")
    for check in problems:
        _line(check, 0, console)


def _line(check: Check, wide: int, console: Console) -> None:
    from opkiln.runtime.cli.probes import NOTE, OK

    mark, style = {OK: ("ok", "good"), NOTE: ("-", "dim")}.get(check.state, ("!!", "bad"))
    console.item(mark, style, check.name.ljust(wide), check.text)
    if check.fix:
        console.item("", "", " " * wide, f"how to fix: {check.fix}")
