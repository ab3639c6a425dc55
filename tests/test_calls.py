"""Methods, refusals, redefinition, and calls that come from anywhere at any time."""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import gc
import importlib
import inspect
import pickle
import signal
import sys
import threading
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opkiln as ok
from opkiln import errors

X = np.arange(4.0)
GAIN = 2.0


def same(got: Any, want: Any) -> None:
    np.testing.assert_array_equal(got, want)


# ---- methods ----


class Base(abc.ABC):
    gain = 5.0

    def __init__(self, k: float) -> None:
        self.k = k

    @ok.compile
    def scale(self, x: Any) -> Any:
        """Multiply."""
        return x * self.k

    @classmethod
    @ok.compile
    def of_class(cls, x: Any) -> Any:
        return x * cls.gain

    @staticmethod
    @ok.compile
    def of_none(x: Any) -> Any:
        return x * 3.0

    @property
    @ok.compile
    def size(self) -> Any:
        return np.ones(2) * self.k

    @abc.abstractmethod
    @ok.compile
    def abstract(self, x: Any) -> Any:
        return x * 0.5


class Derived(Base):
    gain = 7.0

    @ok.compile
    def scale(self, x: Any) -> Any:
        return super().scale(x) + 1.0

    def abstract(self, x: Any) -> Any:
        return super().abstract(x)


class Slotted:
    __slots__ = ("k",)

    def __init__(self, k: float) -> None:
        self.k = k

    @ok.compile
    def scale(self, x: Any) -> Any:
        return x * self.k


@dataclasses.dataclass(frozen=True)
class Frozen:
    k: float

    @ok.compile
    def scale(self, x: Any) -> Any:
        return x * self.k


@dataclasses.dataclass(slots=True)
class Unhashable:
    k: float

    @ok.compile
    def scale(self, x: Any) -> Any:
        return x * self.k


def test_every_kind_of_method() -> None:
    d = Derived(2.0)
    same(d.scale(X), X * 2.0 + 1.0)
    same(Base.scale(d, X), X * 2.0)
    for owner, gain in ((Base, 5.0), (Derived, 7.0), (d, 7.0)):
        same(owner.of_class(X), X * gain)
        same(owner.of_none(X), X * 3.0)
    same(d.size, [2.0, 2.0])
    same(d.abstract(X), X * 0.5)
    with pytest.raises(TypeError, match="abstract"):
        Base(1.0)  # type: ignore[abstract]
    for kind in (Slotted, Frozen, Unhashable):
        same(kind(2.0).scale(X), X * 2.0)
        same(kind(3.0).scale(X), X * 3.0)


def test_a_method_looks_like_a_method() -> None:
    d = Derived(2.0)
    assert d.scale == d.scale and d.scale is not d.scale
    assert inspect.ismethod(d.scale) and d.scale.__self__ is d
    assert list(inspect.signature(d.scale).parameters) == ["x"]
    assert list(inspect.signature(Base.scale).parameters) == ["self", "x"]
    assert (Base.scale.__doc__, Base.scale.__name__) == ("Multiply.", "scale")
    assert Base.scale.__wrapped__.__qualname__ == "Base.scale"
    assert pickle.loads(pickle.dumps(Base.scale)) is Base.scale
    assert copy.copy(Base.scale) is copy.deepcopy(Base.scale) is Base.scale
    out = np.empty(4)
    assert d.scale(X, out=out) is out  # type: ignore[call-arg]
    same(list(map(d.scale, [X, X]))[1], out)


def test_a_warm_method_call_asks_its_instance_nothing() -> None:
    asked: list[str] = []

    class Asked(type):
        def __getattr__(cls, name: str) -> Any:
            asked.append(name)
            raise AttributeError(name)

    class Model(metaclass=Asked):
        @ok.compile
        def scale(self, x: Any) -> Any:
            return x * 2.0

    model = Model()
    model.scale(X)
    assert asked
    asked.clear()
    same(model.scale(X), X * 2.0)
    assert asked == []


def test_attributes_are_read_while_tracing() -> None:
    d = Derived(2.0)
    d.scale(X)
    d.k = 9.0
    same(d.scale(X), X * 2.0 + 1.0)  # as documented: a trace keeps the numbers it saw
    Derived.scale.clear()
    same(d.scale(X), X * 9.0 + 1.0)


def test_an_instance_takes_its_traces_with_it() -> None:
    """Also the captured arrays, at once, and whatever __eq__ says; other instances keep theirs."""

    class Layer:
        def __init__(self) -> None:
            self.weights = np.ones(4)

        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Layer)

        @ok.compile
        def forward(self, x: Any) -> Any:
            return x * self.weights

    kept, layers = Layer(), [Layer() for _ in range(20)]
    for layer in (kept, *layers):
        same(layer.forward(X), X)
    weights = [weakref.ref(layer.weights) for layer in layers]
    assert Layer.forward._counters()["signatures"] == 21
    del layer
    layers.clear()
    assert [w() for w in weights if w() is not None] == []
    assert Layer.forward._counters()["signatures"] == 1
    traces = Layer.forward.info().traces
    same(kept.forward(X), X)
    assert Layer.forward.info().traces == traces


def test_an_instance_may_die_in_a_cycle_with_its_class() -> None:
    def make() -> weakref.ref[Any]:
        class Layer:
            @ok.compile
            def forward(self, x: Any) -> Any:
                return x * 1.0

        layer = Layer()
        layer.me = layer  # type: ignore[attr-defined]
        layer.forward(X)
        return weakref.ref(Layer.forward)

    gone = make()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("disabled", [False, True])
def test_parameters_may_have_the_names_of_ours(disabled: bool) -> None:
    with ok.config.scope(disable=disabled):
        f = ok.compile(lambda self, fn, args: self + fn * args)
    call = {"self": np.ones(3), "fn": np.ones(3), "args": 2.0}
    assert f(**call).tolist() == f.bind(**call)().tolist() == [3.0] * 3
    f.warmup(**call)
    if not disabled:
        assert f.lower(**call).kernels


def test_callables_that_are_no_functions() -> None:
    class Callee:
        def __init__(self, k: float) -> None:
            self.k = k

        def __call__(self, x: Any) -> Any:
            return x * self.k

    same(ok.compile(Callee(7.0))(X), X * 7.0)
    part = ok.compile(functools.partial(lambda x, k: x * k, k=3.0))
    same(part(X), X * 3.0)
    same(functools.partial(part, X)(), X * 3.0)
    same(ok.compile(Callee(7.0).__call__)(X), X * 7.0)
    same(ok.compile(lambda x: x * 2.0)(X), X * 2.0)
    with pytest.raises(TypeError, match="a partial has no name"):
        pickle.dumps(part)


# ---- refusals ----


@pytest.mark.parametrize(
    ("decorator", "advice"),
    [(classmethod, "@classmethod above"), (staticmethod, "@staticmethod above"),
     (property, "@property above")],
)  # fmt: skip
def test_decorators_in_the_wrong_order(decorator: Any, advice: str) -> None:
    with pytest.raises(errors.TraceError, match=advice):
        ok.compile(decorator(lambda self, x: x))


def test_builtins_without_a_signature_and_classes() -> None:
    with pytest.raises(errors.ArgumentError, match=r"lambda x: max\(x\)"):
        ok.compile(max)
    with pytest.raises(errors.TraceError, match="compile its methods"):
        ok.compile(Frozen)


def test_an_array_too_many_may_be_meant_for_out() -> None:
    f = ok.compile(lambda x: x * 2)
    x = np.ones(3)
    with pytest.raises(errors.ArgumentError, match=r"2 were given\n.*the keyword out="):
        f(x, x)
    for extra in ((3,), (x, x), (x, 3)):
        with pytest.raises(errors.ArgumentError) as caught:
            f(x, *extra)
        assert "out=" not in str(caught.value)


def test_a_recursion_without_end_is_refused() -> None:
    @ok.compile
    def direct(x: Any) -> Any:
        return direct(x) + 1

    @ok.compile
    def one(x: Any) -> Any:
        return other(x) + 1

    @ok.compile
    def other(x: Any) -> Any:
        return one(x)

    @ok.compile
    def on_arrays(x: Any) -> Any:
        return x + on_arrays(np.ones(3))

    for f in (direct, one, on_arrays):
        with pytest.raises(errors.TraceError, match=r"test_calls.py:\d+\)\n.*loop") as caught:
            f(X)
        assert f"{f.__name__} calls itself" in str(caught.value)
    for _ in range(2):  # nothing is left behind by the first
        with pytest.raises(errors.TraceError):
            direct(X)

    def plain(x: Any) -> Any:  # which enters itself, not the compiled function
        return plain(x) + 1

    with pytest.raises(errors.TraceError, match=r"plain recurses.*test_calls.py:\d+\)\n.*loop"):
        ok.compile(plain)(X)


def test_a_recursion_over_a_static_number_is_unrolled() -> None:
    @ok.compile(static="n")
    def power(x: Any, n: int) -> Any:
        return x if n == 1 else x * power(x, n - 1)

    same(power(X, 40), np.multiply.reduce([X] * 40))


# ---- redefinition ----


def test_F069_a_function_defined_again_is_another_function() -> None:
    """As a notebook's cell run twice: no file, the same name, another body."""
    cell = "import opkiln as ok\n@ok.compile\ndef f(x):\n    return x * {k} + 0.890625\n"
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(cell.format(k=2.0), space)
    old = space["f"]
    same(old(X), X * 2.0 + 0.890625)
    exec(cell.format(k=3.0), space)
    assert space["f"] is not old
    same(space["f"](X), X * 3.0 + 0.890625)
    same(old(X), X * 2.0 + 0.890625)
    exec(cell.format(k=2.0), space)  # the old text again: a new function, nothing to build
    same(space["f"](X), X * 2.0 + 0.890625)
    info = space["f"].info()
    assert (info.traces, info.programs, info.builds + info.disk_hits) == (1, 0, 0)
    exec("def g(x):\n    return int(x.sum())\n", space)
    with pytest.raises(errors.TraceError, match="<string>:2"):
        ok.compile(space["g"])(X)


def test_F148_a_reloaded_module_rebuilds_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "import opkiln as ok\n"
        "@ok.compile\ndef first(x):\n    return x * 0.921875\n"
        "@ok.compile\ndef second(x):\n    return x * {k}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "edited_module.py").write_text(text.format(k=0.953125))
    module = importlib.import_module("edited_module")
    try:
        old = module.second
        same(module.first(X), X * 0.921875)
        same(old(X), X * 0.953125)
        (tmp_path / "edited_module.py").write_text(text.format(k=0.984375))
        importlib.reload(module)
        same(module.first(X), X * 0.921875)
        same(module.second(X), X * 0.984375)
        same(old(X), X * 0.953125)
        assert (module.first.info().builds, module.second.info().builds) == (0, 1)
        assert pickle.loads(pickle.dumps(module.first)) is module.first
        with pytest.raises(pickle.PicklingError, match="not the same object"):
            pickle.dumps(old)
    finally:
        del sys.modules["edited_module"]


def test_names_are_read_anew_after_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    box = [1.5]

    @ok.compile
    def f(x: Any) -> Any:
        return x * GAIN + box[0]

    same(f(X), X * 2.0 + 1.5)
    monkeypatch.setitem(globals(), "GAIN", 3.0)
    box[0] = 2.5
    same(f(X), X * 2.0 + 1.5)  # as documented
    f.clear()
    same(f(X), X * 3.0 + 2.5)
    box[0] = 3.5
    ok.clear_cache()  # every function of the process
    same(f(X), X * 3.0 + 3.5)


def test_clear_from_inside_a_trace_is_complete() -> None:
    state = types.SimpleNamespace(gain=2.0, clear=True)

    @ok.compile
    def f(x: Any) -> Any:
        result = x * state.gain
        if state.clear:
            state.gain, state.clear = 3.0, False
            f.clear()
        return result

    same(f(X), X * 2.0)  # what it saw
    same(f(X), X * 3.0)
    assert f.info().traces == 2


def test_clear_while_another_thread_traces() -> None:
    state = types.SimpleNamespace(gain=2.0)
    entered, go = threading.Event(), threading.Event()
    seen: dict[str, Any] = {}

    @ok.compile
    def f(x: Any) -> Any:
        result = np.sqrt(x) * state.gain + 0.015625
        if not entered.is_set():
            entered.set()
            go.wait(60)
        return result

    def call(name: str) -> None:
        seen[name] = f(X)

    threads = [threading.Thread(target=call, args=(name,)) for name in ("early", "late")]
    threads[0].start()
    entered.wait(60)
    state.gain = 3.0
    f.clear()
    threads[1].start()  # waits for the first trace, whose record is not for it
    go.set()
    for thread in threads:
        thread.join(60)
    same(seen["early"], np.sqrt(X) * 2.0 + 0.015625)
    same(seen["late"], np.sqrt(X) * 3.0 + 0.015625)


# ---- from anywhere ----


def test_F089_clear_while_threads_call(parallelize: Callable[..., list[object]]) -> None:
    state = types.SimpleNamespace(gain=1.0)
    f = ok.compile(lambda x: x * state.gain + 0.0)

    def work(number: int) -> None:
        for step in range(150):
            if number == 0:
                state.gain = float(2 ** (step % 3))
                f.clear()
            else:
                gain = f(X)[1]
                assert gain in (1.0, 2.0, 4.0)
                same(f.bind(X)()[1] in (1.0, 2.0, 4.0), True)

    parallelize(work, 4)
    state.gain = 8.0
    f.clear()
    same(f(X), X * 8.0)


def test_F150_many_functions_from_many_threads(parallelize: Callable[..., list[object]]) -> None:
    """First calls, warm-ups, bound calls and clears of shared functions, all at once."""
    functions = [
        ok.compile(lambda x: x * GAIN + 1.0),
        ok.compile(lambda x: (x * GAIN).sum()),
        ok.compile(lambda x: (np.sqrt(x), x.shape[0])),
    ]
    wants = [f.__wrapped__(X) for f in functions]

    def work(seed: int) -> None:
        for step in range(60):
            at = (seed + step) % 3
            f, want = functions[at], wants[at]
            match (seed * 7 + step) % 5:
                case 0:
                    f.warmup(ok.TensorSpec(None, "f8"))
                case 1:
                    check(f.bind(X)(), want)
                case 2 if step % 10 == 2:
                    f.clear()
                case _:
                    check(f(X), want)

    def check(got: Any, want: Any) -> None:
        if isinstance(want, tuple):
            same(got[0], want[0])
            assert got[1] == want[1]
        else:
            same(got, want)

    parallelize(work, 6)


def test_a_signal_handler_may_call() -> None:
    f = ok.compile(lambda x: x * GAIN + 1.0)
    g = f.bind(X)
    want, other = f(X).copy(), np.arange(7.0)
    seen: list[bool] = []

    def handler(number: int, frame: object) -> None:
        seen.append(bool((f(other) == other * GAIN + 1.0).all() and (g() == want).all()))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        while len(seen) < 50:
            signal.setitimer(signal.ITIMER_REAL, 2e-4)  # in a trace, in a build, in between
            same(f(X), want)
            same(g(), want)
            f.clear()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert all(seen)


def test_a_finaliser_may_call() -> None:
    f = ok.compile(lambda x: x * GAIN + 1.0)
    g = f.bind(X)
    want, seen = f(X).copy(), list[bool]()

    class Garbage:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            right = (f(np.ones(len(seen) + 1)) == GAIN + 1.0).all() and (g() == want).all()
            seen.append(bool(right))

    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)  # a collection at nearly every allocation
    try:
        for _ in range(200):
            Garbage()
            same(f(X), want)
            same(g(), want)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert len(seen) == 200 and all(seen)


def test_a_hook_of_an_argument_may_call_and_clear() -> None:
    f = ok.compile(lambda x: x * GAIN + 1.0)
    calls = [False, True, False, True, False]  # after a clear() the call starts again

    class Hooked:
        def __dlpack__(self, **options: Any) -> Any:
            f(np.ones(9))
            if calls.pop():
                f.clear()
            return X.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    for _ in range(3):
        same(f(Hooked()), X * GAIN + 1.0)


def test_first_calls_of_methods_from_many_threads(
    parallelize: Callable[..., list[object]],
) -> None:
    frozen = Frozen(11.0)
    traces = Frozen.scale.info().traces
    for result in parallelize(lambda _: frozen.scale(X), 8):
        same(result, X * 11.0)
    assert Frozen.scale.info().traces - traces == 1
    thread = threading.Thread(target=lambda: same(frozen.scale(X), X * 11.0))
    thread.start()
    thread.join()
