"""explain() of captured arrays: what they are called, and whether that means others by now."""

from __future__ import annotations

import gc
import types
import weakref
from typing import Any

import numpy as np
import pytest

import opkiln as ok

A = np.arange(12.0).reshape(3, 4)
GLOBAL = np.ones(4)
STATE = {"w": np.ones(4)}
MODULE = types.ModuleType("parameters")
MODULE.__dict__["bias"] = np.ones(4)


class Base:
    shared = np.ones(4)


class Model(Base):
    def __init__(self) -> None:
        self.scale = np.ones(4)
        self.weights = [np.ones(4), np.ones((4, 4))]


class Slotted:
    __slots__ = ("w",)

    def __init__(self) -> None:
        self.w = np.ones(4)

    @property
    def never(self) -> Any:
        raise AssertionError

    def __getattr__(self, name: str) -> Any:
        raise AssertionError


def helper(x: Any) -> Any:
    return x + GLOBAL


compiled_helper = ok.compile(lambda x: x + GLOBAL)
MODEL = Model()


class Methods(Slotted):
    def inner(self, x: Any) -> Any:
        return x * self.w

    @ok.compile
    def step(self, x: Any) -> Any:
        return self.inner(x)


def closing() -> Any:
    local = np.ones(4)
    return lambda x: x + local


NAMED: dict[str, tuple[Any, str]] = {
    "closure": (closing(), "local"),
    "global": (lambda x: x + GLOBAL, "GLOBAL"),
    "helper": (lambda x: helper(x) * 2, "GLOBAL"),
    "compiled helper": (lambda x: compiled_helper(x) * 2, "GLOBAL"),
    "module": (lambda x: x + MODULE.bias, "MODULE.bias"),
    "dict": (lambda x: x + STATE["w"], "STATE['w']"),
    "object": (lambda x: x + MODEL.scale, "MODEL.scale"),
    "argument": (lambda x, m=MODEL: x + m.scale, "m.scale"),
    "class": (lambda x, m=MODEL: x + m.shared, "m.shared"),
    "view": (lambda x: x + GLOBAL[::-1], "view of GLOBAL"),
    "item": (lambda x: x + MODEL.weights[0], "MODEL.weights[0]"),
    "none": (lambda x: x + np.ones(4), "an array without a name"),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_captured_array_is_called_as_the_user_writes_it(name: str) -> None:
    fn, expected = NAMED[name]
    f = ok.compile(fn, static="m" if "m" in fn.__code__.co_varnames else ())
    f(A)
    assert f.explain().remarks[-1] == f"captured by reference: {expected}"


class Callable_:
    def __init__(self) -> None:
        self.k = np.ones(4)

    def __call__(self, x: Any) -> Any:
        return x + self.k


def test_receivers_that_are_bound_already() -> None:
    for fn in (Callable_(), Callable_().__call__):
        f = ok.compile(fn)
        f(A)
        assert f.explain().remarks == ("captured by reference: self.k",)


def test_names_of_odd_objects_are_not_worth_an_error() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            if name in ("__mro__", "__dict__"):
                raise AssertionError
            return type.__getattribute__(cls, name)

    class Odd(metaclass=Meta):
        def __init__(self) -> None:
            self.w = np.ones(4)

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = object.__hash__

        @property
        def __class__(self) -> Any:
            raise AssertionError

    class Items(dict[str, Any]):
        def __iter__(self) -> Any:
            raise AssertionError

    odd, items = Odd(), Items(w=np.ones(4))
    f = ok.compile(lambda x: x + odd.w + items["w"])
    f(A)
    assert f.explain().remarks == ("captured by reference: odd.w, an array without a name",)


def test_of_receivers_no_code_is_run_and_nothing_is_held() -> None:
    one = Methods()
    one.step(A)
    assert Methods.step.explain().remarks[-1] == "captured by reference: self.w"
    assert "self.w" in str(Methods.step.lower(one, A))
    gone = weakref.ref(one.w)
    one.w = np.zeros(4)
    assert len(Methods.step.explain().remarks) == 2
    del one
    gc.collect()
    assert gone() is None and Methods.step.explain().remarks == ()


def test_changes_of_layout_name_the_array() -> None:
    held = np.ones(4)
    f = ok.compile(lambda x: x + held)
    f(A)
    held = np.ones(4, "f4")
    f.clear()
    f(A)
    assert "captured array held dtype: float64 -> float32" in f.explain()[-1].reason
    held.shape = (1, 4)
    with pytest.raises(ValueError, match="captured array held changed its shape"):
        f(A)


def test_a_name_that_was_bound_anew_is_told() -> None:
    class Step:
        def __init__(self) -> None:
            self.w = np.ones(4)

        @ok.compile
        def run(self, x: Any) -> Any:
            return x * self.w

    step = Step()
    step.run(A)
    step.w -= 0.5  # in place: seen
    np.testing.assert_array_equal(step.run(A), A * 0.5)
    assert Step.run.explain().remarks == ("captured by reference: self.w",)
    step.w = step.w - 0.25
    np.testing.assert_array_equal(step.run(A), A * 0.5)
    line = Step.run.__wrapped__.__code__.co_firstlineno + 2
    told = Step.run.explain().remarks[1]
    assert told.startswith("self.w was bound to another array since the trace (")
    assert f"test_explain_captures.py:{line}): calls go on with the old one" in told
    assert "self.w[...] =" in told and "f.clear()" in told
    Step.run.clear()
    assert Step.run.explain().remarks == ()
    np.testing.assert_array_equal(step.run(A), A * 0.25)
    assert Step.run.explain().remarks == ("captured by reference: self.w",)
    del step.w  # the name means nothing: calls go on
    assert len(Step.run.explain().remarks) == 1
