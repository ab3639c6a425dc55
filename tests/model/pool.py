"""The executor pool of one key and one thread in plain Python, from the text of SEMANTICS 5."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


class NoExecutor(TimeoutError):
    """Step e ran out of time; here all waits have none, so the event must be done at once."""


class KernelFailed(RuntimeError):
    """A kernel failed: device code has run, and the executor is not to be used again."""


@dataclass(frozen=True)
class Flight:
    executor: int
    due: int | None  # None: never
    doomed: bool  # freed when done


@dataclass
class PoolModel:
    lags: Sequence[int]  # by stream; negative: never done
    limit: int = 10
    hard_cap: int = 64
    grow: bool = False  # and the streams are limited in their queue
    now: list[int] = field(init=False)  # by stream
    home: list[int] = field(default_factory=list)  # the stream of each executor ever made
    idle: list[int] = field(default_factory=list)  # newest last
    in_flight: list[Flight] = field(default_factory=list)  # in the order of their records
    leased: list[int] = field(default_factory=list)
    broken: set[int] = field(default_factory=set)  # leased, a kernel has failed
    launched: set[int] = field(default_factory=set)  # leased, all kernels have run
    building: int = 0  # these count as leased
    waits: int = 0
    grew: int = 0

    def __post_init__(self) -> None:
        self.now = [0] * len(self.lags)

    @property
    def live(self) -> int:
        return len(self.idle) + len(self.leased) + self.building + len(self.in_flight)

    def is_done(self, flight: Flight) -> bool:
        return flight.due is not None and flight.due <= self.now[self.home[flight.executor]]

    def _finished(self) -> int | None:
        """Step b: the oldest that is done; past an unfinished one only on other streams."""
        blocked: set[int] = set()
        for flight in list(self.in_flight):
            stream = self.home[flight.executor]
            if stream in blocked:
                continue
            if not self.is_done(flight):
                blocked.add(stream)
                continue
            self.in_flight.remove(flight)
            if not flight.doomed:
                return flight.executor
        return None

    @contextmanager
    def _being_built(self) -> Iterator[None]:
        self.building += 1
        try:
            yield
        finally:
            self.building -= 1

    def acquire(
        self, stream: int, build: Callable[[], object], on_wait: Callable[[], object]
    ) -> int:
        while True:
            found = self.idle.pop() if self.idle else self._finished()  # a, b
            if found is not None:
                self.leased.append(found)
                return found
            below = self.live < self.limit  # c
            # d, and where everything is leased further up this thread's stack
            further = self.live < self.hard_cap and (self.grow or not self.in_flight)
            if below or further:
                self.grew += not below
                with self._being_built():
                    build()
                made = len(self.home)
                self.home.append(stream)
                self.leased.append(made)
                return made
            if not self.in_flight:
                raise NoExecutor
            oldest = self.in_flight[0]  # e
            self.waits += 1
            on_wait()
            if not self.is_done(oldest):
                raise NoExecutor

    def run(self, executor: int, fail: bool) -> None:
        if fail:
            self.broken.add(executor)
            raise KernelFailed
        self.launched.add(executor)

    def _give_back(self, executor: int) -> None:
        """Step f, also after an exception: what was launched is still waited for."""
        self.leased.remove(executor)
        doomed = executor in self.broken
        ran = doomed or executor in self.launched
        self.broken.discard(executor)
        self.launched.discard(executor)
        stream = self.home[executor]
        lag = self.lags[stream]
        if ran and lag != 0:
            due = None if lag < 0 else self.now[stream] + lag
            self.in_flight.append(Flight(executor, due, doomed))
        elif not doomed:
            self.idle.append(executor)

    release = drop = _give_back

    def advance(self, stream: int, ticks: int) -> None:
        self.now[stream] += ticks

    def trim(self) -> int:
        before = self.live
        while (executor := self._finished()) is not None:
            self.idle.append(executor)
        self.idle.clear()
        return before - self.live

    def state(self) -> tuple[list[int], int, list[int]]:
        in_flight = [flight.executor for flight in self.in_flight]
        return self.idle[:], len(self.leased) + self.building, in_flight

    def shape(self) -> object:
        """What decides all that follows: the state up to the executors' numbers."""
        left = [
            (self.home[f.executor], f.due and max(0, f.due - self.now[self.home[f.executor]]),
             f.due is None, f.doomed)
            for f in self.in_flight
        ]  # fmt: skip
        return (
            tuple(self.home[e] for e in self.idle),
            tuple(self.home[e] for e in self.leased),
            tuple(left),
        )
