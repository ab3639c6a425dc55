"""The callable as a Python object: life, threads, memory, process exit."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.native_fake import (
    F64,
    Factory,
    compiled,
    eventually,
    f32,
    library,
    make_sum,
    simple,
    weak_maker,
)

from opkiln import native
from opkiln.native import MISSING, Compiled, Library, Plan
from opkiln.runtime import errors

__all__ = ["compiled", "library"]
HERE = Path(__file__).parent


# ---- the callable as an object ----


def test_descriptor_dict_weakref_repr(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    x = f32(3)
    f.note = 5
    assert f.note == 5
    assert f.__dict__ == {"note": 5}
    assert f._frontend is fake
    assert f.count("trace") == 0
    with pytest.raises(AttributeError, match=r"'opkiln\.native\._core\.Compiled'.*'no_such_name'"):
        f.no_such_name  # noqa: B018
    assert repr(f) == repr(fake)
    assert f.__get__(None, int) is f

    g, _ = compiled(simple("mad_f32"), "self x y z", static="self")

    class Holder:
        method = g

    holder = Holder()
    np.testing.assert_array_equal(holder.method(x, x, x), x * x + x)
    bound = holder.method
    np.testing.assert_array_equal(bound(x, x, z=x), x * x + x)
    assert Holder.method is g
    ref = weakref.ref(f)
    del f
    gc.collect()
    assert ref() is None


module_level: Any = None


def test_pickle_and_copy(compiled: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    f, _ = compiled(simple("mad_f32"))
    module = SimpleNamespace(module_level=f)
    monkeypatch.setitem(sys.modules, "face_module", module)  # type: ignore[arg-type]
    f.__module__ = "face_module"
    assert pickle.loads(pickle.dumps(f)) is f
    assert copy.copy(f) is f
    assert copy.deepcopy(f) is f


def test_cycles_are_collected(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    x = f32(3)
    f(x, x, x)
    fake.owner = f  # type: ignore[attr-defined]
    f.me = f
    ref = weakref.ref(f)
    del f, fake
    gc.collect()
    assert ref() is None


def test_dead_functions_are_swept(compiled: Factory) -> None:
    native.trim()
    before = native.thread_stats()
    x = f32(3)
    for _ in range(50):
        f, _fake = compiled(simple("mad_f32"))
        f(x, x, x)
    after = native.thread_stats()
    assert after["executors"] - before["executors"] <= 2
    assert after["swept"] - before["swept"] >= 48


def test_bad_construction() -> None:
    for args in (
        (None, ("x",), b"\1\1", (MISSING,), (False,)),
        (None, ("x",), b"\7", (MISSING,), (False,)),
        (None, (1,), b"\1", (MISSING,), (False,)),
        (None, ["x"], b"\1", (MISSING,), (False,)),
    ):
        with pytest.raises((TypeError, ValueError)):
            Compiled(*args)  # type: ignore[arg-type]


def test_flatten(compiled: Factory) -> None:
    f, _ = compiled(simple("mad_f32"), "x y", defaults={"y": 3})
    x = f32(2)
    tree, leaves, kinds = f._flatten([x, "a"])
    assert tree == ([0, 1], 2)
    assert leaves[0] is x
    assert leaves[1:] == ["a", 3]
    assert kinds == "asi"


def test_errors_of_library_and_plan(tmp_path: Path, library: Library) -> None:
    with pytest.raises(errors.LoadFailed, match=r"none\.so"):
        Library(tmp_path / "none.so")
    bad = tmp_path / "bad.so"
    bad.write_bytes(b"not an ELF file")
    with pytest.raises(OSError, match=r"bad\.so"):
        Library(str(bad))
    with pytest.raises(errors.SymbolMissing, match="nothing"):
        library.symbol("nothing")
    plan = Plan()
    with pytest.raises(RuntimeError):
        plan.host("no such op")
    with pytest.raises(TypeError, match="Library"):
        plan.add_variant(0, "C", 1, object())  # type: ignore[arg-type]


# ---- pools, threads, memory ----


def test_F091_nothing_is_lent_before_its_event(compiled: Factory) -> None:
    stream = native.ManualStream(2)
    f, _ = compiled(simple("mad_f32"))
    x = f32(3)
    old = native.get_limits()
    native.use_stream(stream)
    native.set_limits(pool_limit=2, timeout_s=0.05)
    try:
        f(x, x, x)
        f(x, x, x)
        assert f._counters()["in_flight"] == 2
        with pytest.raises(errors.PoolTimeout):
            f(x, x, x)
        stream.advance(5)
        np.testing.assert_array_equal(f(x, x, x), x * x + x)
        assert f._counters()["executors"] == 2
        assert f._counters()["waits"] == 1
        stream.advance(5)
    finally:
        native.use_stream(None)
        native.set_limits(pool_limit=old["pool_limit"], timeout_s=old["timeout_s"])
        stream.advance(100)


def test_threads(compiled: Factory) -> None:
    f, fake = compiled(weak_maker("affine_f64", F64), "x s t")
    barrier = threading.Barrier(8)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            arrays = [np.arange(float(n)) for n in range(1, 9)] + [np.ones(40_000)]
            out = np.zeros(8)
            barrier.wait()
            for i in range(2000):
                x = arrays[(i + seed) % 8 if i % 50 else 8]
                s = float(seed + i)
                result = f(x, s, 1.0)
                assert result[-1] == x[-1] * s + 1.0
                if len(x) == 8:
                    assert f(x, s, 1.0, out=out) is out
                    assert out[7] == 7 * s + 1.0
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    # pools die with their threads, a moment after join()
    assert eventually(lambda: f._counters()["executors"] == 0)
    assert 1 <= fake.count("trace") <= 8


def test_references_stay_level(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    g, _ = compiled(weak_maker("affine_f64", F64), "x s t")
    h, _ = compiled(simple("mad_f32"), "p q k", defaults={"k": None})
    x, y, z, out, wrong = f32(3), f32(3), f32(3), f32(3), f32(4)
    d, big = np.arange(3.0), f32(3).astype(">f4")
    s, t = 2.5, 12345678901

    def everything() -> None:
        f(x, y, z)
        f(x, y, z=z, out=out)
        f(x, x, x, out=x)
        f(big, y, z)
        f(x[1:], y[1:], z[1:], out=x[:-1])
        g(d, s, t)
        h((x, [y]), {"a": z})
        h((x, [y]), {"a": z}, k="static")
        for bad in (lambda: f(x, y), lambda: f(x, y, object()), lambda: f(x, y, z, out=wrong),
                    lambda: f(x, y, wrong), lambda: h([x, object()], y)):  # fmt: skip
            with pytest.raises((TypeError, ValueError)):
                bad()

    objects = [x, y, z, out, wrong, d, big, s, t, f, fake, np.dtype("f4"), np.float32, None]
    for _ in range(5):
        everything()
    gc.collect()
    before = [sys.getrefcount(o) for o in objects]
    for _ in range(50):
        everything()
    gc.collect()
    after = [sys.getrefcount(o) for o in objects]
    for o, a, b in zip(objects, before, after, strict=True):
        assert abs(a - b) < 20, repr(o)


def test_memory_is_flat(compiled: Factory) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    f, _ = compiled(simple("mad_f32"))
    g, _ = compiled(make_sum, "x")
    keys = [f32(n) for n in range(1, 51)]
    d = np.arange(10.0)
    for x in keys * 20:
        f(x, x, x)
        g(d)
    start = resident()
    for _ in range(2000):
        for x in keys:
            f(x, x, x)
            f(x, x, x, out=x) if len(x) == 7 else g(d)
        keys[6][...] = 1
    assert resident() - start < 2 << 20
    assert f._counters()["bytes"] < 60 * 4096


def test_process_exits_clean(library: Library) -> None:
    program = f"""
import sys, threading
import numpy as np
sys.path.insert(0, {str(HERE.parent)!r})
from tests import native_fake as m
lib = m.Library({library.path!r})
fake = m.Fake(m.simple("mad_f32"), lib)
f = m.Compiled(fake, ("x", "y", "z"), bytes([1, 1, 1]), (m.MISSING,) * 3, (False,) * 3)
x = np.ones(3, "f4")
t = threading.Thread(target=lambda: f(x, x, x)); t.start(); t.join()
f(x, x, x)
np.keep = (f, fake, lib, m.Plan(), m.Slot(1), m.native.Event())  # outlives the interpreter
d = threading.Thread(target=lambda: [f(x, x, x) for _ in range(10**9)], daemon=True); d.start()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_daemon_threads_end_with_the_process(library: Library) -> None:
    """A thread that wants the interpreter's lock after its end must not unwind through ours."""
    program = f"""
import sys, threading, time
import numpy as np
sys.path.insert(0, {str(HERE.parent)!r})
from tests import native_fake as m

class Slow:
    def __del__(self, sleep=time.sleep): sleep(.3)  # in the middle of the interpreter's end

class Hashed:
    def __hash__(self): time.sleep(.1); return 1

def start(static, hook, *args):
    fake = m.Fake(m.simple("mad_f32"), m.Library({library.path!r}))
    names = ("x", "y", "z", "s")[:len(args)]
    fixed = (False,) * 3 + (True,) * static
    f = m.Compiled(fake, names, bytes([1] * len(names)), (m.MISSING,) * len(names), fixed)
    if hook:
        setattr(fake, hook, lambda: time.sleep(.1))
    def loop():
        while True:
            f(*args)
    threading.Thread(target=loop, daemon=True).start()

slow = Slow()
x, big = np.ones(3, "f4"), np.ones(300_000, "f4")
start(False, "on_trace", x, x, x)
start(False, "on_build", x, x, x)
start(False, None, big, big, big)
start(True, None, x, x, x, Hashed())
time.sleep(.05)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_clear_while_other_threads_call(compiled: Factory) -> None:
    f, _fake = compiled(simple("mad_f32"))
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(n: int) -> None:
        try:
            x = f32(n)
            expected = x * x + x
            big = np.ones(50_000, np.float32)
            while not stop.is_set():
                np.testing.assert_array_equal(f(x, x, x), expected)
                assert f(big, big, big)[-1] == 2
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for i in range(100):
        f._clear()
        f(f32(i), f32(i), f32(i))
        native.trim()
        gc.collect(0)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_clear_during_a_trace_makes_old_records_unreachable(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"), "x y z s", static="s")
    x = f32(3)

    def clear_once() -> None:
        fake.on_trace = fake.on_build = None
        f._clear()

    for hook in ("on_trace", "on_build"):
        fake.log.clear()
        setattr(fake, hook, clear_once)
        for value in ("a", "b", "a"):  # "b" could get the number that "a" had
            np.testing.assert_array_equal(f(x, x, x, value), x * x + x)
        traced = [entry[2][3] for entry in fake.log if entry[0] == "trace"]
        assert traced == ["a", "b", "a"], hook
        f._clear()


def test_clear_while_arguments_are_hashed(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"), "x y z s", static="s")
    x = f32(3)

    class Clears:
        times = 0

        def __hash__(self) -> int:
            return 7

        def __eq__(self, other: object) -> bool:
            Clears.times += 1
            if Clears.times % 3 == 1:
                f._clear()
                gc.collect()
            return self is other

    values = [Clears() for _ in range(5)]
    for value in values * 5:
        np.testing.assert_array_equal(f(x, x, x, ("nested", value)), x * x + x)
        traced = [entry[2][3] for entry in fake.log if entry[0] == "trace"]
        assert all(v[0] == "nested" for v in traced)

    class Always:
        def __hash__(self) -> int:
            f._clear()
            return 1

    with pytest.raises(RuntimeError, match="cleared in each of its calls"):
        f(x, x, x, Always())


def test_clear_while_a_call_waits(compiled: Factory) -> None:
    stream = native.ManualStream(1)
    f, fake = compiled(simple("mad_f32"))
    x = f32(3)
    old = native.get_limits()
    native.use_stream(stream)
    native.set_limits(pool_limit=1, timeout_s=10)

    def clear() -> None:
        assert eventually(lambda: f._counters()["waits"] == 1)
        f._clear()
        gc.collect()
        stream.advance(5)

    thread = threading.Thread(target=clear)
    try:
        f(x, x, x)
        thread.start()
        np.testing.assert_array_equal(f(x, x, x), x * x + x)
        assert fake.count("trace") == 2
    finally:
        thread.join()
        native.use_stream(None)
        native.set_limits(pool_limit=old["pool_limit"], timeout_s=old["timeout_s"])
        stream.advance(100)


def test_remembered_pools_may_go(compiled: Factory) -> None:
    f, fake = compiled(simple("mad_f32"))
    g, _other = compiled(simple("mad_f32"))
    x, y = f32(3), f32(4)
    for _ in range(20):
        for a in (x, y, x):
            np.testing.assert_array_equal(f(a, a, a), a * a + a)
            np.testing.assert_array_equal(g(a, a, a), a * a + a)
        native.trim()
    assert fake.count("trace") == 1
    old = native.get_limits()
    native.set_limits(executors=4)
    try:
        for n in range(200):
            a = f32(n % 40)
            np.testing.assert_array_equal(f(a, a, a), a * a + a)
            np.testing.assert_array_equal(g(x, x, x), x * x + x)
        assert native.thread_stats()["executors"] <= 5
        assert f._counters()["evictions"] > 0
    finally:
        native.set_limits(executors=old["executors"])


# ---- through the whole of opkiln ----


def test_slices_and_methods_of_a_compiled_function() -> None:
    import opkiln as ok

    x = np.arange(4.0)
    shift = ok.compile(lambda s, y: y + (s.start if isinstance(s, slice) else s[0].start))
    for value in (slice(1, 2), slice(2, 2), (slice(3, None), 0)):
        start = value.start if isinstance(value, slice) else value[0].start
        for _ in range(2):
            np.testing.assert_array_equal(shift(value, x), x + start)
    assert shift.info().traces == 3

    class Model:
        def __init__(self, k: float) -> None:
            self.k = k

        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Model)

        @ok.compile
        def scale(self, a: Any) -> Any:
            return a * self.k

    for k in (2.0, 3.0):
        model = Model(k)
        np.testing.assert_array_equal(model.scale(x), x * k)
        gone = weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None
