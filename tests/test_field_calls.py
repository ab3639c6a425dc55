"""FIELD-CASES about calling, by id: threads, forks, exits, memory, fall-backs, security."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opkiln as ok
from opkiln import native

Array = np.ndarray[Any, np.dtype[Any]]
Parallelize = Callable[..., list[object]]


def program(x: Array, y: Array) -> Array:
    """What most of these cases compile."""
    return np.tanh(x * y) + x


def child(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter, which must end by itself within a minute."""
    return subprocess.run(
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
        check=False,
    )


def test_F083_one_compiled_function_from_eight_threads(parallelize: Parallelize) -> None:
    f = ok.compile(program)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(500):
            x, y = rng.standard_normal((2, int(rng.integers(1, 300)))).astype("f4")
            np.testing.assert_allclose(f(x, y), program(x, y), rtol=3e-6, atol=1e-6)

    parallelize(work, 8)
    info = f.info()
    assert (info.calls, info.traces) == (4000, 1)


def test_F083_scratch_memory_is_nobody_elses(parallelize: Parallelize) -> None:
    def softmax(x: Array) -> Array:
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    f = ok.compile(softmax)
    assert any(operand.buffer >= 2 for operand in f.lower(np.ones((2, 3))).kernels[0].operands)

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal((20, 2000))  # long enough to leave the GIL
        want = softmax(x)
        for _ in range(200):
            np.testing.assert_allclose(f(x), want, rtol=1e-12)

    parallelize(work, 4)


def test_F084_the_first_call_may_come_from_any_thread() -> None:
    f = ok.compile(lambda x: x * 3 - 1)
    seen: list[Any] = []
    callback = ctypes.CFUNCTYPE(None)(lambda: seen.append(f(np.arange(3.0))))
    libc = ctypes.CDLL(None)
    handle = ctypes.c_ulong()

    # A thread that C made, unknown to Python's threading.
    start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: callback() or 0)
    assert libc.pthread_create(ctypes.byref(handle), None, start, None) == 0
    assert libc.pthread_join(handle, None) == 0
    for _ in range(3):
        thread = threading.Thread(target=callback)
        thread.start()
        thread.join()
    for result in seen:
        np.testing.assert_array_equal(result, np.arange(3.0) * 3 - 1)
    assert len(seen) == 4


def test_F086_a_fork_computes_too() -> None:
    code = """
import gc, os, threading, numpy as np, opkiln as ok
f = ok.compile(lambda x: np.exp(x) * 2)
x = np.linspace(0, 1, 100)
want = f(x)
g = ok.compile(lambda x: np.sin(x) + np.cos(x) * x)
builder = threading.Thread(target=lambda: g(x))  # a build in flight while we fork
builder.start()
pid = os.fork()
if pid == 0:
    same = (f(x) == want).all()
    seen = []
    thread = threading.Thread(target=lambda: seen.append((f(x) == want).all()))
    thread.start(); thread.join()
    same = same and seen == [True]
    new = ok.compile(lambda x: np.tanh(x) - 3)(x)  # and the child builds
    gc.collect()  # and drops what it built
    os._exit(0 if same and abs(new - (np.tanh(x) - 3)).max() < 1e-12 and g(x).size == 100 else 1)
_, status = os.waitpid(pid, 0)
builder.join()
raise SystemExit(os.waitstatus_to_exitcode(status))
"""
    done = child(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_F089_sixteen_threads_one_cold_key_one_build(parallelize: Parallelize) -> None:
    def slow_to_trace(x: Array) -> Array:
        time.sleep(0.02)  # time for every thread to get here
        return np.tanh(x * 1.25) * x - 0.3125

    f = ok.compile(slow_to_trace)
    x = np.linspace(-2, 2, 50)
    results = parallelize(lambda _: f(x), 16)
    assert all((np.asarray(r) == results[0]).all() for r in results)
    assert (f.info().traces, f.info().builds + f.info().disk_hits) == (1, 1)

    def one(k: int) -> Any:
        return ok.compile(lambda x: np.maximum(x, k) * x + k)(x)

    for k, result in enumerate(parallelize(one, 16)):
        np.testing.assert_array_equal(result, np.maximum(x, k) * x + k)


@pytest.mark.parametrize("n", [4, 10**6])
def test_F092_the_argument_may_change_after_the_call(n: int) -> None:
    f = ok.compile(lambda x: x + 1)
    x = np.arange(n)
    y = f(x)
    x[:] = -1
    np.testing.assert_array_equal(y, np.arange(1, n + 1))


def test_F105_no_compiler_is_slow_but_right(tmp_path: Path) -> None:
    code = """
import warnings, numpy as np, opkiln as ok
f = ok.compile(lambda x: (np.exp(x - x.max()) , x.sum(axis=0)))
x = np.linspace(0, 1, 12).reshape(3, 4)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        e, s = f(x)
assert abs(e - np.exp(x - x.max())).max() < 1e-12 and abs(s - x.sum(axis=0)).max() < 1e-12
assert [w.category.__name__ for w in caught] == ["OpkilnWarning"], caught
assert f.info().fallbacks == 3
out = np.empty((3, 4)), None
assert f(x, out=out)[0] is out[0]
"""
    done = child(code, PATH=str(tmp_path), OPKILN_CACHE_DIR=str(tmp_path / "cache"), CXX="")
    assert done.returncode == 0, done.stderr


def test_F113_a_graph_of_20000_nodes() -> None:
    def deep(x: Array) -> Array:
        for _ in range(10_000):
            x = x * 0.5 + 1
        return x

    lowered = ok.compile(deep).lower(np.ones(3))
    assert len(lowered.graph.nodes) > 20_000


def test_F111_a_chain_of_2000_operations_compiles() -> None:
    def chain(x: Array) -> Array:
        for k in range(1000):
            x = x * 0.5 + k
        return x

    x = np.ones(5)
    np.testing.assert_array_equal(ok.compile(chain)(x), chain(x))


@pytest.mark.parametrize("count", [40, 300, 1100])
def test_F112_many_distinct_inputs(count: int) -> None:
    def total(*xs: Array) -> Array:
        result = xs[0]
        for x in xs[1:]:
            result = result + x
        return result

    xs = [np.full(3, float(i)) for i in range(count)]
    np.testing.assert_array_equal(ok.compile(total)(*xs), total(*xs))


def test_F122_F123_dropped_functions_and_many_shapes_stay_bounded(
    parallelize: Parallelize,
) -> None:
    f = ok.compile(program)
    for n in range(1, 3000):
        f(np.ones(n, "f4"), np.ones(n, "f4"))
    assert f.info().executors <= 1024
    assert f.info().builds + f.info().disk_hits == 1

    def drop(_: int) -> None:
        for k in range(50):
            ok.compile(lambda x, k=k: x + k, static="k")(np.ones(3), k)
        gc.collect()
        ok.compile(program)(np.ones(5, "f4"), np.ones(5, "f4"))  # a miss sweeps what is dead
        assert native.thread_stats()["executors"] <= 2

    parallelize(drop, 1)  # a thread of its own: this one's executors are at their limit already
    g = ok.compile(lambda x: x)
    g(np.ones(3))
    ref = weakref.ref(g)
    del g
    gc.collect()
    assert ref() is None


def test_F126_exit_is_clean_with_everything_alive() -> None:
    code = """
import threading, numpy as np, opkiln as ok
f = ok.compile(lambda x: np.exp(x))
f(np.ones(3))
try: ok.compile(lambda x: x + np.ones(4))(np.ones(3))
except ValueError: pass
threading.Thread(target=lambda: f(np.ones(2_000_000)), daemon=True).start()
"""
    done = child(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_F127_alternating_shapes_keep_their_executors() -> None:
    f = ok.compile(program)
    arrays = [np.ones(n, "f4") for n in range(1, 21)]
    for _ in range(3):
        for x in arrays:
            f(x, x)
    info = f.info()
    assert (info.misses, info.hits, info.fallbacks) == (20, 40, 0)


def test_F133_nothing_is_printed_by_default() -> None:
    done = child("import numpy as np, opkiln as ok; ok.compile(lambda x: x + 1)(np.ones(3))")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_F142_names_and_constants_cannot_inject_source() -> None:
    wild = 'x"; } /* */ $(touch x) \n #include <bad>'
    f = ok.compile(lambda x: x * np.inf + np.float32("nan"), name=wild)
    source = f.lower(np.ones(3, "f4")).source
    assert "touch" not in source
    assert "bad" not in source
    with np.errstate(all="ignore"):
        assert np.isnan(f(np.ones(3, "f4"))).all()


def test_disabled_runs_plain_numpy() -> None:
    code = """
import numpy as np, opkiln as ok
@ok.compile
def f(x):
    if x.sum() > 0: return x * 2   # cannot be traced: so this is NumPy
    return x
x = np.ones(3); out = np.empty(3)
assert (f(x, out=out) == 2).all() and f(x, out=out) is out and f.__name__ == "f"
assert f.info().fallbacks == 2
"""
    done = child(code, OPKILN_DISABLE="1")
    assert done.returncode == 0, done.stderr


def test_settings_reach_the_pools() -> None:
    code = """
import threading, numpy as np, opkiln as ok
from opkiln import native
f = ok.compile(lambda x: x + 1)
f(np.ones(3))
limits = native.get_limits()
assert (limits["pool_limit"], limits["timeout_s"]) == (3, 2.5), limits
caught = []
def work():
    try: f(np.ones(3))
    except ok.errors.PoolLimitError as e: caught.append(str(e))
thread = threading.Thread(target=work); thread.start(); thread.join()
assert "OPKILN_MAX_THREAD_POOLS" in caught[0], caught
assert (ok.runtime_info().totals.calls, ok.runtime_info().threads) == (1, 1)
"""
    done = child(code, OPKILN_POOL_CAP="3", OPKILN_POOL_TIMEOUT="2.5", OPKILN_MAX_THREAD_POOLS="1")
    assert done.returncode == 0, done.stderr


def test_F062_file_times_decide_nothing(tmp_path: Path) -> None:
    code = """
import os, pathlib, sys, numpy as np, opkiln as ok
f = ok.compile(lambda x: np.exp(x) * 1.125 + x)
f(np.ones(3))
print(f.info().builds)
for path in pathlib.Path(os.environ["OPKILN_CACHE_DIR"]).rglob("*"):
    os.utime(path, (int(sys.argv[1]),) * 2)
g = ok.compile(lambda x: np.exp(x) * 1.25 + x)  # another text, whatever is older
assert abs(g(np.ones(3)) - (np.exp(1.0) * 1.25 + 1)).max() < 1e-12
"""
    cache = str(tmp_path / "cache")
    builds = []
    for moment in (0, 2_000_000_000, 1):  # the epoch, the future, the epoch again
        done = subprocess.run(
            [sys.executable, "-c", code, str(moment)],
            capture_output=True,
            text=True,
            env=os.environ | {"OPKILN_CACHE_DIR": cache},
            check=True,
        )
        builds.append(done.stdout.strip())
    assert builds == ["1", "0", "0"]


def test_F087_F088_one_thread_starts_no_other() -> None:
    code = """
import os, numpy as np
before = len(os.listdir("/proc/self/task"))
import opkiln as ok
f = ok.compile(lambda x: np.tanh(x) + 1)
outer = ok.compile(lambda x: f(x) * 2)
outer(np.ones(1_000_000)), f(np.ones(3))
assert len(os.listdir("/proc/self/task")) == before
"""
    done = child(code, OPENBLAS_NUM_THREADS="1", OPKILN_NUM_THREADS="1")
    assert (done.returncode, done.stderr) == (0, "")


def test_F135_a_hit_runs_no_python() -> None:
    @ok.compile
    def f(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p):  # noqa: E741
        return a + b + c + d + e + f + g + h + i + j + k + l + m + n + o + p

    xs = [np.ones(8, "f4")] * 16
    f(*xs)
    events: list[str] = []
    sys.setprofile(lambda frame, event, arg: events.append(event))
    try:
        f(*xs)
    finally:
        sys.setprofile(None)
    assert [e for e in events if e == "call"] == []
    assert f.info().hits == 1


def test_F136_a_thousand_layouts_stay_hits() -> None:
    f = ok.compile(program)
    arrays = [np.ones(n, "f4") for n in range(1, 901)]
    seen: list[ok.Info] = []

    def work() -> None:  # a thread of its own has an empty table
        for _ in range(2):
            for x in arrays:
                f(x, x)
        seen.append(f.info())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert (seen[0].misses, seen[0].hits, seen[0].evictions) == (900, 900, 0)
