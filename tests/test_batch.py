"""Kernels of many calls in few translation units."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.together import PER_UNIT, Case, case, together

import opkiln as ok
from opkiln.runtime import batch, program
from opkiln.runtime.config import config
from opkiln.runtime.errors import CompileFailed
from opkiln.runtime.jit import build
from opkiln.runtime.kernel import Apply

X = np.linspace(0.5, 2, 12).reshape(3, 4)


def scaled(k: int) -> Callable[..., Any]:
    """Functions that no other test has built, each with a kernel of its own."""
    return lambda x: np.sqrt(x) * 1.625 + k


def compiler_runs() -> int:
    return build.counters["direct"] + build.counters["driver"]


def test_forty_kernels_take_two_compiler_runs(tmp_path: Any) -> None:
    before = compiler_runs()
    with config.scope(cache_dir=str(tmp_path)):
        functions = [ok.compile(scaled(k)) for k in range(40)]
        results = together([case(f, X) for f in functions])
        again = [f(X) for f in functions]
    for k, (result, second) in enumerate(zip(results, again, strict=True)):
        np.testing.assert_array_equal(result, scaled(k)(X))
        np.testing.assert_array_equal(second, result)
    assert compiler_runs() - before == 2  # 32 kernels, and 8
    assert sum(f.info().builds + f.info().disk_hits for f in functions) == 0  # no call built


def test_a_unit_holds_one_width_and_each_kernel_once() -> None:
    narrow, wide = X.astype("f4"), X
    functions = [ok.compile(scaled(k)) for k in range(100, 140)]
    wanted: list[batch.Want] = []
    for f in functions:
        for x in (narrow, wide, narrow):
            record, requests = f._missing(x)
            wanted.append(batch.Want(record.program, tuple(requests)))
    units = batch._packed(wanted, PER_UNIT)
    assert sorted(at for unit in units for at in unit) == list(range(120))
    for unit in units:
        assert len({wanted[at].program.graph.outputs[0].dtype for at in unit}) == 1
    texts = [batch.unit_of([wanted[at] for at in unit])[0] for unit in units]
    for at in (0, 1):  # as if alone: the same kernel in the same vectors
        alone = wanted[at].program.source(wanted[at].requests)
        assert alone.count("OK_N") and alone.splitlines()[2] in {t.splitlines()[2] for t in texts}


def breaking(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    """The compiler refuses every unit with this op in it."""
    whole = program.emit

    def emit(jobs: Any, **options: Any) -> str:
        broken = any(
            isinstance(s, Apply) and s.row == op for job in jobs for s in job.kernel.statements()
        )
        return whole(jobs, **options) + ("#error planted\n" if broken else "")

    monkeypatch.setattr(program, "emit", emit)


def test_a_failure_names_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, "expm1")
    functions = [ok.compile(scaled(k)) for k in range(200, 205)]
    bad = ok.compile(lambda x: np.expm1(x) - 0.34375)
    cases: list[Case] = [case(f, X) for f in functions]
    cases.insert(3, case(bad, X, name="the odd one"))
    with pytest.raises(CompileFailed, match="planted") as caught:
        together(cases)
    assert caught.value.__notes__ == ["case 3: the odd one"]
    for k, f in enumerate(functions):  # the others have their kernels all the same
        assert f._missing(X)[1] == []
        np.testing.assert_array_equal(f(X), scaled(200 + k)(X))


def test_all_that_want_a_kernel_hear_that_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, "expm1")
    f = ok.compile(lambda x: np.expm1(x) - 0.40625)
    record, requests = f._missing(X)
    want = batch.Want(record.program, tuple(requests))
    for outcome in batch.build([want, want]):
        assert isinstance(outcome, CompileFailed)


def test_side_by_side_keeps_order_and_stops_at_an_error() -> None:
    both = threading.Barrier(2, timeout=60)

    def task(k: int) -> int:
        if k < 2:
            both.wait()  # passes only if two run at once
        return k

    told: list[tuple[int, int]] = []
    with config.scope(max_jobs=2):
        tasks = [lambda k=k: task(k) for k in range(5)]
        assert batch.side_by_side(tasks, lambda *at: told.append(at)) == [0, 1, 2, 3, 4]
    assert told[-1] == (5, 5)

    begun: list[int] = []

    def failing(k: int) -> None:
        begun.append(k)
        if k == 1:
            raise KeyboardInterrupt

    with config.scope(max_jobs=1), pytest.raises(KeyboardInterrupt):
        batch.side_by_side([lambda k=k: failing(k) for k in range(5)])
    assert begun == [0, 1]

    calling = threading.current_thread()
    helper: list[threading.Thread] = []
    found = threading.Event()

    def either(k: int) -> None:
        begun.append(k)
        if threading.current_thread() is calling:
            found.wait(60)
            helper[0].join(60)
        else:
            helper.append(threading.current_thread())
            found.set()
            raise KeyError(k)

    begun.clear()
    with config.scope(max_jobs=2), pytest.raises(KeyError):
        batch.side_by_side([partial(either, k) for k in range(5)])
    assert set(begun) <= {0, 1}


def test_settings_of_a_scope_hold_in_all_threads() -> None:
    both = threading.Barrier(2, timeout=60)

    def setting() -> float:
        both.wait()  # one of the two is asked for in another thread
        return config.compile_timeout

    with config.scope(max_jobs=2, compile_timeout=12.5):
        assert batch.side_by_side([setting, setting]) == [12.5, 12.5]


def blur(times: int) -> Callable[..., Any]:
    """A loop that tracing unrolls: each pass is a copy and a write into its inside."""

    def fn(x: Any) -> Any:
        for _ in range(times):
            y = x.copy()
            y[1:-1] = 0.5 * x[:-2] + 0.34375 * x[2:]
            x = y
        return x

    return fn


def test_equal_kernels_of_a_loop_are_compiled_once() -> None:
    x = np.linspace(-1, 1, 97)
    functions = [ok.compile(blur(times)) for times in (3, 12)]
    units = [f.lower(x).source for f in functions]
    few, many = (unit.count("ok_args *a, i64 row_begin") for unit in units)
    assert few == many <= 3  # entries that have a body: the first, the inner and the last pass
    assert units[1].count(": as ok_k") == len(functions[1].lower(x).kernels) - many
    for f, times in zip(functions, (3, 12), strict=True):
        np.testing.assert_array_equal(f(x), blur(times)(x))
        assert f.info().builds + f.info().disk_hits == 1


def test_equal_kernels_of_a_batch_are_compiled_once(tmp_path: Any) -> None:
    functions = [ok.compile(blur(times)) for times in (5, 6, 7)]
    x = np.linspace(-2, 1, 31)
    record = [f._missing(x) for f in functions]
    whole = [(r.program, requests) for r, requests in record]
    text, symbols = batch.unit_of(whole)
    assert len(symbols) == len(set(symbols)) == sum(len(requests) for _, requests in whole)
    alone = batch.unit_of(whole[:1])[0]
    entry = "ok_args *a, i64 row_begin"
    assert text.count(entry) == alone.count(entry)
    with config.scope(cache_dir=str(tmp_path)):
        for f, result in zip(functions, together([case(f, x) for f in functions]), strict=True):
            np.testing.assert_array_equal(result, f.__wrapped__(x))
