"""f.bind(): one call repeated on the same arrays, checked on every run."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opkiln as ok
from opkiln import errors

Array = np.ndarray[Any, np.dtype[Any]]
TABLE = np.linspace(1, 2, 5)


@ok.compile
def chain(x: Any, y: Any) -> Any:
    return np.tanh(x * y) + x


@ok.compile
def several(x: Any, h: Any, *, shift: Any = 1.0) -> Any:
    total = x.sum()
    return {"all": [x * h + shift, total], "rows": x.shape[0], "same": total, "word": "constant"}


@ok.compile
def looked_up(x: Any) -> Any:
    return x * TABLE


@ok.compile
def divided(a: Any, b: Any) -> Any:
    return a // b


def pair() -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((3, 5)), rng.standard_normal(5)


def test_results_are_those_of_a_call_in_the_same_arrays() -> None:
    x, y = pair()
    g = chain.bind(x, y)
    before = chain.info()
    first = g()
    np.testing.assert_array_equal(first, chain(x, y))
    x[:], y[:] = pair()[0] + 1, 2.5
    assert g() is first  # new data in, the same array out
    np.testing.assert_array_equal(first, chain(x, y))
    after = chain.info()
    assert (after.calls - before.calls, after.builds, after.traces) == (4, before.builds, 1)
    out = np.empty_like(x, order="F")
    into = chain.bind(x, y=y, out=out)
    assert into() is out
    np.testing.assert_array_equal(out, first)
    assert into.__wrapped__ is chain  # type: ignore[attr-defined]
    assert repr(into) == "<bound call of chain>"


def test_trees_scalars_numbers_and_weak_arguments() -> None:
    x = np.arange(6.0).reshape(2, 3)
    g = several.bind(x, 3, shift=0.5)
    for step in (1.0, 10.0):
        x *= step
        got, want = g(), several(x, 3, shift=0.5)
        assert (got["rows"], got["word"], got["same"]) == (2, "constant", want["same"])
        assert type(got["all"][1]) is np.float64
        np.testing.assert_array_equal(got["all"][0], want["all"][0])
    assert g() is not g() and g()["all"][0] is g()["all"][0]
    total = np.array(0.0)
    h = several.bind(x, 3, out=(None, total))
    assert h()["same"] is total and total == x.sum()
    given = [x, 2.0]
    listed = ok.compile(lambda pair: pair[0] * pair[1]).bind(given)
    given[0] = np.zeros((9, 9))  # what is bound stays bound
    np.testing.assert_array_equal(listed(), x * 2.0)


def test_captured_arrays_are_read_in_place() -> None:
    x = np.ones(5)
    g = looked_up.bind(x)
    old = TABLE[0]
    try:
        TABLE[0] = 7.0
        np.testing.assert_array_equal(g(), TABLE)
        TABLE.shape = (1, 5)
        with pytest.raises(ValueError, match=r"captured array.*changed its shape"):
            g()
    finally:
        TABLE.shape = (5,)
        TABLE[0] = old
    np.testing.assert_array_equal(g(), TABLE)


def reshape(a: Array) -> None:
    a.shape = (5, 3)


def view_as_integers(a: Array) -> None:
    a.dtype = np.dtype("i8")  # type: ignore[misc]


def resize(a: Array) -> None:
    a.resize((2, 5), refcheck=False)


def enlarge(a: Array) -> None:
    a.resize((3000, 5), refcheck=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("change", [reshape, view_as_integers, resize, enlarge])
def test_an_array_changed_in_place_is_refused(change: Callable[[Array], None]) -> None:
    for at, name in enumerate(("x", "out")):
        arrays = [pair()[0], np.empty((3, 5))]
        y = pair()[1]
        g = chain.bind(arrays[0], y, out=arrays[1])
        g()
        change(arrays[at])
        with pytest.raises(errors.ShapeError, match=rf"chain\(\): {name} changed its") as caught:
            g()
        assert "bind" in str(caught.value.fix or caught.value)


def test_read_only_out_is_refused() -> None:
    x, y = pair()
    out = np.zeros_like(x)
    g = chain.bind(x, y, out=out)
    out.flags.writeable = False
    with pytest.raises(errors.ReadOnlyError, match="out became read-only"):
        g()
    assert not out.any()
    out.flags.writeable = True
    np.testing.assert_array_equal(g(), chain(x, y))


def test_arrays_that_a_call_would_copy() -> None:
    """They work as in a call, no faster, with results in the same arrays all the same."""
    x, y = pair()
    want = chain(x, y)
    swapped = x.astype(">f8")
    unaligned = np.frombuffer(bytearray(x.size * 8 + 1), "f8", offset=1).reshape(x.shape)
    unaligned[:] = x
    for awkward in (swapped, unaligned):
        g = chain.bind(awkward, y)
        assert g() is g()
        np.testing.assert_array_equal(g(), want)
        np.multiply(awkward, 2, out=awkward)
        np.testing.assert_array_equal(g(), chain(2 * x, y))
    narrow = np.empty(x.shape, "f4")
    assert chain.bind(x, y, out=narrow)() is narrow
    np.testing.assert_array_equal(narrow, want.astype("f4"))
    line = np.arange(7.0)
    overlapping = chain.bind(line[:-1], line[1:], out=line[1:])
    expected = chain(line[:-1].copy(), line[1:].copy())
    np.testing.assert_array_equal(overlapping(), expected)


def test_errors_of_a_run() -> None:
    a, b = np.array([2, 3]), np.array([2, 1])
    power = ok.compile(np.power).bind(a, b)
    result = power()
    np.testing.assert_array_equal(result, [4, 3])
    b[1] = -1
    with pytest.raises(ValueError, match="negative"):
        power()
    np.testing.assert_array_equal(result, [4, 3])  # untouched
    faults = divided.info().integer_faults
    b[:] = 0
    g = divided.bind(a, b)
    np.testing.assert_array_equal(g(), [0, 0])
    assert divided.info().integer_faults == faults + 1
    wide = ok.compile(lambda x, h: x + h).bind(np.ones(3, "u1"), 300)
    for _ in range(2):
        with pytest.raises(OverflowError, match="300"):
            wide()
    with pytest.raises(errors.ShapeError, match=r"\(4,\)"):
        chain.bind(*pair(), out=np.empty(4))
    with pytest.raises(errors.ArgumentError, match="missing 1 required"):
        chain.bind(pair()[0])


def test_what_a_bound_call_refuses() -> None:
    x, y = pair()
    g = chain.bind(x, y)
    for use in (lambda: g(x), lambda: g(out=x)):  # type: ignore[call-arg]
        with pytest.raises(errors.ArgumentError, match="takes no arguments"):
            use()
    for use in (lambda: pickle.dumps(g), lambda: copy.copy(g), type(g)):
        with pytest.raises(TypeError):
            use()
    with pytest.raises(errors.TraceError, match=r"bind\(\) cannot be traced"):
        ok.compile(lambda v: chain.bind(v, v)())(x)
    torch = pytest.importorskip("torch")
    t = torch.ones(3)
    for arguments, out in (((t, t), None), ((y, y), torch.empty(5, dtype=torch.float64))):
        with pytest.raises(errors.ArgumentError, match=r"t\.numpy\(\)"):
            chain.bind(*arguments, out=out)
    np.testing.assert_array_equal(chain.bind(t.numpy(), t.numpy())(), chain(t, t).numpy())


def test_lifetimes() -> None:
    class Marked:
        def __init__(self, array: Array) -> None:
            self.__array_interface__ = array.__array_interface__
            self.array = array

    f = ok.compile(lambda x: x * 1.5)
    owner = Marked(np.arange(4.0))
    x = np.asarray(owner)  # its memory lives as long as the owner, its base
    gone, function_gone = weakref.ref(owner), weakref.ref(f)
    g = f.bind(x)
    del x, owner, f
    gc.collect()
    assert gone() is not None
    np.testing.assert_array_equal(g(), np.arange(4.0) * 1.5)
    g.__wrapped__.clear()  # type: ignore[attr-defined]
    np.testing.assert_array_equal(g(), np.arange(4.0) * 1.5)  # the old trace, until bound again
    del g
    gc.collect()
    assert (gone(), function_gone()) == (None, None)
    f = ok.compile(lambda x: x * 1.5)
    f.kept = f.bind(np.ones(3))  # type: ignore[attr-defined]  a cycle
    function_gone = weakref.ref(f)
    del f
    gc.collect()
    assert function_gone() is None


def test_F135_F136_a_run_does_no_python_and_no_look_up() -> None:
    x, y = pair()
    g = chain.bind(x, y)
    for n in range(1, 1200):  # more layouts than a thread keeps executors for
        chain(np.ones(n), np.ones(n))
    info = chain.info()
    seen: list[str] = []
    sys.setprofile(lambda frame, event, arg: seen.append(event))
    try:
        g()
    finally:
        sys.setprofile(None)
    assert "call" not in seen
    assert (chain.info().misses, chain.info().hits) == (info.misses, info.hits + 1)


def test_two_threads_at_once_are_told() -> None:
    """A kernel that leaves the GIL is never entered twice; the results are never mixed."""
    x = np.full(1_000_000, 0.5)
    g = chain.bind(x, x)
    want = chain(x[:1], x[:1])[0]
    caught: list[str] = []
    running, done = threading.Event(), threading.Event()

    def run() -> None:
        try:
            assert (g() == want).all()
        except errors.BusyError as error:
            caught.append(str(error))

    def work() -> None:
        while not done.is_set():
            running.set()
            run()

    thread = threading.Thread(target=work)
    thread.start()
    running.wait(60)
    for _ in range(300):
        if not caught:
            run()
    done.set()
    thread.join(60)
    assert caught and "once per thread" in caught[0]
    assert (g() == want).all()  # and free again


def test_threads_with_a_handle_each(parallelize: Callable[..., list[object]]) -> None:
    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        x, y = rng.standard_normal((2, 100 * seed + 7))
        g = chain.bind(x, y)
        for _ in range(100):
            x[:] = rng.standard_normal(x.size)
            np.testing.assert_array_equal(g(), chain(x, y))

    parallelize(work, 4)


def test_F086_a_forked_child_may_run_what_was_running() -> None:
    code = """
import os, threading, numpy as np, opkiln as ok
f = ok.compile(lambda x: np.tanh(x) * 2)
x = np.full(20_000_000, 0.5)
g = f.bind(x)
started = threading.Event()
def work():
    started.set()
    for _ in range(3): g()
thread = threading.Thread(target=work); thread.start(); started.wait()
while True:  # until a run is under way
    try: g()
    except ok.errors.BusyError: break
    if not thread.is_alive(): thread = threading.Thread(target=work); thread.start()
pid = os.fork()
if pid == 0:
    os._exit(0 if np.allclose(g(), np.tanh(0.5) * 2) else 1)
_, status = os.waitpid(pid, 0)
thread.join()
raise SystemExit(os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("setting", ["OPKILN_DISABLE", "PATH"])
def test_without_kernels(setting: str, tmp_path: Path) -> None:
    """Disabled, and without a compiler: the same results, in the same arrays."""
    code = """
import numpy as np, opkiln as ok
@ok.compile
def f(x): return x * 2, x.sum()
x = np.ones((2, 3)); g = f.bind(x)
double, total = g()
x *= 3
assert g()[0] is double and (double == 6).all() and g()[1] == 18
out = np.empty((2, 3))
assert f.bind(x, out=(out, None))()[0] is out and (out == 6).all()
assert f.warmup(ok.TensorSpec(3, "f4")).hit in ("disabled", "interpreted")
"""
    value = "1" if setting == "OPKILN_DISABLE" else str(tmp_path)
    env = {**os.environ, "OPKILN_CACHE_DIR": str(tmp_path / "cache"), "CXX": "", setting: value}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True, text=True, timeout=60, check=False, env=env,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
