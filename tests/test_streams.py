"""Devices, asynchronous streams and events: order, dependencies, life, misuse, fork and exit."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.gates import eventually, held

import opkiln as ok
from opkiln import errors, native

X = np.linspace(0, 1, 1000).astype(np.float32)


@ok.compile
def f(x: Any, y: Any) -> Any:
    return np.tanh(x * y) + x


def expected(x: Any, y: Any) -> Any:
    with ok.Stream.inline():
        return f(x, y)


@pytest.fixture
def stream() -> Iterator[ok.Stream]:
    made = ok.Stream("cpu")
    yield made
    made.close()


# ---- devices ----


def test_device() -> None:
    assert ok.Device("cpu") == ok.Device(ok.Device("cpu:0")) != ok.Device("cuda")
    assert {ok.Device("cuda"): 1}[ok.Device("cuda:0")] == 1
    cuda = ok.Device("cuda:3")
    assert (cuda.kind, cuda.index, str(cuda), repr(cuda)) == (
        "cuda", 3, "cuda:3", "Device('cuda:3')",
    )  # fmt: skip
    assert pickle.loads(pickle.dumps(cuda)) == copy.copy(cuda) == cuda
    with pytest.raises(AttributeError, match="frozen"):
        cuda.index = 4
    assert cuda != "cuda:3"


@pytest.mark.parametrize(
    "name", ["", "tpu", "cpu:1", "cuda:", "cuda:x", "cuda:1000", "CPU", 0, None]
)
def test_device_that_does_not_exist(name: Any) -> None:
    with pytest.raises(errors.ArgumentError, match=r"expected 'cpu' or 'cuda:N', got"):
        ok.Device(name)
    with pytest.raises(errors.ArgumentError, match=r"expected 'cpu' or 'cuda:N', got"):
        ok.Stream(name)


def test_streams_of_other_devices_are_not_there_yet() -> None:
    with pytest.raises(errors.NotYet, match=r"streams of cuda:1 are not built yet"):
        ok.Stream(ok.Device("cuda:1"))


# ---- the stream of a context ----


def test_blocks_nest_and_end_by_exceptions(stream: ok.Stream) -> None:
    assert ok.Stream.current() == ok.Stream.inline()
    with stream as same, pytest.raises(KeyError):
        assert same is stream
        assert ok.Stream.current() is stream
        with stream, ok.Stream.inline():
            assert isinstance(f(X, X), np.ndarray)
        with ok.Stream() as other:
            assert ok.Stream.current() is other
            raise KeyError
    assert ok.Stream.current() == ok.Stream.inline()
    assert isinstance(f(X, X), np.ndarray)


def test_a_block_is_of_its_context(stream: ok.Stream) -> None:
    seen: list[Any] = []
    with stream:
        thread = threading.Thread(target=lambda: seen.append(ok.Stream.current()))
        thread.start()
        thread.join()
        inside = contextvars.copy_context()
    assert seen == [ok.Stream.inline()]  # a new thread has a new context
    assert inside.run(ok.Stream.current) is stream  # which outlives the block
    assert isinstance(inside.run(f, X, X), ok.Future)
    assert isinstance(f(X, X), np.ndarray)


def test_a_block_is_of_its_task(stream: ok.Stream) -> None:
    async def queued() -> Any:
        with stream:
            await asyncio.sleep(0)
            return f(X, X)

    async def inline() -> Any:
        await asyncio.sleep(0)
        return f(X, X)

    async def child() -> Any:
        with stream:
            task = asyncio.create_task(inline())  # inherits the context
        return await task

    async def main() -> list[Any]:
        return await asyncio.gather(queued(), inline(), child())

    first, second, third = asyncio.run(main())
    assert isinstance(first, ok.Future)
    assert isinstance(second, np.ndarray)
    assert isinstance(third, ok.Future)


def test_blocks_left_in_another_order(stream: ok.Stream) -> None:
    other = ok.Stream()
    with pytest.raises(errors.StreamError, match="not the present one"):
        stream.__exit__(None, None, None)
    stream.__enter__()
    other.__enter__()
    with pytest.raises(errors.StreamError, match="opposite"):
        stream.__exit__(None, None, None)
    other.__exit__(None, None, None)
    stream.__exit__(None, None, None)


# ---- order and dependencies ----


def test_calls_run_in_order_and_in_the_background(stream: ok.Stream) -> None:
    with held(stream), stream:
        chain = [f(X, X)]
        for _ in range(5):
            chain.append(f(chain[-1], X))
        assert not any(future.done() for future in chain)
        assert stream.pending == 7
    want = X
    for future in chain:
        want = expected(want, X)
        np.testing.assert_array_equal(future.result(), want)
    stream.synchronize()
    assert eventually(lambda: stream.pending == 0)


def test_streams_wait_for_each_other(stream: ok.Stream) -> None:
    other = ok.Stream()
    out = np.zeros_like(X)
    with held(stream):
        with stream:
            f(X, X, out=out)
        event = ok.Event()
        event.record(stream)
        assert not event.query()
        other.wait_event(event)
        with other:
            by_event = f(out, X)  # reads what `stream` has yet to write
        other.wait_stream(stream)
        assert not by_event.done()
    np.testing.assert_array_equal(by_event.result(), expected(expected(X, X), X))
    event.wait()
    other.synchronize()
    other.wait_stream(stream)  # nothing to wait for
    other.wait_stream(ok.Stream.inline())


def test_F091_memory_of_results_dropped_early_stays_in_use(stream: ok.Stream) -> None:
    want = expected(X, X)
    last = None
    with held(stream), stream:
        first = f(X.copy(), X.copy())  # nobody else holds the arguments
        for _ in range(3):
            last = f(first, X)  # dropped but for the last
        del first
        gc.collect()
        junk = [np.full_like(X, 7) for _ in range(50)]  # would take their place
    np.testing.assert_array_equal(last.result(), expected(want, X))
    assert len(junk) == 50


def test_an_executor_is_in_flight_until_its_event(stream: ok.Stream) -> None:
    @ok.compile
    def g(x: Any) -> Any:
        return x * 3

    g(X)
    with held(stream), stream:
        futures = [g(X), g(X)]
        assert g.info().in_flight == 2
        assert g.info().executors == 2
        inline = contextvars.Context().run(g, X)  # takes a third: those two are not lent
        assert g.info().executors == 3
    np.testing.assert_array_equal(inline, futures[0].result())
    stream.synchronize()
    with stream:
        g(X).result()
    assert g.info().executors == 3


def test_O3_a_call_beyond_the_limit_waits_for_the_oldest() -> None:
    clock = native.ManualStream(1, device="cpu")

    @ok.compile
    def g(x: Any) -> Any:
        return x * 5

    old = native.get_limits()
    native.set_limits(pool_limit=2, timeout_s=0.01)
    try:
        with clock:
            first = [g(X), g(X)]
            with pytest.raises(errors.PoolTimeout, match="in flight"):
                g(X)
            clock.advance(1)
            assert all(future.done() for future in first)
            second = g(X)
        assert g.info().executors == 2
        clock.advance(1)
        np.testing.assert_array_equal(second.result(), X * 5)
    finally:
        native.set_limits(pool_limit=old["pool_limit"], timeout_s=old["timeout_s"])


def test_settings_of_the_pool_hold_at_once(stream: ok.Stream) -> None:
    """Also when they are assigned, or set for a block, after the function was compiled."""

    @ok.compile
    def g(x: Any) -> Any:
        return x * 5

    g(X)
    limit = native.get_limits()["pool_limit"]
    with held(stream), ok.config.scope(pool_cap=2, pool_timeout=0.01), stream:
        kept = [g(X), g(X)]
        with pytest.raises(errors.PoolTimeout, match="2 in flight"):
            g(X)
    assert native.get_limits()["pool_limit"] == limit
    before = ok.config.pool_cap
    try:
        ok.config.pool_cap = 3
        assert native.get_limits()["pool_limit"] == 3
    finally:
        ok.config.pool_cap = before
    np.testing.assert_array_equal(kept[1].result(), kept[0].result())


def test_K13_a_constant_lag_needs_that_many_executors() -> None:
    """The seed doubled with each call: 32768 of them after 16."""
    clock = native.ManualStream(3, device="cpu")

    @ok.compile
    def g(x: Any) -> Any:
        return x * 9

    with clock:
        for _ in range(16):
            g(X)
            clock.advance(1)
    assert (g.info().executors, g.info().waits) == (3, 0)
    clock.advance(3)


def test_K17_inference_takes_no_executor_while_the_stream_is_busy(stream: ok.Stream) -> None:
    with held(stream), stream:
        future = f(X, X)
        before = f.info().executors, native.thread_stats()["events_outstanding"]
        for _ in range(10):
            f.lower(X, X)
            f.warmup(ok.TensorSpec(X.size, "f4"), ok.TensorSpec(X.size, "f4"))
        assert (f.info().executors, native.thread_stats()["events_outstanding"]) == before
    future.result()


def test_bound_calls_are_queued_too(stream: ok.Stream) -> None:
    x = X.copy()
    bound = f.bind(x, X)
    with held(stream), stream:
        future = bound()
        assert not future.done()
    np.testing.assert_array_equal(future.result(), expected(x, X))
    assert bound() is future.result()


def test_O5_a_call_that_cannot_be_queued_leaves_no_trace() -> None:
    closed = ok.Stream()
    closed.close()

    @ok.compile
    def g(x: Any) -> Any:
        return x * 7

    g(X)
    for _ in range(20):  # more than the pool's limit
        with closed, pytest.raises(errors.StreamError, match="closed"):
            g(X)
    assert (g.info().executors, g.info().in_flight) == (1, 0)
    np.testing.assert_array_equal(g(X), X * 7)


# ---- life of a stream ----


def test_a_thread_only_while_there_is_work() -> None:
    stream = ok.Stream(idle_seconds=0)
    assert not stream.has_thread
    with stream:
        f(X, X).result()
    assert eventually(lambda: not stream.has_thread)
    with stream:
        np.testing.assert_array_equal(f(X, X).result(), expected(X, X))
    lasting = ok.Stream(idle_seconds=None)
    with lasting:
        f(X, X).result()
    assert lasting.has_thread
    lasting.close()
    assert eventually(lambda: not lasting.has_thread)


def test_close_finishes_what_is_queued(stream: ok.Stream) -> None:
    with held(stream) as let_go:
        with stream:
            future = f(X, X)
        with pytest.raises(errors.EventTimeout, match=r"work is not done after 0.01 s"):
            stream.close(timeout=0.01)
        assert stream.closed
        assert "closed" in repr(stream)
        let_go()
    stream.close()
    assert future.done()
    with stream, pytest.raises(errors.StreamError, match="make a new stream"):
        f(X, X)
    with pytest.raises(errors.StreamError):
        ok.Event().record(stream)
    with pytest.raises(errors.StreamError):
        stream.wait_stream(held_forever())


def held_forever() -> ok.Stream:
    clock = native.ManualStream(1, device="cpu")
    ok.Event().record(clock)
    return clock


def test_F124_streams_come_and_go() -> None:
    """1000 streams, each used and dropped: no thread, no event and no executor stays behind."""
    before = native.thread_stats()
    ids = set()
    for _ in range(1000):
        stream = ok.Stream()
        ids.add(stream.id)
        with stream:
            future = f(X, X)
        del stream  # what is queued is done all the same
    np.testing.assert_array_equal(future.result(), expected(X, X))
    assert len(ids) == 1000
    assert eventually(lambda: native.stream_stats()["stream_threads"] == 0)
    native.trim()
    after = native.thread_stats()
    assert after["events_outstanding"] <= before["events_outstanding"]


def test_synchronize_waits_for_all_streams(stream: ok.Stream) -> None:
    other = ok.Stream()
    futures = []
    with held(stream) as first, held(other) as second:
        for each in (stream, other):
            with each:
                futures.append(f(X, X))
        threading.Thread(target=lambda: (first(), second())).start()
        ok.synchronize()
    assert all(future.done() for future in futures)
    ok.synchronize()


# ---- events ----


def test_event_states(stream: ok.Stream) -> None:
    event = ok.Event()
    assert repr(event) == "<Event unrecorded>"
    for misuse in (event.query, event.wait, lambda: stream.wait_event(event)):
        with pytest.raises(errors.EventError, match="never recorded"):
            misuse()
    with held(stream):
        first = event.record(stream)
        assert repr(event) == "<Event pending>"
        with pytest.raises(errors.EventTimeout, match=r"the event is not done after 0.0 s"):
            event.wait(timeout=0.0)
        with pytest.raises(TimeoutError):
            event.wait(0.001, generation=first)
    event.wait()
    assert event.query()
    second = event.record()  # on the inline stream: done at once
    assert event.query(second)
    with pytest.raises(errors.EventError, match=f"stale record {first}: .* again, as {second}"):
        event.query(first)
    with pytest.raises(errors.EventError, match="stale"):
        event.wait(generation=first)


def test_event_released() -> None:
    event = ok.Event()
    event.record()
    event.release()
    assert repr(event) == "<Event released>"
    for misuse in (event.query, event.wait, event.record, event.release, lambda: event.generation):
        with pytest.raises(errors.EventError, match="released"):
            misuse()


def test_event_of_the_present_stream(stream: ok.Stream) -> None:
    event = ok.Event()
    with held(stream), stream:
        event.record()
        assert not event.query()
    event.device_wait(ok.Stream.inline())  # waits here
    assert event.query()


def test_event_times(stream: ok.Stream) -> None:
    start, end, plain = ok.Event(timing=True), ok.Event(timing=True), ok.Event()
    assert "timing" in repr(start)
    start.record(stream)
    plain.record(stream)
    with held(stream):
        end.record(stream)
        with pytest.raises(errors.EventError, match="both events must be done"):
            end.elapsed_ms(start)
    end.wait()
    assert end.elapsed_ms(start) >= 0
    assert end.elapsed_ms(end) == 0
    with pytest.raises(errors.EventError, match="both events need timing"):
        end.elapsed_ms(plain)


def test_event_of_another_device(stream: ok.Stream) -> None:
    cuda = native.ManualStream(1)
    with pytest.raises(errors.DeviceMismatch, match="one device, got cpu and cuda:0"):
        ok.Event().record(cuda)
    event = ok.Event(device="cuda")
    event.record(cuda)
    with pytest.raises(errors.DeviceMismatch, match="got cuda:0 and cpu"):
        stream.wait_event(event)
    with cuda, pytest.raises(errors.DeviceMismatch, match="expected a stream of cpu"):
        f(X, X)


@pytest.mark.parametrize("timeout", [-1, float("nan"), True, "1", object()])
def test_timeouts_that_are_none(stream: ok.Stream, timeout: Any) -> None:
    event = ok.Event()
    event.record()
    with stream:
        future = f(X, X)
    future.result(None)
    with held(stream):
        waits: list[Callable[..., object]] = [stream.synchronize, future.result, future.exception]
        for wait in waits:
            with pytest.raises(errors.ArgumentError, match="expected seconds >= 0 or None"):
                wait(timeout)
    future.result(float("inf"))
    future.result(1e300)


def test_K26_a_wait_burns_no_core(stream: ok.Stream) -> None:
    """Both the caller and the worker sleep."""
    with held(stream), stream:
        future = f(X, X)
        before = time.process_time()
        with pytest.raises(errors.EventTimeout):
            future.result(timeout=1)
        spent = time.process_time() - before
    assert spent < 0.05
    future.result()


def test_signals_are_for_the_program(stream: ok.Stream) -> None:
    """The worker blocks them all, so that Ctrl-C reaches the thread that waits."""
    with stream:
        f(X, X).result()
    assert stream.has_thread
    masks = []
    for task in Path("/proc/self/task").iterdir():
        lines = (task / "status").read_text(encoding="ascii").splitlines()
        fields = dict(line.split(":\t", 1) for line in lines)
        if fields["Name"] == "opkiln-stream":
            masks.append(int(fields["SigBlk"], 16))
    assert masks
    assert all(mask >> (signal.SIGINT - 1) & 1 for mask in masks)
