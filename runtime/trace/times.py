"""datetime64 and timedelta64: NumPy's calls on them, written over int64.

A time is a count of its unit, and NaT the lowest int64: the same bits under another dtype. So
neither lowering nor a kernel knows of times, and one kernel serves every unit. Where NaT must win,
or must lose, the order of int64 is rotated by one, in which NaT is the highest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import gcd
from typing import Any

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.defs import OpRow, Signature
from opkiln.ops.dtypes import kind_of
from opkiln.ops.signatures import by_ufunc
from opkiln.ops.table import ELEMENTWISE
from opkiln.runtime.errors import NotYet, TraceError
from opkiln.runtime.graph import Node
from opkiln.runtime.trace import promote
from opkiln.runtime.trace.session import Session, failure
from opkiln.runtime.trace.tracer import Tracer, call_row

DT = np.dtype[Any]
INT64, FLOAT64 = promote.INT64, promote.FLOAT64
NAT = np.int64(-(2**63))
# Units of a fixed length, in attoseconds.
_LENGTHS = {"as": 1, "fs": 10**3, "ps": 10**6, "ns": 10**9, "us": 10**12, "ms": 10**15,
            "s": 10**18, "m": 60 * 10**18, "h": 3600 * 10**18, "D": 86400 * 10**18,
            "W": 7 * 86400 * 10**18}  # fmt: skip
_MONTHS = {"M": 1, "Y": 12}


def is_time(dtype: Any) -> bool:
    """Whether it is a datetime64 or timedelta64; the dtypes of weak numbers are not."""
    return isinstance(dtype, np.dtype) and dtype.kind in "mM"


# ---- the count and back ----


def count(x: Tracer) -> Tracer:
    """The time as its int64."""
    return Tracer(x.session, _viewed(x.session, x.node, INT64))


def timed(x: Any, dtype: DT) -> Tracer:
    """An int64 as a time."""
    return Tracer(x.session, _viewed(x.session, x.node, dtype))


def _viewed(session: Session, node: Node, dtype: DT) -> Node:
    if isinstance(node.op, p.Reinterpret) and node.src[0].dtype == dtype:
        return node.src[0]
    return node if node.dtype == dtype else session.make(p.Reinterpret(dtype), node)


def constant(session: Session, value: np.generic) -> Node:
    """A NumPy time of the source as a 0-d value."""
    return _viewed(session, session.make(p.Constant(np.int64(value.view(INT64)))), value.dtype)


# ---- casts ----


def with_unit(dtype: DT, source: DT) -> DT:
    """The dtype of a cast from `source`: a time without a unit takes the source's."""
    if not (is_time(dtype) and is_time(source)) or np.datetime_data(dtype)[0] != "generic":
        return dtype
    unit, step = np.datetime_data(source)
    return dtype if unit == "generic" else np.dtype(f"{dtype.kind}8[{step}{unit}]")


@lru_cache(maxsize=256)
def _ratio(source: DT, target: DT) -> tuple[int, int] | None:
    """How many units of `target` one of `source` is, as a fraction; None if that varies."""
    (have, n), (want, d) = np.datetime_data(source), np.datetime_data(target)
    if "generic" in (have, want):
        return 1, 1
    for lengths in (_LENGTHS, _MONTHS):
        if have in lengths and want in lengths:
            over, under = lengths[have] * n, lengths[want] * d
            common = gcd(over, under)
            return over // common, under // common
    return None


def cast(session: Session, node: Node, dtype: DT) -> Node:
    """A cast to, from or between times.

    Raises:
        NotYet: between months or years and shorter units, whose ratio depends on the calendar.
        TraceError: between a time and what NumPy does not cast to it.
    """
    source = node.dtype
    if not is_time(dtype):
        return promote.cast(session, _viewed(session, node, INT64), dtype)
    if not is_time(source):
        if kind_of(source) == "f":
            wide = Tracer(session, promote.cast(session, node, FLOAT64))
            return _viewed(session, _cut(wide).node, dtype)
        return _viewed(session, promote.cast(session, node, INT64), dtype)
    if np.datetime_data(dtype)[0] == "generic" and source.kind == dtype.kind:
        return node
    if source.kind != dtype.kind:
        return _viewed(session, node, dtype)
    ratio = _ratio(source, dtype)
    if ratio is None:
        raise failure(
            NotYet,
            f"casting {source.name} to {dtype.name} is not supported yet: "
            f"the length of months and years varies",
            fix=f"convert it before the call: x.astype({dtype.name!r})",
        )
    value, (over, under) = count(Tracer(session, node)), ratio
    if over != 1:
        value = _unless_nat([value], value * np.int64(over))
    if under != 1:
        value = _unless_nat([value], value // np.int64(under))
    return _viewed(session, value.node, dtype)


def _cut(value: Tracer) -> Any:
    """A float64 cut off to a count; NaN and infinity are NaT."""
    finite = call_row("isfinite", value)
    whole = promote.cast(value.session, call_row("where", finite, value, 0.0).node, INT64)
    return call_row("where", finite, Tracer(value.session, whole), NAT)


def _wide(x: Tracer) -> Tracer:
    """The count as float64."""
    return Tracer(x.session, promote.cast(x.session, count(x).node, FLOAT64))


def _unless_nat(operands: list[Tracer], value: Any) -> Any:
    missing = [_is_nat(x) for x in operands]
    return call_row(
        "where", missing[0] if len(missing) == 1 else missing[0] | missing[1], NAT, value
    )


# ---- ufuncs ----

Rule = Callable[..., Any]


def _wrapping(row: str) -> Rule:
    """Arithmetic of two counts."""

    def rule(a: Tracer, b: Tracer) -> Any:
        return _unless_nat([a, b], call_row(row, a, b))

    return rule


def _times_number(a: Tracer, b: Tracer) -> Any:
    time, number = (a, b) if is_time(a.dtype) else (b, a)
    if number.dtype == FLOAT64:
        return _unless_nat([count(time)], _cut(call_row("multiply", _wide(time), number)))
    return _unless_nat([count(time)], count(time) * number)


def _by_number(a: Tracer, b: Tracer) -> Any:
    """Division of a time by a number cuts off, floor_divide's too (NumPy)."""
    ticks = count(a)
    if b.dtype == FLOAT64:
        return _unless_nat([ticks], _cut(call_row("divide", _wide(a), b)))
    divisor = call_row("where", b == 0, np.int64(1), b)
    dividend = call_row("where", ticks == NAT, np.int64(0), ticks)
    cut = (dividend - call_row("fmod", dividend, divisor)) // divisor
    return call_row("where", (ticks == NAT) | (b == 0), NAT, cut)


def _divide(a: Tracer, b: Tracer) -> Any:
    if not is_time(b.dtype):
        return _by_number(a, b)
    missing = _is_nat(count(a)) | _is_nat(count(b))
    return call_row("where", missing, float("nan"), call_row("divide", _wide(a), _wide(b)))


def _safe(a: Tracer, b: Tracer) -> tuple[Any, Any, Any]:
    """Counts that divide without a fault, and where they stand for what does not divide."""
    x, y = count(a), count(b)
    bad = (x == NAT) | (y == NAT) | (y == 0)
    return call_row("where", bad, np.int64(0), x), call_row("where", bad, np.int64(1), y), bad


def _floor_divide(a: Tracer, b: Tracer) -> Any:
    if not is_time(b.dtype):
        return _by_number(a, b)
    x, y, bad = _safe(a, b)
    return call_row("where", bad, np.int64(0), x // y)


def _remainder(a: Tracer, b: Tracer) -> Any:
    x, y, bad = _safe(a, b)
    return call_row("where", bad, NAT, x % y)


def _rotated(row: str) -> Rule:
    """In the order where NaT is the highest."""

    def rule(a: Tracer, b: Tracer) -> Any:
        one = np.int64(1)
        return call_row(row, a - one, b - one) + one

    return rule


def _plain(row: str) -> Rule:
    return partial(call_row, row)


def _comparison(row: str, unknown: int) -> Rule:
    """A comparison that is false where the given operand, and so in effect either, is NaT."""

    def rule(*counts: Tracer) -> Any:
        return call_row(row, *counts) & call_row("not_equal", counts[unknown], NAT)

    return rule


def _not_equal(a: Tracer, b: Tracer) -> Any:
    return call_row("not_equal", a, b) | call_row("equal", a, NAT)


def _is_nat(a: Tracer) -> Any:
    return call_row("equal", a, NAT)


def _is_known(a: Tracer) -> Any:
    return call_row("not_equal", a, NAT)


def _never(a: Tracer) -> Any:
    return call_row("not_equal", a, a)


def isnat(x: Any) -> Any:
    """np.isnat."""
    if not is_time(x.dtype):
        raise failure(
            TraceError, "ufunc 'isnat' is only defined for np.datetime64 and np.timedelta64.",
            fix="use np.isnan for floats",
        )  # fmt: skip
    return _is_nat(count(x))


# Of counts: the rules whose operands are all of one kind.
_OF_COUNTS: dict[str, Rule] = {
    "add": _wrapping("add"),
    "subtract": _wrapping("subtract"),
    "negative": _plain("negative"),  # the lowest int64 is its own negative
    "positive": _plain("positive"),
    "absolute": _plain("absolute"),
    "sign": _plain("sign"),
    "equal": _comparison("equal", 0),
    "not_equal": _not_equal,
    "less": _comparison("less", 0),
    "less_equal": _comparison("less_equal", 0),
    "greater": _comparison("greater", 1),
    "greater_equal": _comparison("greater_equal", 1),
    "maximum": _rotated("maximum"),
    "minimum": _plain("minimum"),
    "fmax": _plain("maximum"),
    "fmin": _rotated("minimum"),
    "isnan": _is_nat,
    "isfinite": _is_known,
    "isinf": _never,
    "where": _plain("where"),
}
_MIXED: dict[str, Rule] = {
    "multiply": _times_number,
    "divide": _divide,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    **{row: _plain(row) for row in ("logical_and", "logical_or", "logical_xor")},
}


def _signature(row: OpRow, operands: list[promote.Operand]) -> Signature:
    """What NumPy's resolver says; that of a ufunc's row is for the numbers that it computes in."""
    types = tuple(o.dtype if isinstance(o, Node) else type(o) for o in operands)
    resolve = by_ufunc if isinstance(row.numpy, np.ufunc) else row.signature
    try:
        return resolve(row, types)
    except TypeError as error:
        raise failure(TraceError, str(error)) from None


def elementwise(session: Session, row: OpRow, operands: list[promote.Operand]) -> Node:
    """A row of the table over operands of which one at least is a time.

    Raises:
        TraceError: NumPy has no such operation of times.
    """
    if row.name == "clip":
        low = elementwise(session, ELEMENTWISE["maximum"], operands[:2])
        return elementwise(session, ELEMENTWISE["minimum"], [low, operands[2]])
    wanted, result = _signature(row, operands)
    values = [
        Tracer(session, promote.cast(session, o, d)) for o, d in zip(operands, wanted, strict=True)
    ]
    if row.name in _OF_COUNTS:
        made = _OF_COUNTS[row.name](*(count(v) if is_time(v.dtype) else v for v in values))
    elif row.name in _MIXED:
        made = _MIXED[row.name](*values)
    else:
        raise failure(NotYet, f"np.{row.name} of {result.name} is not supported yet")
    return _viewed(session, made.node, result) if is_time(result) else made.node


# ---- reductions ----


def reduce(name: str, x: Tracer, fold: Callable[[Tracer], Any]) -> Any:
    """A reduction of times: `fold` is that of numbers, over the other arguments.

    Raises:
        TraceError: NumPy has no such reduction of times.
    """
    ticks = count(x)
    match name:
        case "min":
            return timed(fold(ticks), x.dtype)
        case "max":
            return timed(fold(ticks - np.int64(1)) + np.int64(1), x.dtype)
        case "argmin":
            return fold(ticks)
        case "argmax":
            return fold(ticks - np.int64(1))
        case "any" | "all":
            return fold(call_row("not_equal", ticks, np.int64(0)))
        case "sum" if x.dtype.kind == "m":
            # NaT counts as 0 in one sum, and alone in the other.
            present = fold(call_row("where", ticks == NAT, np.int64(0), ticks))
            missing = fold(call_row("where", ticks == NAT, np.int64(1), np.int64(0)))
            return timed(call_row("where", missing == 0, present, NAT), x.dtype)
        case _:
            raise failure(
                TraceError, f"np.{name} is not defined for {x.dtype.name}",
                fix="convert it: x.astype(np.int64)",
            )  # fmt: skip
