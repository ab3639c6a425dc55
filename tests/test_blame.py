"""Late errors name the op and the user's line: sizes and numbers that fail during a call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opkiln as ok
from opkiln.runtime import errors

BYTES, FLOATS = np.ones(300, "uint8"), np.ones((2, 3))

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], type[Exception], str]] = {
    "broadcast": (
        lambda a, b: -a * b,
        (FLOATS, np.ones((5, 1, 4))),
        errors.ShapeError,
        r"multiply: operands could not be broadcast together with shapes \(2,3\) \(5,1,4\) ",
    ),
    "broadcast of a capture": (
        lambda a: a * FLOATS,
        (np.ones(4),),
        errors.ShapeError,
        r"multiply: .* with shapes \(4,\) \(2,3\) ",
    ),
    "broadcast_to": (
        lambda a, b: np.broadcast_to(a, b.shape),
        (np.ones(3), np.ones((2, 4))),
        errors.ShapeError,
        r"broadcast_to: an array of shape \(3,\) cannot be broadcast to shape \(2, 4\) ",
    ),
    "range": (lambda a, k: a + k, (BYTES, 300), errors.HostRangeError, "add: Python integer 300"),
    "size out of range": (
        lambda a: a + a.shape[0],
        (BYTES,),
        errors.HostRangeError,
        "add: .* uint8",
    ),
    "overflow": (lambda a, k: a * (k * k), (FLOATS, 2**40), errors.HostRangeError, "multiply"),
    "zero division": (lambda a, k: a * (1 // k), (FLOATS, 0), errors.HostDivisionError, "multiply"),
    "domain": (lambda a, k: a * k**0.5, (FLOATS, -2.0), errors.NotYet, "complex"),
    "empty": (lambda a: a.max(axis=0), (FLOATS[:0],), errors.ShapeError, "max: zero-size"),
    "data": (lambda a, b: a**b, (np.array([2]), np.array([-1])), errors.IntegerPowerError, "power"),
}


@pytest.mark.parametrize("name", CASES)
def test_late_errors(name: str) -> None:
    fn, args, error, text = CASES[name]
    f = ok.compile(fn)
    for _ in range(2):  # the first call misses, the second meets what the first left
        with pytest.raises(error, match=text) as caught:
            f(*args)
        assert "test_blame.py:" in str(caught.value)
    assert f.info().in_flight == 0


def test_options_are_checked() -> None:
    with pytest.raises(errors.NotYet, match="math='fast'"):
        ok.compile(np.exp, math="fast")
    with pytest.raises(errors.ArgumentError, match="errstate"):
        ok.compile(np.exp, errstate="log")  # type: ignore[call-overload]
    with pytest.raises(errors.ArgumentError, match="no option 'device'"):
        ok.compile(np.exp, device="cpu")  # type: ignore[call-overload]
    with pytest.raises(errors.ArgumentError, match="opt_level"):
        ok.compile(np.exp, opt_level=7)  # type: ignore[call-overload]
    with pytest.raises(errors.ArgumentError, match="static"):
        ok.compile(np.exp, static=1)  # type: ignore[call-overload]
    with pytest.raises(errors.ArgumentError, match="no such parameter"):
        ok.compile(lambda x: x, static="y")


def test_planned_names_say_so() -> None:
    assert not hasattr(ok, "xp")
    with pytest.raises(errors.NotYet, match="xp"):
        ok.xp  # noqa: B018


def test_equal_results_share_an_output() -> None:
    u = np.arange(4.0)
    a, b, n, m = ok.compile(lambda x: (+x, np.where(x, x, x), x.shape[0], x.shape[0]))(u)
    assert a is b
    np.testing.assert_array_equal(a, u)
    assert (n, m) == (4, 4)
    assert ok.compile(np.isnan)(np.array(3, np.int8)) is np.False_


def test_functions_that_share_a_program_name_their_own_lines() -> None:
    first = ok.compile(lambda a, b: a * b - 17.25)
    second = ok.compile(
        lambda a, b: a * b - 17.25  # another line, an equal graph
    )
    line = sys._getframe().f_lineno
    for f, lines in ((first, range(line - 5, line - 3)), (second, range(line - 3, line))):
        with pytest.raises(ValueError, match="multiply") as caught:
            f(FLOATS, np.ones(4))
        said = int(str(caught.value).partition("test_blame.py:")[2].partition(")")[0])
        assert said in lines, (said, line)
    assert second.info().programs == 0, "the program is shared"
