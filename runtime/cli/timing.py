"""Statements in, seconds and ratios out: calls timed in turns, so that noise hits all alike."""

from __future__ import annotations

import contextlib
import signal
import timeit
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import FrameType
from typing import Any

ROUNDS = 9


@contextlib.contextmanager
def interruptible() -> Generator[Callable[[], None]]:
    """Yields what raises KeyboardInterrupt if Ctrl-C has come; to be called between steps.

    Callbacks from C code lose exceptions, and those of jax and numba run at any time.
    """
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.default_int_handler(number, frame)

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    try:
        usual = signal.getsignal(signal.SIGINT)
        if usual is signal.default_int_handler:  # not where someone else has decided
            signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread, which alone gets signals
        yield check
        return
    try:
        yield check
        check()
    finally:
        signal.signal(signal.SIGINT, usual)


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
        """The median."""
        return median(self.samples)

    def ratio(self, base: Timing) -> float:
        """Median of the per-round ratios: a slow moment of the machine hits both sides."""
        return median(a / b for a, b in zip(self.samples, base.samples, strict=True))


def in_turns(
    ways: Sequence[Way],
    rounds: int = ROUNDS,
    seconds: float = 0.02,
    each_round: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = timeit.default_timer,
) -> dict[str, Timing]:
    """Times every way once a round; a sample is a loop of about `seconds`."""
    timers = [timeit.Timer(way.statement, timer=clock, globals=dict(way.names)) for way in ways]
    loops: list[int] = []
    for timer in timers:
        timer.timeit(3)  # builds, fills caches
        n = 1
        while (taken := timer.timeit(n)) < seconds / 4 and n < 10_000_000:
            n *= 4
        loops.append(max(1, round(n * seconds / max(taken, 1e-9))))
    samples: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        each_round()
        for timer, n, own in zip(timers, loops, samples, strict=True):
            own.append(timer.timeit(n) / n)
    return {way.name: Timing(tuple(own)) for way, own in zip(ways, samples, strict=True)}


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, scale in (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def times(ratio: float) -> str:
    """A ratio as people read it."""
    return f"{ratio:.2f}x" if ratio < 9.995 else f"{ratio:,.0f}x"
