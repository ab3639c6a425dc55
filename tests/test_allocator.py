"""Memory of results by an allocator of the user's: C14, O5, O6, K14, K15, K16, what is refused."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opkiln as ok
from opkiln import native
from opkiln.runtime import errors

Array = np.ndarray[Any, Any]


@ok.compile
def shift(x: Any) -> Any:
    return x + 1.0


@ok.compile
def both(x: Any) -> Any:
    return x + 1.0, x * 2.0


@ok.compile
def norm(x: Any) -> Any:
    return (x * x).sum()


def x_of(n: int = 5) -> Array:
    return np.arange(float(n))


def empty(device: str, nbytes: int, function: Any) -> Array:
    return np.empty(nbytes, np.uint8)


def leased() -> int:
    return sum(pool.leased for pool in ok.runtime_info().pools)


def test_the_allocator_gives_the_memory_of_arrays() -> None:
    x = x_of()
    asked: list[tuple[str, int, Any]] = []
    given: list[bytearray] = []

    def allocate(device: str, nbytes: int, function: Any) -> bytearray:
        asked.append((device, nbytes, function))
        given.append(bytearray(nbytes + 3))  # more is fine
        return given[-1]

    for _ in range(2):  # a new key, then a warm one
        with ok.allocator(allocate):
            result = shift(x)
        np.testing.assert_array_equal(result, x + 1)
        np.testing.assert_array_equal(np.frombuffer(given[-1], count=5), x + 1)
        assert result.flags.writeable
        assert result.flags.c_contiguous
    with ok.allocator(allocate):
        both(x)
        bound = shift.bind(x)
        out = np.empty(5)
        assert shift(x, out=out) is out  # no memory is needed
        assert norm(x) == 30.0
        assert shift(x_of(0)).shape == (0,)
    assert asked == [("cpu", 40, shift)] * 2 + [("cpu", 40, both)] * 2 + [("cpu", 40, shift)]
    np.testing.assert_array_equal(bound(), x + 1)
    shift(x)
    assert len(asked) == 5  # NumPy's again
    with pytest.raises(BufferError):
        given[1].extend(b"x")  # its result is alive
    fortran = np.asfortranarray(np.ones((3, 4)))
    with ok.allocator(allocate):
        assert shift(fortran).flags.f_contiguous


def test_contexts_and_the_default_of_the_process() -> None:
    x = x_of()
    calls: list[str] = []

    def named(name: str) -> Callable[..., Array]:
        def allocate(device: str, nbytes: int, function: Any) -> Array:
            calls.append(name)
            return empty(device, nbytes, function)

        return allocate

    assert ok.set_allocator(named("process")) is None
    try:
        shift(x)
        with ok.allocator(named("outer")):
            shift(x)
            with ok.allocator(None):
                shift(x)
            thread = threading.Thread(target=lambda: shift(x))  # a context of its own
            thread.start()
            thread.join()
            ok.allocator(named("decorator"))(lambda: shift(x))()
            shift(x)
    finally:
        held = ok.set_allocator(None)
    assert held is not None
    assert calls == ["process", "outer", "process", "decorator", "outer"]
    shift(x)
    assert len(calls) == 5
    for bad in (3, "numpy"):
        with pytest.raises(errors.ArgumentError, match="expected a callable"):
            ok.set_allocator(bad)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="allocator"):
            ok.allocator(bad)  # type: ignore[arg-type]


READ_ONLY = np.empty(40, np.uint8)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("gives", "complaint"),
    [
        (lambda n: None, "no buffer"),
        (bytes, "read-only"),
        (lambda n: READ_ONLY, "read-only"),
        (lambda n: bytearray(n - 1), "39 bytes, asked for 40"),
        (lambda n: np.empty(2 * n, np.uint8)[::2], "gaps"),
        (lambda n: np.empty(n + 8, np.uint8)[1:], "no multiple of 8"),
        (lambda n: np.empty(n, object), "of Python objects"),
        (lambda n: memoryview(np.empty(n, [("f", "f8"), ("o", object)])), "of Python objects"),
    ],
)
def test_what_cannot_hold_the_result_is_refused(gives: Any, complaint: str) -> None:
    x = x_of()
    with ok.allocator(lambda device, nbytes, function: gives(nbytes)):
        for run in (shift, shift.bind):
            with pytest.raises(errors.AllocatorError, match=rf"shift\(\).*{complaint}") as caught:
                run(x)
            assert isinstance(caught.value, ValueError)
    assert leased() == 0
    np.testing.assert_array_equal(shift(x), x + 1)


def test_names_of_fields_do_not_matter() -> None:
    with ok.allocator(lambda device, nbytes, function: np.empty(nbytes // 8, [("Of", "f8")])):
        np.testing.assert_array_equal(shift(x_of()), x_of() + 1)


def test_memory_that_is_in_use_is_refused() -> None:
    x = x_of(8)
    with ok.allocator(lambda *_: x), pytest.raises(errors.AllocatorError, match="that x occupies"):
        shift(x)
    np.testing.assert_array_equal(x, np.arange(8.0))
    one = np.empty(8)
    with ok.allocator(lambda *_: one), pytest.raises(ValueError, match="another result"):
        both(x)
    assert leased() == 0


NOTE = "in the allocator of both(), asked for 48 bytes on cpu"


class Lost(Exception):
    pass


def test_O5_K15_an_exception_in_the_allocator_leaves_the_pool_as_it_was() -> None:
    x = x_of(6)
    both(x)
    before = both.info()
    for at in (1, 2):
        countdown = [at]

        def allocate(device: str, nbytes: int, function: Any, left: list[int] = countdown) -> Array:
            left[0] -= 1
            if left[0] == 0:
                raise Lost("nothing left")
            return empty(device, nbytes, function)

        for _ in range(3):
            countdown[0] = at
            with ok.allocator(allocate), pytest.raises(Lost) as caught:
                both(x)
            assert caught.value.__notes__ == [
                "in the allocator of both(), asked for 48 bytes on cpu"
            ]
    after = both.info()
    assert (after.executors, after.idle, after.leased) == (before.executors, before.idle, 0)
    assert after.bytes == before.bytes
    np.testing.assert_array_equal(both(x)[1], x * 2)
    assert both.info().misses == before.misses


def test_O6_K14_the_allocator_may_run_compiled_functions_also_this_one() -> None:
    """As an allocator that drops tensors and computes them again does; recursion depth 3."""
    x = x_of(7)
    shift.clear()
    depth = [0]
    deepest = [0]
    counts: list[int] = []

    def allocate(device: str, nbytes: int, function: Any) -> Array:
        depth[0] += 1
        deepest[0] = max(deepest[0], depth[0])
        if depth[0] <= 3:
            counts.append(shift.info().leased)
            inner = shift(x)  # the same key, which is leased
            np.testing.assert_array_equal(inner, x + 1)
            assert norm(x) == 91.0
        depth[0] -= 1
        return empty(device, nbytes, function)

    with ok.allocator(allocate):
        for _ in range(3):
            np.testing.assert_array_equal(shift(x), x + 1)
    assert deepest == [4]
    assert counts == [1, 2, 3] * 3
    info = shift.info()
    assert (info.executors, info.idle, info.leased) == (4, 4, 0)


def test_recursion_without_end_is_an_error() -> None:
    x = x_of(9)
    with (
        ok.allocator(lambda *_: shift(x)),
        pytest.raises(
            errors.PoolTimeout, match=r"shift\(\): no executor for \(float64\[9\]\).*64 l"
        ),
    ):
        shift(x)
    assert shift.info().leased == 0
    assert shift.info().grew_past_limit >= 54
    ok.trim(shift)
    np.testing.assert_array_equal(shift(x), x + 1)


def test_the_allocator_may_clear_and_trim() -> None:
    x = x_of(11)

    def allocate(device: str, nbytes: int, function: Any) -> Array:
        ok.trim()
        function.clear()
        gc.collect()
        return empty(device, nbytes, function)

    for _ in range(3):
        with ok.allocator(allocate):
            np.testing.assert_array_equal(shift(x), x + 1)
    np.testing.assert_array_equal(shift(x), x + 1)


def test_without_memory_idle_executors_go_first() -> None:
    x = x_of(13)
    for n in range(20, 40):
        shift(x_of(n))
    idle = shift.info().idle
    assert idle >= 20
    answers: list[type[Exception]] = [MemoryError]

    def allocate(device: str, nbytes: int, function: Any) -> Array:
        if answers:
            raise answers.pop()
        return empty(device, nbytes, function)

    with ok.allocator(allocate):
        np.testing.assert_array_equal(shift(x), x + 1)
    assert shift.info().executors == 1
    answers.extend([MemoryError, MemoryError])
    with ok.allocator(allocate), pytest.raises(MemoryError):
        shift(x)
    assert leased() == 0
    # NumPy's own lack of memory.
    shift(x_of(50))
    with pytest.raises(MemoryError):
        shift(np.broadcast_to(np.float64(1), (1 << 56,)))
    assert (shift.info().idle, leased()) == (1, 0)  # what is left is the executor of this call


def test_K16_inputs_and_memory_die_after_the_call() -> None:
    class Mine(np.ndarray[Any, Any]):
        pass

    alive: list[weakref.ref[Any]] = []

    def allocate(device: str, nbytes: int, function: Any) -> Array:
        buffer = np.empty(nbytes, np.uint8)
        alive.append(weakref.ref(buffer))
        return buffer

    for _ in range(2):  # first and warm
        x = x_of(17)
        alive.append(weakref.ref(x))
        with ok.allocator(allocate):
            result = shift(x)
            scalar = norm(x)
        del x
        assert alive[0]() is None
        assert alive[1]() is not None
        del result, scalar
        assert alive[1]() is None
        alive.clear()
    x = x_of(19)
    inputs = weakref.ref(x)
    with ok.allocator(lambda *_: 1 / 0), pytest.raises(ZeroDivisionError):
        shift(x)
    del x
    gc.collect()
    assert inputs() is None


def test_counters_are_exact_under_threads(parallelize: Any) -> None:
    """Deliver 5: a barrier, 8 threads, each with a table of its own."""
    f = ok.compile(lambda x: x * 3.0)
    each = 400

    def work(seed: int) -> None:
        for i in range(each):
            n = 1 + (i + seed) % 10
            assert f(np.ones(n)).sum() == 3.0 * n
        assert len([p for p in ok.runtime_info().pools if p.function == f.__qualname__]) == 10

    f(np.ones(1))
    parallelize(work, 8)
    info = f.info()
    assert info.calls == 8 * each + 1
    assert info.hits + info.misses == info.calls
    assert info.misses == 8 * 10 + 1
    assert info.traces == 1


def test_debug_lines_of_the_pool(capfd: pytest.CaptureFixture[str], caplog: Any) -> None:
    with caplog.at_level(10, "opkiln"):
        f = ok.compile(lambda x: x - 5.0)
        x = x_of(23)
        f(x)
        f(x)
        with ok.allocator(lambda *_: f(x) if not caplog.records[-1].message.count("2 leased")
                          else np.empty(184, np.uint8)):  # fmt: skip
            f(x)
    native.tell_all_misses(False)
    lines = [r.message for r in caplog.records if " an executor for (float64[23]) in " in r.message]
    assert [line.split(": ")[1].split(" an ")[0] for line in lines] == [
        "made", "reused", "reused", "made",
    ]  # fmt: skip
    assert lines[-1].endswith("0 idle, 2 leased, 0 in flight")
