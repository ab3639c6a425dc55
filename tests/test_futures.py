"""Results of calls on a stream: values, errors, arguments, out=, await, lifetime."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.gates import eventually, held

import opkiln as ok
from opkiln import errors, native
from opkiln.runtime.config import config

X = np.linspace(0, 1, 1000).astype(np.float32)


@ok.compile
def f(x: Any, y: Any) -> Any:
    return np.tanh(x * y) + x


@ok.compile
def several(x: Any, n: int) -> Any:
    return {"sum": x.sum(), "rows": (x + 1, x.shape[0] * n), "none": None}


@ok.compile
def of_tree(tree: Any) -> Any:
    return tree["sum"] + tree["rows"][0] * tree["rows"][1]


@ok.compile
def divide(a: Any, b: Any) -> Any:
    return a // b


@ok.compile
def power(a: Any, b: Any) -> Any:
    return a**b


@pytest.fixture
def stream() -> Iterator[ok.Stream]:
    made = ok.Stream("cpu")
    yield made
    made.close()


# ---- values ----


def test_value_is_that_of_the_call(stream: ok.Stream) -> None:
    with held(stream), stream:
        future = several(X, 2)
        assert repr(future) == "<Future of several: pending>"
    value, want = future.result(), several(X, 2)
    assert repr(future) == "<Future of several: done>"
    assert future.exception() is None
    assert list(value) == list(want)
    assert type(value["sum"]) is type(want["sum"]) is np.float32
    assert value["sum"] == want["sum"]
    np.testing.assert_array_equal(value["rows"][0], want["rows"][0])
    assert value["rows"][1] == 2000
    assert future.result() is value


def test_a_call_without_kernels_is_done_at_once(stream: ok.Stream) -> None:
    with held(stream), stream:
        future = several(X, 1)
        empty = f(X[:0], X[:0])
        assert not future.done()
        assert empty.done()
    assert empty.result().shape == (0,)


def test_misuse(stream: ok.Stream) -> None:
    with pytest.raises(TypeError, match="cannot create"):
        ok.Future()
    with stream:
        future = f(X, X)
    for call in (future.result, future.exception):
        with pytest.raises(errors.ArgumentError, match="at most one argument: timeout"):
            call(1, 2)
        with pytest.raises(errors.ArgumentError, match="at most one argument: timeout"):
            call(seconds=1)
    with held(stream), stream:
        late = f(X, X)
        with pytest.raises(errors.EventTimeout, match=r"f\(\): not done after 0.001 s"):
            late.result(timeout=0.001)
        with pytest.raises(TimeoutError):
            late.exception(0)
    late.result()


# ---- as an argument ----


def test_argument_on_the_same_stream_does_not_wait(stream: ok.Stream) -> None:
    with held(stream), stream:
        first = f(X, X)
        tree = several(first, 3)
        last = of_tree(tree)
        keyword = f(y=X, x=first)
        assert not last.done()
    first_value = f(X, X)
    np.testing.assert_array_equal(last.result(), of_tree(several(first_value, 3)))
    np.testing.assert_array_equal(keyword.result(), f(first_value, X))
    with stream:  # and when it is done
        np.testing.assert_array_equal(f(first, X).result(), f(first_value, X))


def test_argument_on_another_stream_is_a_dependency(stream: ok.Stream) -> None:
    other = ok.Stream()
    with held(stream):
        with stream:
            first = f(X, X)
        with other:
            second = f(first, X)
        with stream:
            third = f(second, first)
        assert other.pending == 2  # the wait and the call
    a = f(X, X)
    b = f(a, X)
    np.testing.assert_array_equal(third.result(), f(b, a))


def test_argument_of_an_inline_call_waits(stream: ok.Stream) -> None:
    with held(stream) as let_go:
        with stream:
            first = f(X, X)
        timer = threading.Timer(0.01, let_go)
        timer.start()
        np.testing.assert_array_equal(f(first, X), f(f(X, X), X))
        timer.join()


def test_numpy_waits(stream: ok.Stream) -> None:
    with stream:
        first = f(X, X)
    want = f(X, X)
    np.testing.assert_array_equal(np.asarray(first), want)
    np.testing.assert_array_equal(np.add(first, 1), want + 1)
    assert np.array(first, dtype=np.float64).dtype == np.float64
    assert np.asarray(first) is first.result()
    assert np.array(first, copy=True) is not first.result()
    np.testing.assert_array_equal(first, want)


# ---- out= ----


def test_out(stream: ok.Stream) -> None:
    out = np.zeros_like(X)
    with held(stream), stream:
        future = f(X, X, out=out)
        then = f(out, X)  # in order: it sees what is written
        assert not out.any()
    assert future.result() is out
    want = f(X, X)
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(then.result(), f(want, X))


def test_calls_are_ordered_by_the_arrays_of_out(stream: ok.Stream) -> None:
    """Compiled calls see each other's out=, on whatever stream; only NumPy must be told to wait."""
    other, out, source = ok.Stream(), np.zeros_like(X), X.copy()
    a = f(X, X)
    b = f(a[::-1], X)
    with held(stream) as let_go:
        with stream:
            f(X, X, out=out)
        with other:
            read_after_write = f(out[::-1], X)
            write_after_write = f(X[:10], 2.0, out=out[:10])
        assert other.pending == 4  # two waits, two calls
        with other:
            f(source, X)
            free = f(source, X)
        with ok.Stream():
            write_after_read = f(X, 3.0, out=source)
        timer = threading.Timer(0.01, let_go)
        timer.start()
        inline = f(out[20:], X[20:])  # waits here
        timer.join()
    np.testing.assert_array_equal(inline, f(a, X)[20:])
    np.testing.assert_array_equal(read_after_write.result(), b)
    np.testing.assert_array_equal(free.result(), a)
    np.testing.assert_array_equal(write_after_write.result(), f(X, 2.0)[:10])
    np.testing.assert_array_equal(write_after_read.result(), f(X, 3.0))
    np.testing.assert_array_equal(source, f(X, 3.0))


@pytest.mark.parametrize("way", ["direct", "converted", "bound", "interpreted"])
def test_inline_calls_wait_for_what_is_queued_on_their_arrays(
    stream: ok.Stream, way: str, tmp_path: Any
) -> None:
    source = X.copy()
    want = f(X, X)
    bound = f.bind(X, X, out=source)
    source[:] = X
    with contextlib.ExitStack() as scope:
        if way == "interpreted":
            scope.enter_context(config.scope(cache_dir=tmp_path, cxx=str(tmp_path / "none")))
            scope.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "compiled functions run in the interpreter")
        g = ok.compile(f.__wrapped__)
        y = X.astype(float) if way == "converted" else X  # its result goes by way of a copy
        g(X, y, out=np.empty_like(X))  # builds, which takes longer than the wait
        let_go = scope.enter_context(held(stream))
        with stream:
            queued = f(source, X)
        timer = threading.Timer(0.01, let_go)
        timer.start()
        if way == "bound":
            bound()
        else:
            g(X, y, out=source)
        timer.join()
    np.testing.assert_array_equal(queued.result(), want)
    np.testing.assert_allclose(source, want, rtol=1e-6)


def test_out_that_needs_a_copy_runs_at_once(stream: ok.Stream) -> None:
    out, both = np.zeros(X.size), X.copy()
    with stream:
        first = f(X, X)
        converted = f(first, X, out=out)
        assert converted.done()
        assert converted.result() is out
        overlapping = f(both[1:], both[1:], out=both[:-1])
        assert overlapping.done()
    np.testing.assert_array_equal(out, f(f(X, X), X).astype(float))
    np.testing.assert_array_equal(both[:-1], f(X[1:], X[1:]))


def test_out_that_does_not_fit_is_refused_at_once(stream: ok.Stream) -> None:
    frozen = np.zeros_like(X)
    frozen.flags.writeable = False
    with held(stream), stream, pytest.raises(errors.ReadOnlyError):
        f(X, X, out=frozen)
        with pytest.raises(errors.ShapeError):
            f(X, X, out=np.zeros(3, np.float32))


# ---- errors ----


def test_what_is_known_before_raises_at_the_call(stream: ok.Stream) -> None:
    before = f.info().in_flight
    with held(stream), stream:
        with pytest.raises(errors.ShapeError, match="broadcast"):
            f(X, X[:7])
        with pytest.raises(errors.ArgumentError, match="missing 1 required"):
            f(X)
        with pytest.raises(errors.UnsupportedDType):
            f(X, X.astype(object))
        with pytest.raises(errors.HostRangeError):
            divide(np.array([1], np.uint8), 300)
    assert f.info().in_flight == before


def test_F131_kernel_errors_come_with_the_result(stream: ok.Stream) -> None:
    with stream:
        bad = power(np.array([2, 3]), np.array([-1, 2]))
        good = f(X, X)
    with pytest.raises(errors.IntegerPowerError, match=r"test_futures.py:\d+") as first:
        bad.result()
    with pytest.raises(errors.IntegerPowerError) as again:
        bad.result()
    assert again.value is first.value is bad.exception()
    assert repr(bad) == "<Future of power: failed>"
    np.testing.assert_array_equal(good.result(), f(X, X))


def test_a_call_on_a_failed_result_fails_alike(stream: ok.Stream) -> None:
    other = ok.Stream()
    with held(stream):
        with stream:
            bad = power(np.array([2, 3]), np.array([-1, 2]))
            after = f(bad, 1.0)
        with other:
            elsewhere = f(after, 1.0)
    assert elsewhere.exception() is after.exception() is bad.exception()
    with stream, pytest.raises(errors.IntegerPowerError):
        f(bad, 1.0)  # known by now
    with pytest.raises(errors.IntegerPowerError):
        f(bad, 1.0)
    with pytest.raises(errors.IntegerPowerError):
        np.asarray(bad)


def test_a_long_chain_that_fails_holds_its_first_only() -> None:
    """Neither asking nor letting go walks through all of it, which would end the stack."""
    clock = native.ManualStream(2, device="cpu")
    between = []
    with clock:
        first = last = power(np.array([2, 3]), np.array([-1, 2]))
        for _ in range(50):
            last = f(last, 1.0)
            between.append(weakref.ref(last))
            clock.advance(1)
    clock.advance(2)
    assert last.exception() is first.exception()
    assert [ref() for ref in between] == [None] * 49 + [last]


def test_integer_faults_follow_the_errstate_of_the_call(stream: ok.Stream) -> None:
    a, b = np.array([7, 8]), np.array([0, 3])
    before = divide.info().integer_faults
    with stream:
        ignored = divide(a, b)
        with ok.errstate(integer_divide="raise"):
            raised = divide(a, b)
        with ok.errstate(integer_divide="warn"):
            warned = divide(a, b)
    np.testing.assert_array_equal(ignored.result(), [0, 2])
    with pytest.raises(errors.IntegerDivisionError):
        raised.result()
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        assert warned.exception() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        np.testing.assert_array_equal(warned.result(), [0, 2])
    assert divide.info().integer_faults == before + 3


def test_a_result_is_counted_once_it_is_there(stream: ok.Stream) -> None:
    """Also while its worker is still about to say so to others."""
    before = divide.info().integer_faults
    go_on = threading.Event()
    with held(stream), stream:
        future = divide(np.array([7]), np.array([0]))
        future._on_done(lambda: go_on.wait(60))
    future.result()
    assert divide.info().integer_faults == before + 1
    go_on.set()
    stream.close()
    assert divide.info().integer_faults == before + 1


def test_an_error_that_nobody_asked_for_is_told(
    stream: ok.Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append(args.exc_value))
    with stream:
        power(np.array([2, 3]), np.array([-1, 2]))
        asked = power(np.array([2, 3]), np.array([-1, 2]))
    asked.exception()
    del asked
    stream.synchronize()
    assert [type(error) for error in told] == [errors.IntegerPowerError]


def test_a_function_cleared_or_dropped_while_its_calls_are_queued(stream: ok.Stream) -> None:
    @ok.compile
    def g(x: Any) -> Any:
        return x * 11

    g(X)
    with held(stream), stream:
        cleared = g(X)
        g.clear()
        dropped = g(X)
        alive = weakref.ref(g)
        del g
        gc.collect()
    np.testing.assert_array_equal(cleared.result(), X * 11)
    np.testing.assert_array_equal(dropped.result(), X * 11)
    del cleared, dropped
    gc.collect()
    assert alive() is None


def test_without_a_compiler_the_call_runs_at_once(stream: ok.Stream, tmp_path: Any) -> None:
    with config.scope(cache_dir=tmp_path / "empty", cxx=str(tmp_path / "none")):

        @ok.compile
        def g(x: Any) -> Any:
            return np.sqrt(x * 13)

        with stream, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "compiled functions run in the interpreter")
            first = f(X, X)
            future = g(first)
        assert future.done()
        np.testing.assert_array_equal(future.result(), np.sqrt(f(X, X) * 13))


def test_disabled_calls_give_futures_too() -> None:
    code = """
import numpy as np, opkiln as ok
f = ok.compile(lambda x, y: x + y)
x, out = np.arange(3), np.zeros(3)
with ok.Stream():
    first = f(x, 1)
    second = f(first, y=first, out=out)
    print(first.result(), second.result(), out is second.result())
print(type(f(first, 1)).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "OPKILN_DISABLE": "1"},
    )  # fmt: skip
    assert done.stdout.splitlines() == ["[1 2 3] [2. 4. 6.] True", "ndarray"]


def test_torch_on_a_stream(stream: ok.Stream) -> None:
    torch = pytest.importorskip("torch")
    t = torch.arange(4.0)
    squares = ok.torch_function(lambda a: (a * a).sum())
    with held(stream), stream:
        queued = f(f(t, t), t)
        assert not queued.done()
    with stream:
        weights = torch.arange(4.0, requires_grad=True)
        loss = squares(weights)  # torch's graph is made of tensors, not of futures
        loss.backward()
        with pytest.raises(errors.ArgumentError, match=r"captured array: .*Future"):
            ok.compile(lambda x: x + queued)(X)
    assert isinstance(queued.result(), torch.Tensor)
    assert torch.equal(queued.result(), f(f(t, t), t))
    assert weights.grad.tolist() == [0, 2, 4, 6]


def test_tracing_on_a_stream_runs_calls_inline(stream: ok.Stream) -> None:
    @ok.compile
    def g(x: Any) -> Any:
        return x * f(np.ones(3, np.float32), 2.0).sum()  # a call with values inside of a trace

    with stream:
        g.warmup(ok.TensorSpec(X.size, "f4"))
        queued = g(X)
        gradient = ok.grad(lambda x: (x * x).sum())(X)
    np.testing.assert_array_equal(queued.result(), g(X))
    np.testing.assert_array_equal(gradient.result(), 2 * X)


# ---- await ----


def test_await(stream: ok.Stream) -> None:
    async def one(let_go: Any) -> Any:
        with stream:
            future = f(X, X)
        asyncio.get_running_loop().call_later(0.01, let_go)
        return future, await future

    async def many() -> list[Any]:
        with stream:
            futures = [f(X, X) for _ in range(5)]
            last = await futures[-1]
        return [*[await future for future in futures], last]

    with held(stream) as let_go:
        future, value = asyncio.run(one(let_go))
    assert value is future.result()
    for value in asyncio.run(many()):
        np.testing.assert_array_equal(value, f(X, X))


def test_await_raises(stream: ok.Stream) -> None:
    async def main() -> None:
        with stream:
            await power(np.array([2, 3]), np.array([-1, 2]))

    with pytest.raises(errors.IntegerPowerError):
        asyncio.run(main())


def test_await_cancelled(stream: ok.Stream) -> None:
    async def main(let_go: Any) -> Any:
        with stream:
            future = f(X, X)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(wait(future), 0.01)
        let_go()
        return await future

    async def wait(future: Any) -> Any:
        return await future

    with held(stream) as let_go:
        np.testing.assert_array_equal(asyncio.run(main(let_go)), f(X, X))


def test_await_in_a_loop_that_is_closed_meanwhile(stream: ok.Stream) -> None:
    async def main() -> Any:
        with stream:
            future = f(X, X)
        task = asyncio.ensure_future(wait(future))
        await asyncio.sleep(0)
        task.cancel()
        return future

    async def wait(future: Any) -> Any:
        return await future

    with held(stream):
        future = asyncio.run(main())
    np.testing.assert_array_equal(future.result(), f(X, X))


# ---- lifetime ----


def test_arguments_live_until_the_work_is_done_and_no_longer(stream: ok.Stream) -> None:
    a = X.copy()
    seen = weakref.ref(a)
    with held(stream), stream:
        future = f(a, X)
        del a
        gc.collect()
        assert seen() is not None
    future.result()
    assert seen() is None


def test_arguments_go_even_when_nobody_asks(stream: ok.Stream) -> None:
    """The worker has the interpreter let go of them."""
    a = X.copy()
    seen = weakref.ref(a)
    with stream:
        future = f(a, X)
    del a
    assert eventually(lambda: seen() is None)
    assert future.done()


def test_F092_a_queued_call_reads_its_arguments_in_its_turn(stream: ok.Stream) -> None:
    """As documented: streams do not copy. Outside of a block the old values are read."""
    a = X.copy()
    want = f(a, X)
    inline = f(a, X)
    a[:] = -1
    np.testing.assert_array_equal(inline, want)
    with held(stream), stream:
        future = f(a, X)
        a[:] = X
    np.testing.assert_array_equal(future.result(), want)


def test_many_threads_share_a_stream(stream: ok.Stream) -> None:
    want = f(X, X)
    wrong: list[int] = []

    def work() -> None:
        with stream:
            futures = [f(X, X) for _ in range(200)]
        wrong.extend(i for i, each in enumerate(futures) if not (each.result() == want).all())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert eventually(lambda: stream.pending == 0)


def test_a_thread_may_end_before_its_work() -> None:
    stream = ok.Stream()
    futures: list[Any] = []

    def work() -> None:
        with stream:
            futures.append(f(X, X))

    with held(stream) as let_go:
        thread = threading.Thread(target=work)
        thread.start()
        assert eventually(lambda: len(futures) == 1)
        let_go()
        thread.join()
    np.testing.assert_array_equal(futures[0].result(), f(X, X))
    assert native.thread_stats()["live_tables"] >= 1
