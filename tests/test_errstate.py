"""Integer division faults: counted always, warned of or raised where errstate says so."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opkiln as ok
from opkiln.runtime.config import config
from opkiln.runtime.errors import ArgumentError, IntegerDivisionError, IntegerPowerError

X, ZERO = np.array([7, 8, 9]), np.array([2, 0, 3])
LOW, MINUS = np.array([-128, 5], "i1"), np.array([-1, 1], "i1")
# The quick way in (positional arrays, one result), the general way (static argument, two results).
WAYS = ("quick", "general", "interpreted")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param != "interpreted":
        yield request.param
        return
    with (
        config.scope(cache_dir=tmp_path / "empty", cxx=str(tmp_path / "none")),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "compiled functions run in the interpreter")
        yield request.param


def made(way: str, fn: Callable[..., Any], **options: Any) -> Any:
    """`fn` compiled so that calls go that way; called once without a fault, so that it is warm."""
    if way == "general":
        f = ok.compile(lambda x, y, mode="m": (fn(x, y), x + 0), **options)

        def call(x: Any, y: Any, out: Any = None) -> Any:
            return f(x, y, out=None if out is None else (out, None))[0]

        call.info, call.explain = f.info, f.explain  # type: ignore[attr-defined]
        return call
    ok.clear_cache()  # or a plan of another test would be shared, which is interpreted or not
    return ok.compile(fn, **options)


OPS: dict[str, Callable[..., Any]] = {
    "floor_divide": lambda x, y: x // y,
    "remainder": lambda x, y: x % y,
    "fmod": lambda x, y: np.fmod(x, y),  # noqa: PLW0108  a line of our own
}


@pytest.mark.parametrize("name", OPS)
def test_each_mode_as_option(way: str, name: str) -> None:
    fn, line = OPS[name], inspect.getsourcelines(OPS[name])[1]
    with np.errstate(all="ignore"):
        expected = fn(X, ZERO)
    for mode in ("ignore", "warn", "raise"):
        f = made(way, fn, errstate=mode)
        out = np.full(3, 55)
        np.testing.assert_array_equal(f(X, X), fn(X, X))
        for n in range(1, 3):  # a first call with this layout, and a warm one
            if mode == "raise":
                with pytest.raises(
                    IntegerDivisionError,
                    match=rf"divide by zero encountered in {name} \(.*test_errstate.py:{line}\)",
                ):
                    f(X, ZERO, out=out)
                np.testing.assert_array_equal(out, [55] * 3)
                with pytest.raises(FloatingPointError, match=r"np\.where"):
                    f(X, ZERO)
            else:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    np.testing.assert_array_equal(f(X, ZERO), expected)
                    f(X, ZERO, out=out)
                np.testing.assert_array_equal(out, expected)
                texts = [str(w.message) for w in caught]
                assert texts == ([f"divide by zero encountered in {name}"] * 2) * (mode == "warn")
                assert all((w.category, w.lineno) == (RuntimeWarning, line) for w in caught)
                assert all(w.filename == __file__ for w in caught)
            assert f.info().integer_faults == 2 * n
        assert f.info().calls == 5


def test_numpy_says_the_same() -> None:
    """The words of the warnings are NumPy's."""
    for name, fn in OPS.items():
        with pytest.warns(RuntimeWarning, match=f"^divide by zero encountered in {name}$"):
            fn(X, ZERO)
    with pytest.warns(RuntimeWarning, match=r"^overflow encountered in floor_divide$"):
        LOW // MINUS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LOW % MINUS


def test_overflow(way: str) -> None:
    both = made(way, lambda x, y: x // y + x % y, errstate="raise")
    with pytest.raises(
        IntegerDivisionError, match=r"^overflow encountered in floor_divide \([^)]*\)\n"
    ):
        both(LOW, MINUS)
    with pytest.raises(IntegerDivisionError, match=r"in floor_divide \(.*\) or remainder \(.*\)"):
        both(LOW, MINUS * 0)
    assert both.info().integer_faults == 2
    rest = made(way, lambda x, y: x % y, errstate="raise")
    np.testing.assert_array_equal(rest(LOW, MINUS), [0, 0])
    assert rest.info().integer_faults == 0


def test_the_context_wins_and_nests(way: str) -> None:
    f = made(way, OPS["floor_divide"])
    strict = made(way, OPS["floor_divide"], errstate="raise")
    out = np.full(3, 55)
    f(X, X, out=np.empty(3, int))  # warm, straight into out
    with ok.errstate(integer_divide="raise"):
        with pytest.raises(IntegerDivisionError):
            f(X, ZERO, out=out)
        np.testing.assert_array_equal(out, [55] * 3)
        with ok.errstate(integer_divide="ignore"):
            f(X, ZERO, out=out)
            strict(X, ZERO)
        with pytest.raises(IntegerDivisionError):
            f(X, ZERO)
    f(X, ZERO)
    with pytest.raises(IntegerDivisionError):
        strict(X, ZERO)
    np.testing.assert_array_equal(out, [3, 0, 3])


def test_numpys_errstate_is_another(way: str) -> None:
    f = made(way, OPS["floor_divide"])
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(f(X, ZERO), [3, 0, 3])
    with (
        np.errstate(all="ignore"),
        ok.errstate(integer_divide="raise"),
        pytest.raises(IntegerDivisionError),
    ):
        f(X, ZERO)


def test_a_warning_turned_into_an_error_is_raised() -> None:
    f = ok.compile(OPS["floor_divide"], errstate="warn")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="divide by zero"):
            f(X, ZERO)
    assert f.info().in_flight == 0


def test_a_warning_is_shown_once_per_line_by_default() -> None:
    space: dict[str, Any] = {}
    exec(compile("def fn(x, y): return x // y", "once.py", "exec"), space)
    f = ok.compile(space["fn"], errstate="warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            f(X, ZERO)
    assert len(caught) == 1 and caught[0].filename == "once.py"


def test_threads_and_tasks_have_their_own(parallelize: Callable[..., list[object]]) -> None:
    f = ok.compile(OPS["floor_divide"])

    def call(thread: int) -> str:
        mode: Any = ("raise", "ignore")[thread % 2]
        with ok.errstate(integer_divide=mode):
            for _ in range(50):
                try:
                    f(X, ZERO)
                    assert mode == "ignore"
                except IntegerDivisionError:
                    assert mode == "raise"
        return "done"

    assert parallelize(call, 6) == ["done"] * 6

    async def task(mode: Any) -> None:
        with ok.errstate(integer_divide=mode):
            for _ in range(5):
                await asyncio.sleep(0)
                try:
                    f(X, ZERO)
                    assert mode == "ignore"
                except IntegerDivisionError:
                    assert mode == "raise"

    async def both() -> None:
        await asyncio.gather(task("raise"), task("ignore"), task("raise"))

    asyncio.run(both())
    contextvars.Context().run(f, X, ZERO)


def test_as_a_decorator_and_wrong_words() -> None:
    f = ok.compile(OPS["floor_divide"])

    @ok.errstate(integer_divide="raise")
    def strict() -> Any:
        return f(X, ZERO)

    for _ in range(2):
        with pytest.raises(IntegerDivisionError):
            strict()
    wrong: Any = "log"
    with pytest.raises(ArgumentError, match="'log'"):
        ok.errstate(integer_divide=wrong)  # at once, not when the block begins
    f(X, ZERO)


def test_each_call_is_a_hit_or_a_miss() -> None:
    """With out=, a call that may raise needs two executors, of which one may be there."""
    f = ok.compile(OPS["floor_divide"], errstate="raise")
    f(X, X)
    f(X, X, out=np.empty_like(X))
    assert (f.info().calls, f.info().misses, f.info().hits) == (2, 2, 0) and len(f.explain()) == 2
    f(X, X, out=np.empty_like(X))
    assert (f.info().calls, f.info().misses, f.info().hits) == (3, 2, 1)


def test_one_object_for_several_blocks(parallelize: Callable[..., list[object]]) -> None:
    f = ok.compile(OPS["floor_divide"])
    strict = ok.errstate(integer_divide="raise")
    for _ in range(2):
        with strict:
            with ok.errstate(integer_divide="ignore"), strict, pytest.raises(IntegerDivisionError):
                f(X, ZERO)
            with pytest.raises(IntegerDivisionError):
                f(X, ZERO)
        f(X, ZERO)
    barrier = threading.Barrier(2)

    def entered(first: bool) -> None:
        """The first leaves while the second is inside."""
        if not first:
            barrier.wait(60)
        with strict:
            for _ in range(2 if first else 1):
                barrier.wait(60)
            if not first:
                barrier.wait(60)
        if first:
            barrier.wait(60)
        f(X, ZERO)

    parallelize(lambda i: entered(i == 0), 2)


def test_an_error_of_integer_power_comes_first() -> None:
    f = ok.compile(lambda x, y: x // y + x**y, errstate="raise")
    with pytest.raises(IntegerPowerError):
        f(X, np.array([0, -1, 1]))
    assert f.info().integer_faults == 1
    assert f.info().hits + f.info().misses == f.info().calls == 1


def test_floats_and_the_copy_that_raise_needs() -> None:
    """Only programs that divide integers pay for `raise` with a copy, and it is explained."""
    f = ok.compile(lambda x, y: x / y + x // y, errstate="raise")
    out = np.empty(3)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(f(X / 1, ZERO / 1, out=out), X / (ZERO / 1) + X // (ZERO / 1))
    assert (f.info().integer_faults, f.info().copies) == (0, 0)
    g = made("quick", OPS["floor_divide"], errstate="raise")
    for _ in range(2):
        g(X, X, out=np.empty(3, int))
    assert g.info().copies == 2
    assert "errstate raise leaves out= untouched, so result 0 goes to it by copy: 2 times" in str(
        g.explain()
    )


def test_out_that_is_the_argument_is_untouched() -> None:
    f = ok.compile(OPS["floor_divide"], errstate="raise")
    x = X.copy()
    f(x, np.array([1, 1, 1]), out=x)
    for _ in range(2):
        with pytest.raises(IntegerDivisionError):
            f(x, ZERO, out=x)
        np.testing.assert_array_equal(x, X)


def test_bound_calls(way: str) -> None:
    f = ok.compile(OPS["floor_divide"])
    x, y = X.copy(), np.array([1, 2, 3])
    bound = f.bind(x, y)
    np.testing.assert_array_equal(bound(), X // y)
    y[1] = 0
    with ok.errstate(integer_divide="raise"):
        with pytest.raises(IntegerDivisionError):
            bound()
        y[1] = 4
        result = bound()
        np.testing.assert_array_equal(result, X // y)
        y[1] = 0
        with pytest.raises(IntegerDivisionError):
            bound()
        np.testing.assert_array_equal(result, X // [1, 4, 3])
    np.testing.assert_array_equal(bound(), [7, 0, 3])
    assert f.info().integer_faults == 3


def test_faults_are_explained_with_their_line() -> None:
    f = ok.compile(OPS["remainder"])
    f(X, ZERO)
    f(X, ZERO)
    line = inspect.getsourcelines(OPS["remainder"])[1]
    assert f"in remainder ({__file__}:{line}): 2 times" in str(f.explain())
