"""NumPy functions that are composites of rows: a table of each with what it is written as.

A composite is written with NumPy's own operations on traced values, so the dtypes, the broadcasting
and the refusals of each step are those of the rows. The docstring's first line is its formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from opkiln.ops.dtypes import kind_of
from opkiln.ops.elementwise.order import clip_ufunc
from opkiln.runtime.errors import CallError, NotYet, TraceError
from opkiln.runtime.trace import parts, ufuncs, views
from opkiln.runtime.trace.promote import (
    INT64,
    elementwise_operand,
    result_type,
    session_of,
)
from opkiln.runtime.trace.promote import clip as clip_node
from opkiln.runtime.trace.reductions import refuse_out
from opkiln.runtime.trace.session import ArrayValue, HostValue, failure
from opkiln.runtime.trace.tracer import Tracer, call_row, fit, update_in_place


class Composite(NamedTuple):
    """A function of NumPy, and the same over rows."""

    numpy: Callable[..., Any]
    rule: Callable[..., Any]
    method: str = ""  # the array method that does the same

    @property
    def formula(self) -> str:
        """What it computes, for the page of ops."""
        return (self.rule.__doc__ or "").partition("\n")[0].rstrip(".")


def _array(*values: Any) -> Any:
    """The first value as a traced array."""
    return views.as_array(session_of(values), values[0])


# ---- rounding ----


def _round(a: Any, decimals: Any = 0, out: Any = None) -> Any:
    """rint(a * 10**decimals) / 10**decimals."""
    if isinstance(out, Tracer) and out.dtype == a.dtype:  # of another, NumPy's steps round there
        return update_in_place(out, "round", lambda: _round(a, decimals))
    refuse_out("round", out)
    digits = views.whole(decimals, "decimals", "pass an int")
    integer = kind_of(a.dtype) in "iu"
    if integer and digits >= 0:
        return Tracer(a.session, a.node)
    if kind_of(a.dtype) == "c":
        return parts.by_parts(lambda part: _round(part, digits), a)
    if digits == 0:
        return np.rint(a)
    if kind_of(a.dtype) == "b":
        raise failure(
            TraceError, "round of bool to decimals", fix="convert it first, such as with x * 1.0"
        )
    try:
        scale = 10.0 ** abs(digits)
    except OverflowError:
        scale = math.inf
    if integer:
        return (np.rint(a / scale) * scale).astype(a.dtype)
    to, back = (np.multiply, np.divide) if digits > 0 else (np.divide, np.multiply)
    rounded = np.rint(to(a, scale).astype(a.dtype))  # bfloat16 times a number is float32
    return back(rounded, scale).astype(a.dtype)


def _fix(x: Any, out: Any = None) -> Any:
    """trunc(x)."""
    return np.trunc(x, out=out)


def _clip(
    a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, *,
    min: Any = None, max: Any = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """minimum(maximum(a, a_min), a_max)."""
    if (a_min is not None or a_max is not None) and (min is not None or max is not None):
        raise failure(
            CallError,
            "Passing `min` or `max` keyword argument when `a_min` and `a_max` are provided is "
            "forbidden.",
        )
    lo, hi = (a_min if min is None else min), (a_max if max is None else max)
    if kwargs:
        return _clip_as_asked(a, lo, hi, out, kwargs)
    if out is not None:
        return update_in_place(out, "clip", lambda: _clip(a, lo, hi))
    session = session_of([v for v in (a, lo, hi) if v is not None])
    return Tracer(session, clip_node(session, views.as_array(session, a).node, lo, hi))


def _clip_as_asked(a: Any, lo: Any, hi: Any, out: Any, kwargs: dict[str, Any]) -> Any:
    """With keywords of the ufunc behind it: the one that NumPy takes."""
    bounds = tuple([bound for bound in (lo, hi) if bound is not None])
    if len(bounds) == 2:
        ufunc = clip_ufunc
    else:
        ufunc = np.positive if not bounds else np.maximum if hi is None else np.minimum
    return ufuncs.call_ufunc(ufunc, "__call__", (a, *bounds), {"out": (out,), **kwargs})


# ---- choice ----


def _nan_to_num(
    x: Any, copy: Any = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Any:
    """where(isnan(x), nan, where(x == inf, posinf, where(x == -inf, neginf, x)))."""
    if not copy:
        return update_in_place(
            x, "nan_to_num", lambda: _nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf)
        )
    x = _array(x, nan, posinf, neginf)
    if kind_of(x.dtype) == "c":
        return parts.by_parts(lambda part: _nan_to_num(part, copy, nan, posinf, neginf), x)
    if not np.issubdtype(x.dtype, np.inexact):  # neither is bfloat16, for NumPy
        return Tracer(x.session, x.node)
    limits = np.finfo(x.dtype)

    def value(given: Any, default: Any) -> Any:
        given = default if given is None else given
        node = elementwise_operand(x.session, given)
        return Tracer(x.session, fit(x.session, node, x.node, "nan_to_num"))

    high, low = value(posinf, limits.max), value(neginf, limits.min)
    finite = call_row("where", x == np.inf, high, call_row("where", x == -np.inf, low, x))
    return call_row("where", np.isnan(x), value(nan, 0.0), finite)


def _select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """where(conditions[0], choices[0], where(conditions[1], choices[1], ... default))."""
    if len(condlist) != len(choicelist):
        raise failure(CallError, "list of cases must be same length as list of conditions")
    if not len(condlist):
        raise failure(CallError, "select with an empty condition list is not possible")
    session = session_of((*condlist, *choicelist, default))
    conditions = [views.as_array(session, c) for c in condlist]
    for i, condition in enumerate(conditions):
        if condition.dtype != np.bool_:
            raise failure(TraceError, f"invalid entry {i} in condlist: should be boolean ndarray")
    dtype = result_type(*choicelist, default)
    choices = [views.as_array(session, c).astype(dtype, casting="same_kind") for c in choicelist]
    result = views.as_array(session, default).astype(dtype)
    for condition, choice in zip(conditions[::-1], choices[::-1], strict=True):
        result = call_row("where", condition, choice, result)
    return result


def _choose(a: Any, choices: Any, out: Any = None, mode: Any = "raise") -> Any:
    """where(a == 0, choices[0], where(a == 1, choices[1], ...))."""
    if isinstance(choices, ArrayValue):
        raise failure(
            NotYet,
            "np.choose from the rows of one traced array is not supported yet",
            fix="pass a list of arrays",
        )
    if out is not None:
        return update_in_place(out, "choose", lambda: _choose(a, choices, mode=mode))
    given, count = list(choices), len(choices)
    if not count:
        raise failure(CallError, "choose: need at least one choice")
    session = session_of((a, *given))
    index = views.as_array(session, a).astype(INT64, casting="safe")
    if mode == "raise":
        index = call_row("choice_index", index, count)
    elif mode == "wrap":
        index = index % count
    elif mode == "clip":
        index = _clip(index, 0, count - 1)
    else:
        raise failure(
            CallError, f"choose: mode must be one of 'clip', 'raise' or 'wrap' (got {mode!r})"
        )
    dtype = result_type(*given)
    values = [views.as_array(session, v).astype(dtype) for v in given]
    result: Any = np.zeros((), dtype)[()]  # of no index: every choice asks for its own
    for i, choice in reversed(list(enumerate(values))):
        result = call_row("where", index == i, choice, result)
    return result


# ---- tests ----


def _require_sign(x: Any) -> None:
    if kind_of(x.dtype) not in "biuf":
        raise failure(
            TraceError,
            f"This operation is not supported for {x.dtype.name} values because it would be "
            f"ambiguous.",
            fix="ask np.isinf(x), or of a complex x its parts",
        )


def _isposinf(x: Any, out: Any = None) -> Any:
    """logical_and(isinf(x), x > 0)."""
    _require_sign(x)
    return np.logical_and(np.isinf(x), x > 0, out=out)


def _isneginf(x: Any, out: Any = None) -> Any:
    """logical_and(isinf(x), x < 0)."""
    _require_sign(x)
    return np.logical_and(np.isinf(x), x < 0, out=out)


def _isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: Any = False) -> Any:
    """(abs(a - b) <= atol + rtol * abs(b)) & isfinite(b), or a == b."""
    session = session_of((a, b, rtol, atol))

    def is_weak(value: Any) -> bool:
        return isinstance(value, (int, float, complex, HostValue))

    def strong(value: Any) -> Any:
        return value if is_weak(value) else views.as_array(session, value)

    x, y, low, share = strong(a), strong(b), strong(atol), strong(rtol)
    if is_weak(y):
        y = y * 1.0
    elif y.dtype.kind != "m":
        y = y.astype(result_type(y, 1.0))  # so that the lowest integer has an absolute value
    near = np.less_equal(abs(x - y), low + share * abs(y)) & np.isfinite(y) | (x == y)
    return near | np.isnan(x) & np.isnan(y) if equal_nan else near


def _allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: Any = False) -> Any:
    """all(isclose(a, b))."""
    return np.all(_isclose(a, b, rtol, atol, equal_nan))


COMPOSITES: tuple[Composite, ...] = (
    Composite(np.round, _round, "round"),
    Composite(np.around, _round),
    Composite(np.fix, _fix),
    Composite(np.clip, _clip, "clip"),
    Composite(np.nan_to_num, _nan_to_num),
    Composite(np.select, _select),
    Composite(np.choose, _choose, "choose"),
    Composite(np.isposinf, _isposinf),
    Composite(np.isneginf, _isneginf),
    Composite(np.isclose, _isclose),
    Composite(np.allclose, _allclose),
)
