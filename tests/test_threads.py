"""Threads inside calls: counts and where they come from, the same bits for any count, workers."""

from __future__ import annotations

import gc
import importlib.util
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.together import Case, case, together
from tests.values import DTYPES, bits, dtypes_of, function_of, operands

import opkiln as ok
from opkiln import native
from opkiln.ops.table import ELEMENTWISE
from opkiln.runtime.errors import ConfigError

Array = np.ndarray[Any, np.dtype[Any]]
Parallelize = Callable[..., list[object]]
F4 = np.dtype("f4")
COUNTS = (1, 2, 3, 5)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Each test begins and ends without workers, with the default count."""
    yield
    ok.set_num_threads(None)
    native.set_helper_ns(None)
    native.stop_workers()


@pytest.fixture
def cut() -> None:
    """Nests of more than a little work are cut however little that saves."""
    native.set_helper_ns(0)


def child(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the code in a new interpreter; one that hangs fails."""
    kept = {n: v for n, v in os.environ.items() if n not in {"OMP_NUM_THREADS"}}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**kept, **environment}, text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip


def printed(code: str, **environment: str) -> str:
    done = child(code, **environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


# ---- how many ----


def test_the_count_is_set_and_given_back() -> None:
    default = ok.get_num_threads()
    assert default == native.usable_cpus() >= 1
    ok.set_num_threads(3)
    assert ok.get_num_threads() == ok.config.num_threads == native.num_threads() == 3
    with ok.set_num_threads(5):
        assert ok.get_num_threads() == 5
        with pytest.raises(KeyError), ok.set_num_threads(7):
            raise KeyError
        assert ok.get_num_threads() == 5
    assert ok.get_num_threads() == 3
    ok.config.num_threads = 2
    assert native.num_threads() == 2
    ok.set_num_threads(None)
    assert ok.get_num_threads() == native.num_threads() == default


def test_a_scope_is_of_its_thread_alone() -> None:
    ok.set_num_threads(2)
    seen: list[int] = []
    with ok.config.scope(num_threads=1), ok.config.scope(num_threads=4):
        assert ok.get_num_threads() == 4
        assert native.num_threads() == 2
        assert native.set_own_num_threads(4) == 4
        other = threading.Thread(target=lambda: seen.append(ok.get_num_threads()))
        other.start()
        other.join()
    assert seen == [2]
    assert native.set_own_num_threads(0) == 0
    assert ok.get_num_threads() == 2


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "many"])
def test_a_count_that_is_none_is_refused(count: Any) -> None:
    with pytest.raises(ConfigError, match=r"num_threads.* expected a whole number from 1"):
        ok.set_num_threads(count)


COUNT = "import opkiln as ok; print(ok.get_num_threads())"


def test_F088_the_environment_decides() -> None:
    assert printed(COUNT, OPKILN_NUM_THREADS="3", OMP_NUM_THREADS="2") == "3"
    assert printed(COUNT, OMP_NUM_THREADS="2,1") == "2"
    bad = child(COUNT, OMP_NUM_THREADS="two")
    assert "ConfigError: OMP_NUM_THREADS: expected a whole number from 1, got 'two'" in bad.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity")
def test_F088_the_default_is_what_affinity_leaves() -> None:
    pin = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    assert printed(pin + COUNT) == "1"
    # A thread that is pinned does not bind the others.
    code = """
        import os, threading
        import opkiln as ok
        seen = []
        def pinned():
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            seen.append(ok.get_num_threads())
        thread = threading.Thread(target=pinned); thread.start(); thread.join()
        assert seen == [len(os.sched_getaffinity(0))], seen
    """
    assert printed(code) == ""


def test_no_thread_is_started_by_import_compile_or_small_calls() -> None:
    code = """
        import pathlib
        import numpy as np, opkiln as ok
        from opkiln import native
        def threads():
            names = pathlib.Path("/proc/self/task").glob("*/comm")
            return sum(name.read_text().startswith("opkiln") for name in names)
        f = ok.compile(lambda x: np.exp(x) * np.tanh(x))
        ok.set_num_threads(3)
        f(np.ones(1000, "f4"))
        assert threads() == native.worker_stats()["workers"] == 0
        native.set_helper_ns(0)
        f(np.ones(10**6, "f4"))
        assert threads() == native.worker_stats()["workers"] == 2
        ok.set_num_threads(1)
        native.stop_workers()
        assert threads() == native.worker_stats()["workers"] == 0
    """
    assert printed(code) == ""


def test_threadpoolctl_limits_opkiln_too() -> None:
    pytest.importorskip("threadpoolctl")
    code = """
        import opkiln as ok, threadpoolctl
        f = ok.compile(lambda x: x + 1)
        ok.set_num_threads(3)
        ours = [i for i in threadpoolctl.threadpool_info() if i["user_api"] == "opkiln"]
        assert [(i["num_threads"], i["internal_api"]) for i in ours] == [(3, "opkiln")], ours
        assert ours[0]["version"] == ok.__version__
        with threadpoolctl.threadpool_limits(limits=1):
            assert ok.get_num_threads() == 1
        assert ok.get_num_threads() == 3
        with threadpoolctl.threadpool_limits(limits=2, user_api="opkiln"):
            assert ok.get_num_threads() == 2
    """
    assert printed(code) == ""
    code = "import sys, opkiln as ok; ok.compile(abs); assert 'threadpoolctl' not in sys.modules"
    assert printed(code) == ""


# ---- the same bits for any count ----


def with_counts(functions: list[Callable[[], Any]], names: list[str]) -> None:
    """Each gives the same bits with every count; workers did take part."""
    helped = native.worker_stats()["helped"]
    for function, name in zip(functions, names, strict=True):
        ok.set_num_threads(1)
        want = [bits(r) for r in _tuple(function())]
        for count in COUNTS[1:]:
            ok.set_num_threads(count)
            split = native.worker_stats()["split"]
            got = [bits(r) for r in _tuple(function())]
            assert native.worker_stats()["split"] > split, f"{name} was not cut"
            for one, other in zip(got, want, strict=True):
                np.testing.assert_array_equal(one, other, err_msg=f"{name}, {count} threads")
    assert native.worker_stats()["helped"] > helped


def _tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _compiled(cases: list[Case]) -> list[Callable[[], Any]]:
    """Calls whose kernels are built; the cases' functions are compiled already."""
    together(cases)
    return [lambda c=c: c.fn(*c.args) for c in cases]  # type: ignore[misc]


@pytest.mark.usefixtures("cut")
def test_every_row_has_the_same_bits_for_any_count() -> None:
    cases: list[Case] = []
    for row in ELEMENTWISE.values():
        dtypes = next(d for t in (F4, *DTYPES) if (d := dtypes_of(row, t)) is not None)
        f = ok.compile(function_of(row))
        args = operands(row, dtypes, n=3)
        n = 300_007 if min(d.itemsize for d in dtypes) > 1 else 900_001  # enough, and odd
        args = tuple(np.resize(a, n) for a in args)
        cases.append(case(f, *args, name=row.name))
    with_counts(_compiled(cases), [c.name for c in cases])


def _softmax(x: Array) -> Any:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _spread(x: Array) -> Any:
    return (x.mean(axis=-1), x.var(axis=-1), x.argmax(axis=-1), x.sum(axis=-1))


SHAPES = {
    "short rows": (40_011, 7),
    "rows": (1_503, 211),
    "few long rows": (5, 60_013),
}


@pytest.mark.usefixtures("cut")
def test_nests_of_all_kinds_have_the_same_bits_for_any_count() -> None:
    rng = np.random.default_rng(0)
    softmax, spread = ok.compile(_softmax), ok.compile(_spread)
    leading = ok.compile(lambda x: (x.sum(axis=0), x.min(axis=0)))
    middle = ok.compile(lambda x: (x * x).sum(axis=(0, 2)))
    mix = ok.compile(lambda x, y: np.exp(x) * y - x)
    product = ok.compile(np.matmul)
    cases = []
    for name, shape in SHAPES.items():
        x = rng.standard_normal(shape).astype("f4")
        cases += [
            case(softmax, x, name=f"softmax {name}"),
            case(spread, x, name=f"spread {name}"),
            case(leading, x if len(x) < 9 else np.ascontiguousarray(x.T), name=f"leading {name}"),
            case(mix, x, x[:, ::-1], name=f"mix {name}, reversed"),
            case(mix, x, np.asfortranarray(x), name=f"mix {name}, transposed"),
            case(mix, x[:, :1], x[:1], name=f"mix {name}, broadcast"),
        ]
    box = rng.standard_normal((61, 53, 67)).astype("f4")
    cases += [
        case(mix, box[::2, :, :66:3], box[::2, ::-1, :66:3][..., ::-1], name="mix box"),
        case(middle, box, name="middle"),
        case(middle, box.transpose(2, 1, 0)[:, ::2], name="middle, packed"),
        case(product, *rng.standard_normal((2, 301, 13, 13)).astype("f4"), name="products"),
    ]
    with_counts(_compiled(cases), [c.name for c in cases])


@pytest.mark.usefixtures("cut")
def test_faults_of_all_ranges_are_seen() -> None:
    f = ok.compile(lambda x, y: x // y)
    x = np.full(400_001, 5, "i4")
    for place in (0, 200_000, 400_000):
        y = np.ones_like(x)
        y[place] = 0
        ok.set_num_threads(4)
        before = f.info().integer_faults
        np.testing.assert_array_equal(f(x, y), np.where(y, x, 0))
        assert f.info().integer_faults == before + 1


def test_F085_no_part_of_a_result_is_left_out() -> None:
    f = ok.compile(lambda x, y: np.tanh(x * y) * np.exp(-x))
    x, y = np.random.default_rng(1).uniform(0.1, 1, (2, 100_003)).astype("f4")
    native.set_helper_ns(0)
    ok.set_num_threads(1)
    want = f(x, y)
    out = np.empty_like(x)
    for count in (2, 3, 8, 32):
        ok.set_num_threads(count)
        for _ in range(100):
            out.fill(np.nan)
            f(x, y, out=out)
            np.testing.assert_array_equal(out, want)


# ---- processes ----

PARALLEL = """
    import multiprocessing, os, sys, threading
    import numpy as np, opkiln as ok
    from opkiln import native
    native.set_helper_ns(0)
    ok.set_num_threads(2)
    f = ok.compile(lambda x: np.exp(x) * np.tanh(x))
    x = np.linspace(0, 1, 300_007, dtype="f4")
    want = f(x)
    assert native.worker_stats()["workers"] == 1
    def same(_=None):
        before = native.worker_stats()["split"]
        return bool((f(x) == want).all() and native.worker_stats()["split"] > before)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_F086_a_forked_child_starts_workers_of_its_own() -> None:
    code = textwrap.dedent(PARALLEL) + textwrap.dedent("""
        import signal, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        going, stop = threading.Event(), threading.Event()
        def calls():  # a kernel runs, with a worker, while this process forks
            while not stop.is_set():
                f(x)
                going.set()
        other = threading.Thread(target=calls); other.start(); going.wait()
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)
                fine = native.worker_stats() == dict(workers=0, busy=0, split=0, helped=0)
                fine = fine and same() and native.worker_stats()["workers"] == 1
                os._exit(0 if fine else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        stop.set(); other.join()
        with multiprocessing.get_context("fork").Pool(4) as pool:
            assert all(pool.map(same, range(8)))
        assert same()
    """)
    assert printed(code) == ""


WORKER = """
import concurrent.futures, multiprocessing
import numpy as np, opkiln as ok
from opkiln import native

f = ok.compile(lambda x: np.exp(x) * np.tanh(x))

def begin():
    native.set_helper_ns(0)
    ok.set_num_threads(2)

def work(n):
    x = np.linspace(0, 1, n, dtype="f4")
    return f(x).tobytes(), native.worker_stats()["split"]

if __name__ == "__main__":
    begin()
    want = work(300_007)
    for method in ("spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with concurrent.futures.ProcessPoolExecutor(1, context, initializer=begin) as pool:
            for got in pool.map(work, [300_007] * 2):
                assert got[0] == want[0] and got[1] > 0
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(got[0] == want[0] for got in pool.map(work, [300_007] * 20))
"""


def test_F088_executors_and_their_ways_to_start_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(WORKER)
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("end", ["pass", "import sys; sys.exit()", "raise SystemExit(0)"])
def test_F126_exit_while_workers_run(end: str) -> None:
    code = textwrap.dedent(PARALLEL) + textwrap.dedent(f"""
        going = threading.Event()
        def calls():
            while True:
                f(x)
                going.set()
        for _ in range(2):
            threading.Thread(target=calls, daemon=True).start()
        going.wait()
        {end}
    """)
    assert printed(code) == ""


def test_F126_the_last_call_comes_from_a_thread_after_main() -> None:
    code = textwrap.dedent(PARALLEL) + textwrap.dedent("""
        import atexit
        atexit.register(lambda: print("end", same()))
        def late():
            threading.main_thread().join()
            print("late", same())
        threading.Thread(target=late).start()
    """)
    assert printed(code).split() == ["late", "True", "end", "True"]


def test_where_no_thread_can_be_started_the_caller_works_alone() -> None:
    code = """
        import resource
        import numpy as np, opkiln as ok
        from opkiln import native
        f = ok.compile(lambda x: np.exp(x) * np.tanh(x))
        x = np.linspace(0, 1, 300_007, dtype="f4")
        ok.set_num_threads(1)
        want = f(x)
        ok.set_num_threads(8)
        native.set_helper_ns(0)
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**22, limits[1]))  # no room for a stack
        got = f(x)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        assert (got == want).all() and native.worker_stats()["workers"] == 0
        f(x)
        assert native.worker_stats()["workers"] > 0
    """
    assert printed(code) == ""


def test_sub_interpreters_are_refused() -> None:
    interpreters = next(
        (n for n in ("_interpreters", "_xxsubinterpreters") if importlib.util.find_spec(n)), None
    )
    if interpreters is None:
        pytest.skip("no module for sub-interpreters")
    made = "create('legacy')" if interpreters == "_interpreters" else "create(isolated=False)"
    for first in ("", "ok.compile(abs)"):  # loaded before, in the interpreter of the process
        code = textwrap.dedent(f"""
            import sys, {interpreters} as interpreters
            import opkiln as ok
            {first}
            code = '''
            import sys, warnings
            sys.path[:] = %r
            warnings.simplefilter("ignore")  # NumPy's own
            import opkiln as ok
            try:
                ok.compile
            except ImportError as error:
                from opkiln.runtime.errors import OpkilnError
                assert isinstance(error, OpkilnError)
                print(error)
            ''' % (sys.path,)
            import textwrap
            interpreters.run_string(interpreters.{made}, textwrap.dedent(code))
        """)
        said = printed(code)
        assert "opkiln cannot be used in a sub-interpreter" in said
        assert "how to fix: use threads or processes" in said


# ---- many threads ----


def live() -> dict[str, int]:
    """What threads may leave behind."""
    gc.collect()
    stats = native.thread_stats()
    names = ("live_tables", "events_outstanding", "dead_functions")
    totals = ok.runtime_info().totals
    counts = {n: getattr(totals, n) for n in ("executors", "bytes", "workspace_bytes", "in_flight")}
    return {**{n: stats[n] for n in names}, **counts}


def test_K12_forty_short_threads_leave_nothing_behind() -> None:
    native.set_helper_ns(0)
    ok.set_num_threads(2)
    f = ok.compile(_softmax)
    large, small = np.ones((3001, 41), "f4"), np.ones((3, 5), "f4")
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for x in (large, small, large):
                assert f(x).shape == x.shape
            with pytest.raises(ok.errors.ArgumentError):
                f(large, large)
        except BaseException as error:
            errors.append(error)

    before: dict[str, int] = {}
    for k in range(40):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert not errors
        if k == 0:
            before = live()
        assert native.worker_stats()["workers"] == 1
    assert live() == before
    assert f.info().calls == 40 * 3
    assert f.info().traces == 1


@pytest.mark.parametrize("count", [1, 4])
def test_F083_F087_many_threads_call_what_is_cut(count: int, parallelize: Parallelize) -> None:
    native.set_helper_ns(0)
    f = ok.compile(_softmax)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((m, 97)).astype("f4") for m in (3, 401, 2003, 997)]
    ok.set_num_threads(1)
    want = [f(x) for x in inputs]
    ok.set_num_threads(count)

    def work(k: int) -> None:
        for i in range(100):
            at = (i + k) % len(inputs)
            np.testing.assert_array_equal(f(inputs[at]), want[at])

    before = f.info().calls
    parallelize(work, 8)
    assert f.info().calls == before + 800
    assert native.worker_stats()["workers"] <= count - 1
    assert native.worker_stats()["busy"] == 0


def test_O4_many_calls_over_many_keys_and_threads_stay_flat(parallelize: Parallelize) -> None:
    f = ok.compile(lambda x, y: x * y + x)
    arrays = [np.arange(n, dtype="f4") for n in range(1, 51)]
    before = live()["executors"]
    warm, measured, done = (threading.Barrier(9) for _ in range(3))
    seen: list[dict[str, int]] = []
    calls = 1500 // len(arrays)  # of each key; benchmarks/memory.py counts more

    def work(k: int) -> None:
        if k == 8:  # the one that looks
            for barrier in (warm, measured):
                barrier.wait()
                seen.append(live())
            done.wait()
            return
        for x in arrays:
            f(x, x)
        warm.wait()
        for _ in range(calls):
            for x in arrays:
                f(x, x)
        measured.wait()
        for x in arrays[::7]:
            np.testing.assert_array_equal(f(x, x), x * x + x)
        done.wait()

    parallelize(work, 9)
    warm_counts, counts = seen
    assert counts["executors"] == before + 8 * 50
    for name in ("executors", "events_outstanding", "live_tables", "in_flight"):
        assert counts[name] == warm_counts[name], name
    info = f.info()
    assert info.calls == 8 * (50 * (calls + 1) + len(arrays[::7]))
    assert (info.traces, info.misses) == (1, 8 * 50)
    assert live()["executors"] == counts["executors"] - 8 * 50
