"""`opkiln bench`: cached calls against uncached ones, NumPy, and the installed peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opkiln.runtime.cli.command import command

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from opkiln.runtime.cli.cases import Outcome
    from opkiln.runtime.cli.command import Subparsers
    from opkiln.runtime.cli.console import Cell, Console

TEXT = """\
Times six formulas in float32 on one thread: NumPy, opkiln with its kernel cached, with out= as
well, with nothing in memory (uncached: trace, lower, print and load again), and whichever of
numexpr, numba, jax and torch are installed.

Every result is compared with NumPy's in float64 before anything is timed. All ways of a formula
are timed in turns, and a ratio is the median of the ratios of each round, so that a busy machine
spoils times rather than ratios."""
EXAMPLES = """\
  opkiln bench --quick
  opkiln bench --png speed.png --json speed.json
  opkiln bench --no-peers"""


def add(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = command(
        subparsers,
        "bench",
        run,
        summary="time cached calls against uncached ones, NumPy and other libraries",
        text=TEXT,
        examples=EXAMPLES,
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter samples")
    parser.add_argument("--no-peers", action="store_true", help="only NumPy to compare with")
    parser.add_argument("--json", metavar="FILE", help="write every sample; - is the output")
    parser.add_argument("--png", metavar="FILE", help="write a chart of the ratios (matplotlib)")


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    import os

    from opkiln.runtime.cli.cases import CASES, machine, measure, steps
    from opkiln.runtime.cli.command import writable
    from opkiln.runtime.cli.console import Console
    from opkiln.runtime.cli.peers import installed
    from opkiln.runtime.cli.timing import interruptible

    if arguments.png is not None:
        from opkiln.runtime.cli.chart import require_matplotlib

        require_matplotlib()  # before a minute of work, not after it
        writable(arguments.png, "--png")
    only_json = arguments.json == "-"
    if arguments.json is not None and not only_json:
        writable(arguments.json, "--json")
    console = Console(plain=arguments.plain)
    peers = () if arguments.no_peers else installed()
    rounds, seconds = (5, 0.01) if arguments.quick else (11, 0.05)
    facts, load = machine(), os.getloadavg()[0]
    if not only_json:
        _banner(facts, load, console)
    with interruptible() as check, console.progress(steps(CASES, peers, rounds)) as tell:

        def now(text: str) -> None:
            check()
            tell(text)

        outcomes = [measure(case, peers, rounds, seconds, now) for case in CASES]
    facts["load"] = [round(load, 2), round(os.getloadavg()[0], 2)]
    if not only_json:
        _tables(outcomes, peers, console)
    _save(arguments, facts, outcomes, console)
    wrong = [r for o in outcomes for r in o.results if r.note and r.name.startswith("opkiln")]
    return 1 if wrong else 0


def _banner(facts: dict[str, Any], load: float, console: Console) -> None:
    names = ", ".join(f"{k} {v}" for k, v in facts.items() if k not in {"machine", "cpus"})
    console.line(f"{facts['machine']}, {facts['cpus']} CPU(s), load {load:.1f}; {names}")
    if load > facts["cpus"] / 2:
        console.line("The machine is busy: trust the ratios rather than the times.", "warn")


def _tables(outcomes: Sequence[Outcome], peers: Sequence[str], console: Console) -> None:
    from opkiln.runtime.cli.cases import BASE

    console.title("Median time of one call; uncached is with nothing in memory")
    rows: list[list[str | Cell]] = []
    for outcome in outcomes:
        ways = (BASE, "opkiln", "opkiln out=", "opkiln uncached")
        saved = _ratio(outcome.ratio("opkiln uncached", "opkiln"))
        rows.append([outcome.case.title, *(_time(outcome, name) for name in ways), saved])
    console.table(["float32", BASE, "opkiln", "with out=", "uncached", "uncached / cached"], rows)
    console.title(f"Ratio to {BASE} (below 1 is faster)")
    rows = []
    for outcome in outcomes:
        ours = (_coloured(outcome.ratio(name)) for name in ("opkiln", "opkiln out="))
        rows.append([outcome.case.title, *ours, *(_ratio(outcome.ratio(p)) for p in peers)])
    console.table(["float32", "opkiln", "with out=", *peers], rows)
    for outcome in outcomes:
        for result in outcome.results:
            if result.note:
                console.line(f"{outcome.case.title}: {result.name}: {result.note}", "warn")


def _time(outcome: Outcome, name: str) -> str:
    from opkiln.runtime.cli.timing import duration

    result = outcome.get(name)
    return "-" if result is None or result.timing is None else duration(result.timing.seconds)


def _ratio(ratio: float | None) -> str:
    from opkiln.runtime.cli.timing import times

    return "-" if ratio is None else times(ratio)


def _coloured(ratio: float | None) -> Cell:
    from opkiln.runtime.cli.console import Cell

    return Cell(_ratio(ratio), "dim" if ratio is None else "good" if ratio <= 1 else "warn")


def _save(
    arguments: argparse.Namespace,
    facts: dict[str, Any],
    outcomes: Sequence[Outcome],
    console: Console,
) -> None:
    import json

    from opkiln.runtime.cli.command import write

    if arguments.json is not None:
        text = json.dumps(_document(facts, outcomes), indent=2) + "\n"
        if arguments.json == "-":
            print(text, end="")
        else:
            write(arguments.json, text.encode(), "--json")
            console.line(f"wrote {arguments.json}")
    if arguments.png is not None:
        from opkiln.runtime.cli.chart import chart

        write(arguments.png, chart(outcomes, facts), "--png")
        if arguments.json != "-":
            console.line(f"wrote {arguments.png}")


def _document(facts: dict[str, Any], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        **facts,
        "cases": [
            {
                "title": outcome.case.title,
                "formula": list(outcome.case.formula.text),
                "shape": list(outcome.case.shape),
                "dtype": "float32",
                "ways": [
                    {
                        "name": result.name,
                        "error": result.error,
                        "note": result.note,
                        "seconds": result.timing.seconds if result.timing else None,
                        "ratio to NumPy": outcome.ratio(result.name),
                        "samples": list(result.timing.samples) if result.timing else [],
                    }
                    for result in outcome.results
                ],
            }
            for outcome in outcomes
        ],
    }
