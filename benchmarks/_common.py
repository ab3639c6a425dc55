"""Shared by the benchmarks; the timing itself is that of `opkiln bench` (runtime/cli/timing.py)."""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from opkiln.runtime.cli.console import aligned
from opkiln.runtime.cli.timing import ROUNDS, Timing, Way, duration, in_turns

__all__ = [
    "FLAGS",
    "ROUNDS",
    "Timing",
    "Way",
    "arguments",
    "banner",
    "compiler",
    "duration",
    "folder",
    "fresh_process",
    "goals",
    "have",
    "in_turns",
    "reference",
    "resident",
    "seconds_of",
    "table",
]
HERE = Path(__file__).resolve().parent
# One thread for each call, as the peers have it; threads.py asks for more. Read at first need.
os.environ.setdefault("OPKILN_NUM_THREADS", "1")
# Of native/reference.cpp, as its head says.
FLAGS = "-O3 -march=native -fno-math-errno -ffp-contract=off -fopenmp-simd -shared -fPIC"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = aligned([header, *rows])
    print(lines[0], "-" * max(map(len, lines)), *lines[1:], sep="\n")


def goals(rows: Sequence[tuple[str, float, float, str]]) -> None:
    """Prints (what, measured, goal, "<=" or ">=") lines and whether each holds in this run."""
    for what, measured, goal, sense in rows:
        holds = measured <= goal if sense == "<=" else measured >= goal
        print(f"{'holds' if holds else 'MISSED'}: {what}: {measured:.3g} (goal {sense} {goal:g})")


def have(module: str) -> bool:
    return find_spec(module) is not None


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


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def compiler() -> str:
    """The C++ compiler that opkiln would take, for the work timed beside it."""
    command = os.environ.get("OPKILN_CXX") or os.environ.get("CXX") or "g++"
    if shutil.which(command.split()[0]) is None:
        sys.exit(f"this benchmark needs a C++ compiler; {command!r} was not found")
    return command


def reference(work: Path) -> ctypes.CDLL:
    """The loops by hand, compiled into the folder."""
    library = work / "reference.so"
    source = HERE / "native" / "reference.cpp"
    command = [*shlex.split(compiler()), *FLAGS.split(), "-o", str(library), str(source), "-lmvec"]
    seconds_of(command)
    return ctypes.CDLL(str(library))


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
