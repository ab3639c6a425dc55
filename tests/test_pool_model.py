"""The native executor pool against a model of SEMANTICS 5: exhaustively for small counts, and by
hypothesis. Invariants of SEMANTICS 5 and O3, O5, O6, K13."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.model.pool import KernelFailed, NoExecutor, PoolModel

from opkiln import native
from opkiln.runtime import errors

# ("acquire", stream, commands while it is built, commands at its first wait)
# ("finish", which lease, how), ("advance", stream, ticks), ("trim",), ("raise",)
Command: TypeAlias = tuple[Any, ...]
WAYS = ("release", "unused", "after", "before", "kernel 0", "kernel 1")


class Boom(Exception):
    """Raised inside of a build."""


class Side(Protocol):
    def acquire(self, stream: int, build: Any, on_wait: Any) -> int: ...
    def run(self, executor: int, fail: int) -> None: ...
    def release(self, executor: int) -> None: ...
    def drop(self, executor: int) -> None: ...
    def advance(self, stream: int, ticks: int) -> None: ...
    def trim(self) -> int: ...
    def state(self) -> tuple[list[int], int, list[int]]: ...


class Native:
    """The native pool with the model's methods."""

    def __init__(self, lags: list[int], **limits: Any) -> None:
        self.probe = native.PoolProbe(lags, kernels=2, **limits)
        self.waiting: list[Any] = []

    def acquire(self, stream: int, build: Any, on_wait: Any) -> int:
        self.waiting.append(on_wait)
        native.on_wait(on_wait)
        try:
            return self.probe.acquire(0, stream, build)
        except errors.PoolTimeout:
            raise NoExecutor from None
        finally:
            self.waiting.pop()
            native.on_wait(self.waiting[-1] if self.waiting else None)

    def run(self, executor: int, fail: int) -> None:
        try:
            self.probe.run(executor, fail)
        except RuntimeError:
            raise KernelFailed from None

    def release(self, executor: int) -> None:
        self.probe.release(executor)

    def drop(self, executor: int) -> None:
        self.probe.drop(executor)

    def advance(self, stream: int, ticks: int) -> None:
        self.probe.advance(stream, ticks)

    def trim(self) -> int:
        return self.probe.trim()

    def state(self) -> tuple[list[int], int, list[int]]:
        return self.probe.state(0)


class Model:
    """The model with the way in which a kernel fails left out."""

    def __init__(self, lags: list[int], **limits: Any) -> None:
        self.pool = PoolModel(lags, **limits)
        self.acquire, self.release, self.drop = (
            self.pool.acquire, self.pool.release, self.pool.drop)  # fmt: skip
        self.advance, self.trim, self.state = self.pool.advance, self.pool.trim, self.pool.state

    def run(self, executor: int, fail: int) -> None:
        self.pool.run(executor, fail >= 0)


class Actor:
    """One side of the comparison: performs commands and writes down what comes of them."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.leases: list[int] = []
        self.seen: list[Any] = []

    def perform(self, commands: tuple[Command, ...]) -> None:
        for command in commands:
            try:
                self.seen.append(getattr(self, f"do_{command[0]}")(*command[1:]))
            except (NoExecutor, KernelFailed) as error:
                self.seen.append(type(error).__name__)
            self.seen.append(self.side.state())

    def do_acquire(
        self, stream: int, build: tuple[Command, ...] = (), wait: tuple[Command, ...] = ()
    ) -> object:
        left = [wait]

        def on_wait() -> None:
            self.perform(left.pop() if left else ())

        try:
            lease = self.side.acquire(stream, lambda: self.perform(build), on_wait)
        except Boom:
            return "Boom"
        self.leases.append(lease)
        return lease

    def do_finish(self, which: int, how: str) -> None:
        if not self.leases:
            return
        lease = self.leases.pop(which % len(self.leases))
        try:
            if how not in {"unused", "before"}:
                self.side.run(lease, int(how[-1]) if how.startswith("kernel") else -1)
            if how in {"release", "unused"}:
                self.side.release(lease)
                return
        except KernelFailed:
            self.side.drop(lease)
            raise
        self.side.drop(lease)

    def do_advance(self, stream: int, ticks: int) -> None:
        self.side.advance(stream, ticks)

    def do_trim(self) -> int:
        return self.side.trim()

    def do_raise(self) -> None:
        raise Boom


class Pair:
    def __init__(self, lags: list[int], **limits: Any) -> None:
        self.model = Model(lags, **limits)
        self.native = Native(lags, **limits)
        self.actors = Actor(self.model), Actor(self.native)

    def perform(self, *commands: Command) -> None:
        expected, got = self.actors
        for actor in self.actors:
            actor.perform(commands)
        assert got.seen == expected.seen, commands
        for actor in self.actors:
            actor.seen.clear()
        self.check()

    def check(self) -> None:
        pool, counts = self.model.pool, self.native.probe.counts()
        assert counts["built"] == len(pool.home)
        assert counts["executors"] == pool.live
        assert counts["in_flight"] == len(pool.in_flight)
        assert counts["waits"] == pool.waits
        assert counts["grew_past_limit"] == pool.grew
        assert pool.live <= max(pool.limit, pool.hard_cap)

    def finish(self) -> None:
        for stream in range(len(self.model.pool.lags)):
            self.perform(("advance", stream, 1000))
        while self.actors[0].leases:
            self.perform(("finish", 0, "unused"))


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    native.on_wait(None)


# *** exhaustively ***

ADVANCE = tuple(("advance", stream, 1) for stream in (0, 1))
NESTED = (("acquire", 0), ("finish", -1, "release"), ("advance", 0, 2), ("advance", 1, 2))
SMALL: tuple[Command, ...] = (
    ("trim",),
    *ADVANCE,
    *(("acquire", stream, (), wait)
      for stream in (0, 1)
      for wait in ((), ADVANCE, (*ADVANCE, ("trim",)), NESTED)),
    ("acquire", 0, (("raise",),)),
    ("acquire", 1, (("acquire", 0), ("finish", -1, "release"))),
    *(("finish", which, how) for which in (0, -1) for how in ("release", "before", "kernel 1")),
)  # fmt: skip


@pytest.mark.parametrize("grow", [False, True])
def test_every_small_state(grow: bool) -> None:
    """Limit 2, hard cap 3, two streams of one device: each command in each state there is."""
    limits = {"limit": 2, "hard_cap": 3, "grow": grow}
    lags = [1, 2]
    paths: dict[object, tuple[Command, ...]] = {PoolModel(lags).shape(): ()}
    todo = deque(paths.values())
    while todo:
        path = todo.popleft()
        for command in SMALL:
            pair = Pair(lags, **limits)
            for actor in pair.actors:
                actor.perform(path)
                actor.seen.clear()
            pair.perform(command)
            shape = pair.model.pool.shape()
            if shape not in paths:
                paths[shape] = (*path, command)
                todo.append(paths[shape])
    assert len(paths) > 100
    assert {len(path) for path in paths.values()} >= {0, 1, 2, 3, 4, 5, 6}


# *** by hypothesis ***


def commands(depth: int) -> st.SearchStrategy[Command]:
    streams = st.integers(0, 2)
    inside = st.just(())
    if depth:
        inner = commands(depth - 1)
        within_build = st.one_of(inner, st.just(("raise",)))
        inside = st.lists(within_build, max_size=3).map(tuple)
    acquire = st.tuples(st.just("acquire"), streams, inside, _without_raise(inside))
    return st.one_of(
        acquire,
        acquire,
        st.tuples(st.just("finish"), st.integers(0, 5), st.sampled_from(WAYS)),
        st.tuples(st.just("advance"), streams, st.integers(1, 4)),
        st.just(("trim",)),
    )


def _without_raise(lists: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return lists.map(lambda commands: tuple(c for c in commands if c[0] != "raise"))


class Pools(RuleBasedStateMachine):
    """Calls nested to depth 3, three streams of which one is inline-like and one never ends."""

    @initialize(
        limit=st.integers(1, 4), more=st.integers(0, 4), grow=st.booleans(),
        lags=st.permutations([0, 3, -1]),
    )  # fmt: skip
    def begin(self, limit: int, more: int, grow: bool, lags: list[int]) -> None:
        self.pair = Pair(lags, limit=limit, hard_cap=limit + more, grow=grow)

    @rule(command=commands(3))
    def perform(self, command: Command) -> None:
        self.pair.perform(command)

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "pair"):
            self.pair.check()

    def teardown(self) -> None:
        if hasattr(self, "pair"):
            self.pair.finish()
            del self.pair  # hypothesis keeps the machine; work that never ends would hold up trim()


TestPools = Pools.TestCase
TestPools.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# *** the named cases ***


@pytest.mark.parametrize("lag", [0, 1, 3, 20, -1])
@pytest.mark.parametrize("limit", [1, "lag + 1", 10])
def test_O3_one_call_a_tick(lag: int, limit: int | str) -> None:
    """Waits are exact, executors come in the order of their records, never more than needed."""
    most = min(lag + 1 if lag >= 0 else 10, 10) if limit == "lag + 1" else int(limit)
    pair = Pair([lag], limit=most)
    order: list[int] = []

    def call() -> None:
        # A wait lasts until the oldest is done, and not a tick longer.
        oldest = pair.model.pool.in_flight[:1]
        due = oldest[0].due if oldest else None
        left = 0 if due is None else max(0, due - pair.model.pool.now[0])
        pair.perform(("acquire", 0, (), (("advance", 0, left),)))
        order.extend(pair.actors[0].leases)
        pair.perform(("finish", 0, "release"), ("advance", 0, 1))

    if lag < 0:
        for _ in range(most):
            call()
        pair.perform(("acquire", 0))
        assert pair.model.pool.waits == 1
        assert pair.model.pool.live == most
        return
    for _ in range(100):
        call()
    needed = min(max(lag, 1), most)
    assert pair.native.probe.counts()["built"] == needed
    assert (pair.native.probe.counts()["waits"] == 0) == (lag <= most)
    assert order == list(itertools.islice(itertools.cycle(range(needed)), 100))


def test_K13_a_constant_lag_does_not_double() -> None:
    """Lag 3, 16 calls: the seed held 32768 executors on CUDA, and 16 on a CPU."""
    for grow in (False, True):
        pair = Pair([3], limit=10, grow=grow)
        for _ in range(16):
            pair.perform(("acquire", 0), ("finish", 0, "release"), ("advance", 0, 1))
        assert pair.model.pool.live == 3


def test_nested_calls_get_executors_of_their_own_up_to_the_hard_cap() -> None:
    pair = Pair([0], limit=2, hard_cap=5)
    nested: Command = ("acquire", 0)
    for _ in range(3):
        nested = ("acquire", 0, (nested,))
    pair.perform(nested)
    assert len(set(pair.actors[1].leases)) == 4
    pair.perform(("acquire", 0), ("acquire", 0))
    assert len(set(pair.actors[1].leases)) == 5  # the last one had nothing to wait for
    assert pair.model.pool.waits == 0
    pair.finish()


def test_trim_waits_for_what_is_in_flight() -> None:
    probe = native.PoolProbe([2, -1], timeout_s=60)
    for key in (0, 1):
        lease = probe.acquire(key, 0)
        probe.run(lease)
        probe.release(lease)
    waited: list[int] = []

    def pass_time() -> None:
        waited.append(1)
        probe.advance(0, 2)

    native.on_wait(pass_time)
    assert probe.trim(1) == 1
    assert (len(waited), probe.state(0), probe.state(1)) == (1, ([], 0, [0]), ([], 0, []))
    assert probe.trim() == 1
    assert probe.counts()["executors"] == 0
    assert probe.counts()["bytes"] == 0


def test_trim_leaves_what_is_not_done_in_time() -> None:
    probe = native.PoolProbe([-1], timeout_s=1e-9)
    for _ in range(2):
        lease = probe.acquire(0, 0)
        probe.run(lease)
        probe.release(lease)
    assert probe.trim() == 0
    assert probe.state(0) == ([], 0, [0, 1])


def test_eviction_spares_what_is_leased_in_flight_or_in_use(parallelize: Any) -> None:
    def on_a_table_of_its_own(_: int) -> None:
        probe = native.PoolProbe([0, 5], executors=4)
        busy = probe.acquire(0, 1)
        probe.run(busy)
        probe.release(busy)
        held = probe.acquire(1, 0)
        used = -1
        for _ in range(2):
            used = probe.acquire(2, 0)
            probe.release(used)
        for key in range(3, 40):
            probe.release(probe.acquire(key, 0))
            assert probe.acquire(2, 0) == used  # CLOCK spares it
            probe.release(used)
        assert (probe.state(0), probe.state(1)) == (([], 0, [busy]), ([], 1, []))
        assert probe.counts()["executors"] == 4
        assert probe.counts()["evictions"] == 40 - 4
        probe.release(held)

    parallelize(on_a_table_of_its_own, 1)
