"""explain(): each miss names the part of its key that changed, before and after, and its cost."""

from __future__ import annotations

import gc
import logging
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opkiln as ok
from opkiln import native
from opkiln.runtime import debug, explain
from opkiln.runtime.config import config

Parallelize = Callable[..., list[object]]
A = np.arange(12.0).reshape(3, 4)


def changes(miss: ok.Miss) -> set[tuple[str, str, str]]:
    return {(c.name, c.old, c.new) for c in miss.changes}


def second(fn: Callable[..., Any], first: tuple[Any, ...], then: tuple[Any, ...]) -> ok.Miss:
    """The miss of a second call."""
    f = ok.compile(fn)
    f(*first)
    f(*then)
    f(*then)
    assert len(f.explain()) == 2
    assert f.explain()[0].changes == () and "first call" in f.explain()[0].reason
    return f.explain()[-1]


# ---- programs ----

TRACED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...], set[Any]]] = {
    "dtype": (
        lambda x, k: x + k, (A, 1), (A.astype("f4"), 1),
        {("argument `x` dtype", "float64", "float32")},
    ),
    "rank": (lambda x, k: x + k, (A, 1), (A[0], 1), {("argument `x` rank", "2", "1")}),
    "kind": (lambda x, k: x + k, (A, A), (A, 1), {("argument `k` kind", "array", "int")}),
    "static for array": (
        lambda x, k: x + k, (A, A), (A, True), {("argument `k` kind", "array", "bool True")},
    ),
    "static for number": (
        lambda x, k: x if k is None else x + k, (A, 1), (A, None),
        {("argument `k` kind", "int", "None")},
    ),
    "weak scalar": (lambda x, k: x + k, (A, 1), (A, 1.0), {("argument `k` kind", "int", "float")}),
    "large int": (
        lambda x, k: x + k, (A, 1), (A, 2**63), {("argument `k` kind", "int", "int above int64")},
    ),
    "static": (
        lambda x, mode: x + 1 if mode == "a" else x - 1, (A, "a"), (A, "b"),
        {("argument `mode` value", "'a'", "'b'")},
    ),
    "static tuple": (
        lambda x, axes: x + len(axes), (A, ("a", None)), (A, ("a", True)),
        {("argument `axes[1]` value", "None", "True")},
    ),
    "dict": (lambda d: d["v"] + 1, ({"v": A},), ({"v": A.astype("f4")},),
             {("argument `d['v']` dtype", "float64", "float32")}),
    "length": (
        lambda *xs: xs[0] + len(xs), (A,), (A, A), {("argument `xs[1]` kind", "", "array")},
    ),
    "two at once": (
        lambda x, k: x + k, (A, 1), (A[0].astype("f4"), 1.0),
        {
            ("argument `x` dtype", "float64", "float32"), ("argument `x` rank", "2", "1"),
            ("argument `k` kind", "int", "float"),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRACED)
def test_F129_a_trace_names_what_changed(name: str) -> None:
    fn, first, then, expected = TRACED[name]
    miss = second(fn, first, then)
    assert changes(miss) == expected
    assert miss.layer in ("program", "artifact")
    assert miss.trace_ms > 0 and miss.lower_ms > 0
    assert miss.total_ms > miss.trace_ms + miss.lower_ms


def test_a_pinned_size_names_its_line() -> None:
    def f(x: Any) -> Any:
        return x + 1 if x.shape[0] == 3 else x + 2

    miss = second(f, (A,), (A[:2],))
    ((name, old, new),) = changes(miss)
    assert name.startswith("size x.shape[0] pinned by ")
    assert name.endswith(f"test_explain.py:{f.__code__.co_firstlineno + 1}")
    assert (old, new) == ("3", "2")


class Model:
    def __init__(self, k: float) -> None:
        self.k = k

    @ok.compile
    def step(self, x: Any) -> Any:
        return x * self.k


def test_another_receiver_is_named_without_running_its_code() -> None:
    class Loud(Model):
        def __repr__(self) -> str:
            raise AssertionError

    one, two = Loud(1.0), Loud(2.0)
    one.step(A)
    two.step(A)
    (change,) = Model.step.explain()[-1].changes
    assert change.name == "argument `self` value"
    assert "Loud object (no. " in change.old and change.old != change.new


def test_a_receiver_keeps_its_number_over_a_clear() -> None:
    class Kept(Model):
        pass

    one = Kept(3.0)
    one.step(A)
    Model.step.clear()
    one.step(A)
    (change,) = Model.step.explain()[-1].changes
    assert change.name == "f.clear() calls"
    two = Kept(4.0)
    two.step(A)
    assert "argument `self` value" in {c.name for c in Model.step.explain()[-1].changes}
    gone, numbers = weakref.ref(one), Model.step._frontend.history._numbers
    before = len(numbers)
    del one
    gc.collect()
    assert gone() is None and len(numbers) == before - 1


def test_a_static_object_whose_repr_fails_is_named_by_its_class() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise ValueError

    f = ok.compile(lambda x, how: x + 1, static="how")
    f(A, Odd())
    f(A, Odd())
    (change,) = f.explain()[-1].changes
    assert change.name == "argument `how` value" and "Odd object" in change.new


def test_static_values_of_one_look_are_told_apart() -> None:
    f = ok.compile(lambda x, how: x + 1, static="how")
    f(A, "a" * 100 + "b")
    f(A, "a" * 100 + "c")
    (change,) = f.explain()[-1].changes
    assert change.name == "argument `how` value" and change.old[:62] == change.new[:62]
    f(A, Enum("Mode", "fast").fast)
    f(A, Enum("Mode", "fast").fast)  # as when a cell of a notebook runs again
    (change,) = f.explain()[-1].changes
    assert change.name == "argument `how` identity" and change.old != change.new
    f(A, np.float32)
    f(A, np.dtype("f4"))
    assert str(f.explain()[-1].changes[0]).endswith("float32 -> dtype('float32')")


def test_a_static_value_takes_one_short_line() -> None:
    class Wild:
        def __repr__(self) -> str:
            return "one\ntwo\x00\udc80" * 99

    f = ok.compile(lambda x, how: x + 1, static="how")
    f(A, (Wild(),) * 1000)
    f(A, Wild())
    (change,) = f.explain()[-1].changes
    assert str(change).isprintable() and len(str(change)) < 250


def test_the_nearest_earlier_call_is_compared() -> None:
    f = ok.compile(lambda x, k: x + k)
    f(A, 1)
    f(A[0].astype("f4"), 1.0)
    f(A[0].astype("f4"), 1)  # two parts from the first, one from the second
    assert changes(f.explain()[-1]) == {("argument `k` kind", "float", "int")}


def test_clear_and_captured_layouts() -> None:
    held = np.ones(4)
    f = ok.compile(lambda x: x + held)
    f(A)
    f.clear()
    f(A)
    assert changes(f.explain()[-1]) == {("f.clear() calls", "0", "1")}
    held = np.ones(8)[::2]
    f.clear()
    f(A)
    assert changes(f.explain()[-1]) == {
        ("f.clear() calls", "1", "2"),
        ("captured array held axis 0", "contiguous", "stride 2"),
    }


def test_a_definition_anew_and_options_are_named() -> None:
    def made(plus: int) -> Any:
        space: dict[str, Any] = {"__name__": "cell"}
        exec(compile(f"def again(x): return x + {plus}", "cell.py", "exec"), space)
        return space["again"]

    first = ok.compile(made(1))
    first(A)
    assert first.explain()[0].changes == ()
    same = ok.compile(made(1))
    same(A)
    assert changes(same.explain()[0]) == {("function definition", "no. 1", "no. 2")}
    assert same.explain()[0].source == "shared"
    body = ok.compile(made(2))
    body(A)
    names = {c.name for c in body.explain()[0].changes}
    assert names == {"function definition", "function body"}
    level = ok.compile(made(2), opt_level=0)
    level(A)
    assert ("option opt_level", "2", "0") in changes(level.explain()[0])
    assert {c.name for c in level.explain()[0].changes} == {
        "function definition",
        "option opt_level",
    }


def test_lambdas_of_one_name_are_not_definitions_anew() -> None:
    f, g = (
        ok.compile(lambda x: x + 3.5),
        ok.compile(lambda x: x + 4.5),
    )
    f(A)
    g(A)
    assert g.explain()[0].changes == ()


# ---- executors ----

EXECUTORS: dict[str, tuple[tuple[Any, ...], dict[str, Any], set[Any]]] = {
    "shape": ((A[:2],), {}, {("argument `x` shape", "(3, 4)", "(2, 4)")}),
    "stride": (
        (np.arange(24.0).reshape(3, 8)[:, :4],), {},
        {("argument `x` axis 0", "contiguous", "stride 8")},
    ),
    "order": ((np.asfortranarray(A),), {}, {("argument `x` memory order", "C", "Fortran")}),
    "out": ((A,), {"out": np.empty((3, 4))}, {("out=", "", "array")}),
}  # fmt: skip


@pytest.mark.parametrize("name", EXECUTORS)
def test_F137_a_new_layout_needs_an_executor_only(name: str) -> None:
    args, keywords, expected = EXECUTORS[name]
    f = ok.compile(lambda x: x + 7)
    f(A)
    f(*args, **keywords)
    miss = f.explain()[-1]
    assert (miss.layer, miss.source, changes(miss)) == ("executor", "memory", expected)
    assert miss.trace_ms == miss.lower_ms == miss.build_ms == miss.load_ms == 0
    assert 0 < miss.total_ms < f.explain()[0].total_ms


def test_a_step_changes_the_part_of_its_own_axis() -> None:
    f = ok.compile(lambda x: x + 7)
    f(np.arange(24.0).reshape(3, 8)[:, ::2])
    f(np.arange(36.0).reshape(3, 12)[:, ::3])
    assert changes(f.explain()[-1]) == {("argument `x` axis 1", "stride 2", "stride 3")}
    f(np.broadcast_to(np.arange(3.0)[:, None], (3, 4)))
    f(np.broadcast_to(np.arange(6.0)[::2, None], (3, 4)))
    assert changes(f.explain()[-1]) == {("argument `x` axis 0", "contiguous", "stride 2")}


def test_out_of_several_results() -> None:
    f = ok.compile(lambda x: (x + 1, x - 1))
    u, v = np.empty((3, 4)), np.empty((3, 4))
    f(A, out=(u, None))
    f(A, out=(u, v))
    assert changes(f.explain()[-1]) == {("out=[1]", "None", "array")}


def test_other_threads_evictions_and_busy_executors(parallelize: Parallelize) -> None:
    f = ok.compile(lambda x: x + 8)
    f(A)
    parallelize(lambda _: f(A), 1)
    assert [c.name for c in f.explain()[-1].changes] == ["thread"]
    for _ in range(3):  # each ends before the next starts, which then has its identifier
        thread = threading.Thread(target=f, args=(A,))
        thread.start()
        thread.join()
        (change,) = f.explain()[-1].changes
        assert change.name == "thread" and "one that has ended (no. " in change.new
    limits = native.get_limits()
    try:
        native.trim()  # one step of the table may choose another function's executor
        native.set_limits(executors=1)
        f(A)
        f(A[:2])
        f(A)
    finally:
        native.set_limits(executors=limits["executors"])
    assert str(f.explain()[-1].changes[0]) == "executor: made again: the limits had it evicted"
    stream = native.ManualStream(3)
    native.use_stream(stream)
    try:
        f(A[:1])
        f(A[:1])
    finally:
        native.use_stream(None)
    assert "in use" in f.explain()[-1].reason
    stream.advance(10)


def test_warmup_and_bind() -> None:
    f = ok.compile(lambda x: x + 13)
    f.warmup(ok.TensorSpec((None, 4), "float64"))
    f(A)
    (first,) = f.explain()
    assert (first.layer, first.source, first.changes) == ("executor", "memory", ())
    assert first.trace_ms == first.lower_ms == first.build_ms == 0 < first.total_ms
    assert re.fullmatch(r"first call; warmed up before: \d+\.\d ms", first.reason)
    assert re.fullmatch(r"warmed up once, \d+\.\d ms", f.explain().remarks[0])
    f.bind(A)()
    assert "one of its own for bind()" in f.explain()[-1].reason


def test_what_lower_traced_is_not_part_of_a_call() -> None:
    f = ok.compile(lambda x, k: x + k - 13)
    f.lower(A, 1)
    f(A, 1)
    (first,) = f.explain()
    assert first.trace_ms == first.lower_ms == 0
    assert first.ahead.startswith("traced before by lower(): ")
    f.warmup(A, 1.0)
    f.warmup(A, 1.0)
    f(A, 1.0)
    miss = f.explain()[-1]
    assert changes(miss) == {("argument `k` kind", "int", "float")}
    assert miss.layer == "executor" and miss.ahead.startswith("warmed up before: ")
    assert f.explain().remarks[0].startswith("warmed up 2 times, ")


def test_misses_of_shapes_are_bounded_and_leave_the_others() -> None:
    f = ok.compile(lambda x: x + 9)
    for n in range(1, explain.KEPT + 50):
        f(np.ones(n))
    shown = f.explain()
    assert len(shown) == explain.KEPT + 1  # the first call was traced, and stays
    assert shown.dropped == 48
    assert f.info().misses == len(shown) + shown.dropped
    assert f"{f.info().misses} misses" in str(shown) and "no longer remembered" in str(shown)
    assert shown[0].layer != "executor" and shown[-1].number == explain.KEPT + 49


def test_traces_are_bounded() -> None:
    f = ok.compile(lambda x, mode: x + 1)
    for n in range(explain.KEPT + 10):
        f(A, f"mode {n}")
    assert len(f.explain()) == explain.KEPT
    assert f.explain().dropped == 10
    assert f.info().traces == explain.KEPT + 10


def test_threads_lose_no_miss(parallelize: Parallelize) -> None:
    f = ok.compile(lambda x: x + 10)
    f(np.ones((1, 1)))

    def calls(thread: int) -> None:
        for n in range(20):
            f(np.ones((thread + 2, n + 1)))
            f(np.ones((thread + 2, n + 1), "f4"))

    parallelize(calls, 6)
    shown = f.explain()
    numbers = [m.number for m in shown]
    assert numbers == list(range(1, 1 + 1 + 6 * 40))
    assert sum(m.trace_ms > 0 for m in shown) == f.info().traces == 2
    assert f.info().misses == len(numbers)


def test_namesakes_trace_in_many_threads(parallelize: Parallelize) -> None:
    """The keys that definitions of one name share are added to and read by all of them."""

    def made() -> Any:
        return ok.compile(lambda x, mode: x + 15)

    functions = [made() for _ in range(8)]

    def calls(thread: int) -> None:
        for n in range(40):
            functions[thread](A, f"mode {n}")

    parallelize(calls, 8)
    assert [len(f.explain()) for f in functions] == [40] * 8


def test_hits_say_nothing() -> None:
    f = ok.compile(lambda x: x + 11)
    for _ in range(5):
        f(A)
    assert len(f.explain()) == 1
    assert f.info().hits == 4


def test_the_table_and_its_parts() -> None:
    f = ok.compile(lambda x, k: x * k, name="scaled")
    f(A, 2)
    f(A[:2], 2)
    shown = f.explain()
    assert isinstance(shown, ok.Explanation) and list(shown) == list(shown.misses)
    assert shown[-1] in shown[0:] and len(shown[0:1]) == 1
    head, first, *_, last = str(shown).splitlines()
    assert repr(shown) == str(shown)
    assert head.startswith("scaled: 2 misses, ")
    assert "trace " in first and "first call" in first
    assert "argument `x` shape: (3, 4) -> (2, 4)" in last
    assert str(ok.compile(lambda x: x).explain()).endswith(": 0 misses, 0.0 ms")
    with pytest.raises(AttributeError):
        shown[0].number = 3  # type: ignore[misc]


# ---- copies and fall-backs ----


def test_F127_copies_are_explained() -> None:
    f = ok.compile(lambda x, y: x + y)
    swapped, raw = A.astype(">f8"), np.zeros(8 * 12 + 1, "u1")
    unaligned = raw[1:].view("f8").reshape(3, 4)
    for _ in range(3):
        f(A, swapped)
    f(unaligned, A)
    space = np.zeros((4, 4))
    for _ in range(2):
        f(space[:3], A, out=space[1:])
    f(A, A, out=np.empty((3, 4), "f4"))
    text = str(f.explain())
    assert "argument `y` copied, since its byte order is not the machine's: 3 times" in text
    assert "argument `x` copied, since its elements are not aligned: once" in text
    assert "out= overlaps `x`: result 0 computed into a temporary and copied: 2 times" in text
    assert "out= needs another dtype, byte order or alignment: result 0 copied: once" in text
    assert f.info().copies == 7


def test_copies_for_errors_captures_and_packs() -> None:
    f = ok.compile(lambda x, y: x**y)
    f(np.array([2, 3]), np.array([3, 2]), out=np.empty(2, int))
    assert "an integer power may raise, so result 0 goes to out= by copy" in str(f.explain())
    g = ok.compile(lambda x, y: (x + 1, y + 1))
    u, v = np.zeros(4), np.zeros(4)
    g(u[:3], v[:3], out=(v[1:], u[1:]))
    assert "out= overlaps" in str(g.explain())
    h = ok.compile(lambda x: x.sum(axis=(0, 2)))
    h(np.ones((3, 4, 5)))
    assert "operands copied for a reduction or a custom op" in str(h.explain())
    assert h.info().copies >= 1


@pytest.mark.filterwarnings("ignore:compiled functions run in the interpreter")
def test_F127_the_interpreter_is_explained(tmp_path: Path) -> None:
    f = ok.compile(lambda x, y: x // y - 0)
    x, zero = np.array([7, 8]), np.array([2, 0])
    out = np.empty(2, int)
    with config.scope(cache_dir=tmp_path / "empty", cxx=str(tmp_path / "none")):
        f(x, zero)
        f(x, zero, out=out)
    np.testing.assert_array_equal(out, [3, 0])
    assert f.explain()[0].source == "interpreted"
    text = str(f.explain())
    assert "run by the interpreter, no working C++ compiler" in text and ": 2 times" in text
    assert "result 0 of the interpreter copied to out=: once" in text
    info = f.info()
    assert (info.calls, info.fallbacks, info.integer_faults, info.copies) == (2, 2, 2, 1)


def test_a_call_is_counted_once_though_it_starts_anew() -> None:
    f = ok.compile(lambda x, how: x + 1, static="how")

    class Clears:
        def __hash__(self) -> int:
            if not hit:
                hit.append(True)
                f.clear()
            return 7

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Clears)

    hit: list[bool] = []
    f(A, Clears())
    assert hit and f.info().calls == 1

    class Out:
        """Another library's array, whose door clears the function when the key is read already."""

        def __init__(self) -> None:
            self.array = np.empty((3, 4))

        def __dlpack__(self, **options: Any) -> Any:
            g.clear()
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    g = ok.compile(lambda x: x + 14)
    given = Out()
    g(A, out=given.array)
    g(A, out=given)
    np.testing.assert_array_equal(given.array, A + 14)
    assert g.info().calls == 2


# ---- the log ----


@pytest.fixture
def lines() -> Iterator[Callable[[], list[str]]]:
    records: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record.getMessage())

    logger = logging.getLogger(debug.NAME)
    kept, handler = logger.level, Keep()
    logger.addHandler(handler)
    yield lambda: [line for line in records if ": miss " in line]
    logger.removeHandler(handler)
    logger.setLevel(kept)
    native.tell_all_misses(False)


def test_the_log_has_the_reason_of_each_miss(lines: Callable[[], list[str]]) -> None:
    logging.getLogger(debug.NAME).setLevel(logging.INFO)
    f = ok.compile(lambda x, k: x + k, name="told")
    f(A, 1)
    f(A, 1)
    f(A[:2], 1)  # an executor only: level 2
    f(A, 1.0)
    assert lines() == [f"told: {f.explain()[0]}", f"told: {f.explain()[2]}"]
    assert "argument `k` kind: int -> float" in lines()[1]


def test_at_level_2_new_executors_are_told(lines: Callable[[], list[str]]) -> None:
    logging.getLogger(debug.NAME).setLevel(10)
    f = ok.compile(lambda x: x + 12, name="told")
    f(A)
    f(A[:2])
    assert lines() == [f"told: {miss}" for miss in f.explain()]
    assert len(lines()) == 2


def test_a_disabled_function_explains_itself() -> None:
    with config.scope(disable=True):
        f = ok.compile(lambda x: x + 1)
    f(A)
    assert "OPKILN_DISABLE is set: 1 plain calls" in str(f.explain())
