"""Shared by the benchmarks: calls timed in turns, ratios within each round, one plain table."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
ROUNDS = 9


@dataclass(frozen=True)
class Way:
    """A statement to time, and the names that it uses."""

    name: str
    statement: str
    names: Mapping[str, Any]


@dataclass(frozen=True)
class Timing:
    """Seconds per call, one sample a round."""

    samples: tuple[float, ...]

    @property
    def seconds(self) -> float:
        return median(self.samples)

    def ratio(self, base: Timing) -> float:
        """Median of the per-round ratios: a slow moment of the machine hits both sides."""
        return median(a / b for a, b in zip(self.samples, base.samples, strict=True))


def in_turns(ways: Sequence[Way], rounds: int = ROUNDS, seconds: float = 0.02) -> dict[str, Timing]:
    """Times every way once a round; a sample is a loop of about `seconds`."""
    timers = [timeit.Timer(way.statement, globals=dict(way.names)) for way in ways]
    loops: list[int] = []
    for timer in timers:
        timer.timeit(3)  # builds, fills caches
        n = 1
        while (taken := timer.timeit(n)) < seconds / 4 and n < 10_000_000:
            n *= 4
        loops.append(max(1, round(n * seconds / max(taken, 1e-9))))
    samples: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for timer, n, own in zip(timers, loops, samples, strict=True):
            own.append(timer.timeit(n) / n)
    return {way.name: Timing(tuple(own)) for way, own in zip(ways, samples, strict=True)}


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    every = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in every) for i in range(len(header))]
    for number, row in enumerate(every):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


def goals(rows: Sequence[tuple[str, float, float, str]]) -> None:
    """Prints (what, measured, goal, "<=" or ">=") lines and whether each holds in this run."""
    for what, measured, goal, sense in rows:
        holds = measured <= goal if sense == "<=" else measured >= goal
        print(f"{'holds' if holds else 'MISSED'}: {what}: {measured:.3g} (goal {sense} {goal:g})")


def have(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def duration(seconds: float) -> str:
    for unit, scale in (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3)):
        if seconds < 1000 * scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds:.3g} s"


def arguments(description: str | None, **flags: str) -> argparse.Namespace:
    """The options that all scripts share, and further on/off `flags` with their help."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="samples of each way")
    for name, text in flags.items():
        parser.add_argument("--" + name.replace("_", "-"), action="store_true", help=text)
    parsed = parser.parse_args()
    if parsed.rounds < 7:
        parser.error("at least 7 rounds, or medians mean little")
    return parsed


def banner(question: str) -> None:
    import numpy as np

    print(question)
    print(
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} CPU(s), "
        f"Python {platform.python_version()}, NumPy {np.__version__}, load {os.getloadavg()[0]:.1f}"
    )


def compiler() -> str:
    """The C++ compiler that opkiln would take, for the work timed beside it."""
    command = os.environ.get("OPKILN_CXX") or os.environ.get("CXX") or "g++"
    if shutil.which(command.split()[0]) is None:
        sys.exit(f"this benchmark needs a C++ compiler; {command!r} was not found")
    return command


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="opkiln-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def fresh_process(code: str, cache: Path, *argv: str, prefix: Sequence[str] = ()) -> str:
    """Runs the code in a new interpreter with the given artifact cache; returns what it printed.

    The first such run writes the byte code of what it imports; do not time it.
    """
    environment = {**os.environ, "OPKILN_CACHE_DIR": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [*prefix, sys.executable, "-c", code, *argv]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"a timed process failed:\n{done.stderr}")
    return done.stdout


def seconds_of(command: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - start
