"""NumPy's reductions of traced arrays: its arguments in, rows of the reduction table out.

The mean, the variance and the like are written over those rows, so they fuse as rows do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce as fold
from typing import Any

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.defs import ReduceRow
from opkiln.ops.dtypes import is_half, kind_of
from opkiln.ops.table import ELEMENTWISE, REDUCTION_OF, REDUCTIONS
from opkiln.runtime.errors import (
    HostRangeError,
    NotYet,
    ReductionError,
    ShapeError,
    TraceError,
)
from opkiln.runtime.graph import Node, host_const
from opkiln.runtime.trace import parts, times, views
from opkiln.runtime.trace.advice import NO_OUT
from opkiln.runtime.trace.promote import (
    BOOL,
    BROADCAST,
    FLOAT32,
    FLOAT64,
    INT64,
    as_dtype,
    cast,
    elementwise,
    elementwise_operand,
    filled,
    operand,
    session_of,
)
from opkiln.runtime.trace.session import HostValue, Session, failure, is_a
from opkiln.runtime.trace.tracer import Tracer, call_row, wrap

DT = np.dtype[Any]
NO_VALUE: Any = vars(np)["_NoValue"]  # the default of keywords such as initial=
UINT8 = np.dtype(np.uint8)
_WHERE = p.Elementwise("where")

# The elementwise row that combines a reduction with its initial value: that of the same ufunc.
_COMBINING = {
    row.name: next(e for e in ELEMENTWISE.values() if e.numpy is row.numpy)
    for row in REDUCTION_OF.values()
}


def refuse_out(name: str, out: Any) -> None:
    """Refuse out= where a trace cannot write.

    Raises:
        TraceError: names the function.
    """
    if out is not None:
        raise failure(
            TraceError,
            f"{name}: out= cannot be written inside a compiled function",
            fix=NO_OUT,
        )


# ---- one row of the table ----


def reduce(
    row: ReduceRow, x: Any, axis: Any, keepdims: Any,
    dtype: DT | None = None, initial: Any = NO_VALUE, where: Any = True,
) -> Any:  # fmt: skip
    """One row over NumPy's arguments."""
    session: Session = x.session
    session.check_open()
    node: Node = x.node
    if node.dtype.kind in "mM":
        return times.reduce(
            row.name, x, lambda n: reduce(row, n, axis, keepdims, dtype, initial, where)
        )
    axes, keep = _axes(axis, node.rank), _keep(keepdims)
    into = wide = row.accumulate(node.dtype) if dtype is None else dtype
    if into == BOOL:
        if row.on_bool:
            row = REDUCTIONS[row.on_bool]
        else:
            wide = UINT8
    if into.kind == "c":
        return _complex_sum(row, x, axis, keepdims, into, initial, where)
    if kind_of(into) not in row.accepts:
        raise failure(
            TraceError,
            f"ufunc '{row.numpy.__name__}' is not supported for {into.name}",
            fix="convert the operand first, or leave dtype= out",
        )
    start = _initial(session, row, into, initial)
    value = cast(session, cast(session, node, into), wide)
    value = _masked(session, row, value, where, seeded=start is not None)
    if axes:
        seeded = bool(row.empty) and start is not None
        value = session.make(p.Reduce(row.name, axes, keep, wide, seeded), value)
    elif row.finds:
        value = filled(session, np.int64(0), value)
    elif row.blocked and kind_of(into) == "f":  # NumPy's sum starts at +0.0, which shows for -0.0
        value = elementwise(session, ELEMENTWISE["add"], (value, into.type(0)))
    value = cast(session, value, row.result(into))
    if start is not None:
        value = elementwise(session, _COMBINING[row.name], (value, start))
    return Tracer(session, value)


def _complex_sum(
    row: ReduceRow, x: Any, axis: Any, keepdims: Any, into: DT, initial: Any, where: Any
) -> Any:
    """A sum of complex values: those of their parts."""
    if row.name != "sum":
        raise failure(
            NotYet,
            f"{row.name} of {into.name} is not supported yet",
            fix="reduce x.real, x.imag or abs(x), or compute it outside the compiled function",
        )
    found = [
        reduce(row, part, axis, keepdims, part.dtype, where=where)
        for part in parts.into_parts(x, into)
    ]
    start = _initial(x.session, row, into, initial)
    total = call_row("from_parts", *found)
    return total if start is None else total + Tracer(x.session, start)


def _axes(axis: Any, rank: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(rank))
    if not rank and type(axis) is int and axis in (0, -1):
        return ()  # NumPy lets a 0-d array be reduced over its only imaginable axis
    return tuple(sorted(views.many_axes(axis, rank, bools=False, lists=False)))


def _keep(keepdims: Any) -> bool:
    return keepdims is not NO_VALUE and bool(views.whole(keepdims, "keepdims", "pass a bool"))


def _initial(session: Session, row: ReduceRow, into: DT, initial: Any) -> Node | None:
    """The initial value as a 0-d node of the accumulator's dtype."""
    if initial is NO_VALUE or (initial is None and row.empty):
        return None
    if initial is None:
        raise failure(
            TraceError,
            f"{row.name}: initial=None, to refuse an empty {row.name}, is not supported",
            fix="leave initial= out",
        )
    if into.kind == "i" and is_a(initial, np.generic) and initial.dtype.kind in "iuf":
        initial = initial.item()  # NumPy checks the range of these as of Python's numbers
    value = operand(session, initial)
    if isinstance(value, Node) and value.rank:
        raise failure(
            ReductionError,
            f"{row.name}: initial= must be a scalar, got an array of rank {value.rank}",
            fix="combine the array with the result, for example np.maximum(x.max(axis), initial)",
        )
    if isinstance(value, float) and into.kind in "iu" and not math.isfinite(value):
        error = ReductionError if math.isnan(value) else HostRangeError  # NumPy tells them apart
        raise failure(error, f"{row.name}: initial={value} cannot be converted to {into.name}")
    return cast(session, value, into)


def _masked(session: Session, row: ReduceRow, value: Node, where: Any, *, seeded: bool) -> Node:
    """The operand with what the mask leaves out replaced by a value that changes nothing."""
    if _is_all(where):
        return value
    unchanged = row.identity_of(value.dtype)
    if row.empty and not seeded:
        raise failure(
            ReductionError,
            f"reduction operation '{row.numpy.__name__}' does not have an identity, so to use a "
            f"where mask one has to specify 'initial'",
            fix=f"write x.{row.name}(..., where=mask, initial={unchanged}), or another initial",
        )
    mask = _mask(session, value, where)
    return session.make(_WHERE, mask, value, session.make(p.Constant(unchanged)))


def _is_all(where: Any) -> bool:
    return where is True or where is NO_VALUE


def _mask(session: Session, value: Node, where: Any) -> Node:
    """where= as a bool node in the shape of `value`."""
    if where is None:
        raise failure(TraceError, "where=None is no mask", fix="leave where= out, or pass a mask")
    mask = elementwise_operand(session, where)
    if mask.dtype != BOOL and mask.rank and not is_a(where, list, tuple):
        raise failure(
            TraceError,
            f"where=: cannot cast {mask.dtype.name} to bool according to the rule 'safe'",
            fix="pass a mask of bools, for example where=mask != 0",
        )
    mask = cast(session, mask, BOOL)
    if mask.rank > value.rank:
        raise failure(
            ShapeError,
            f"where=: a mask of rank {mask.rank} does not fit an array of rank {value.rank}",
            fix="pass a mask that broadcasts to the array, or np.broadcast_to(x, ...) for x",
        )
    return mask if mask.shape == value.shape else session.make(BROADCAST, mask, *value.shape)


def _adding(name: str) -> Callable[..., Any]:
    """np.sum and np.prod."""
    row = REDUCTIONS[name]

    def rule(
        a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = NO_VALUE,
        initial: Any = NO_VALUE, where: Any = True,
    ) -> Any:  # fmt: skip
        refuse_out(name, out)
        into = None if dtype is None else as_dtype(dtype)
        return reduce(row, a, axis, keepdims, into, initial, where)

    return rule


def _ordering(name: str) -> Callable[..., Any]:
    """np.max and np.min."""
    row = REDUCTIONS[name]

    def rule(
        a: Any, axis: Any = None, out: Any = None, keepdims: Any = NO_VALUE,
        initial: Any = NO_VALUE, where: Any = True,
    ) -> Any:  # fmt: skip
        refuse_out(name, out)
        return reduce(row, a, axis, keepdims, None, initial, where)

    return rule


def _testing(name: str) -> Callable[..., Any]:
    """np.any and np.all."""
    row = REDUCTIONS[name]

    def rule(
        a: Any, axis: Any = None, out: Any = None, keepdims: Any = NO_VALUE, *, where: Any = True
    ) -> Any:
        refuse_out(name, out)
        return reduce(row, a, axis, keepdims, where=where)

    return rule


def _finding(name: str) -> Callable[..., Any]:
    """np.argmax and np.argmin."""
    row = REDUCTIONS[name]

    def rule(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = NO_VALUE) -> Any:
        refuse_out(name, out)
        if is_a(axis, tuple):
            raise failure(
                TraceError,
                f"{name}: 'tuple' object cannot be interpreted as an integer",
                fix="pass one axis, or None for the index into the flattened array",
            )
        return reduce(row, a, axis, keepdims)

    return rule


def reduce_ufunc(
    ufunc: np.ufunc, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None,
    keepdims: Any = False, initial: Any = NO_VALUE, where: Any = True,
) -> Any:  # fmt: skip
    """ufunc.reduce, whose axis defaults to 0."""
    refuse_out(f"np.{ufunc.__name__}.reduce", out)
    x = views.as_array(session_of((array, initial, where)), array)
    into = None if dtype is None else as_dtype(dtype)
    return reduce(REDUCTION_OF[ufunc], x, axis, keepdims, into, initial, where)


# ---- over several rows ----


def _inexact(a: Any, dtype: Any) -> DT:
    """The dtype that means and variances are computed in."""
    if dtype is not None:
        return as_dtype(dtype)
    return a.dtype if kind_of(a.dtype) in "fc" else FLOAT64


def _count(a: Any, axis: Any, keepdims: Any, where: Any) -> Any:
    """How many elements go into each result: a size, or an array where a mask decides."""
    if not _is_all(where):
        mask = Tracer(a.session, _mask(a.session, a.node, where))
        return reduce(REDUCTIONS["sum"], mask, axis, keepdims)
    axes = range(a.ndim) if axis is None else views.many_axes(axis, a.ndim, bools=False)
    extents = [a.node.shape[i] for i in axes] or [host_const(1)]
    return wrap(a.session, fold(lambda m, n: a.session.make(p.HostOp("mul"), m, n), extents))


def _quotient(total: Any, count: Any, into: DT) -> Any:
    """The quotient in `into`; NumPy divides integers as float64 and cuts the fraction off."""
    session = total.session
    if kind_of(into) not in "fc":
        return Tracer(session, cast(session, call_row("divide", total, count).node, into))
    wide = FLOAT32 if is_half(into) else into  # where any count fits
    dividend = Tracer(session, cast(session, total.node, wide))
    divisor = Tracer(session, cast(session, operand(session, count), wide))
    return Tracer(session, cast(session, call_row("divide", dividend, divisor).node, into))


def _in_float32(rule: Callable[..., Any], a: Any, *args: Any, **kwargs: Any) -> Any:
    """The rule over a half array in float32, rounded once; NumPy so computes means of float16."""
    session = a.session
    result = rule(Tracer(session, cast(session, a.node, FLOAT32)), *args, **kwargs)
    return Tracer(session, cast(session, result.node, a.dtype))


def _mean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = NO_VALUE, *,
    where: Any = True,
) -> Any:  # fmt: skip
    """np.mean: the sum divided by the count."""
    refuse_out("mean", out)
    if dtype is None and is_half(a.dtype):
        return _in_float32(_mean, a, axis, None, None, keepdims, where=where)
    if times.is_time(a.dtype):  # a time whatever the dtype
        total = reduce(REDUCTIONS["sum"], a, axis, keepdims, where=where)
        return call_row("divide", total, _count(a, axis, keepdims, where))
    into = _inexact(a, dtype)
    total = reduce(REDUCTIONS["sum"], a, axis, keepdims, into, where=where)
    return _quotient(total, _count(a, axis, keepdims, where), into)


def _var(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0,
    keepdims: Any = NO_VALUE, *, where: Any = True, mean: Any = NO_VALUE,
) -> Any:  # fmt: skip
    """np.var: the mean first, then the squares of what is left, as NumPy."""
    refuse_out("var", out)
    if dtype is None and is_half(a.dtype):
        return _in_float32(_var, a, axis, None, None, ddof, keepdims, where=where, mean=mean)
    into = _inexact(a, dtype)
    if mean is NO_VALUE or mean is None:
        mean = _mean(a, axis, into, keepdims=True, where=where)
    left = a - mean
    if into.kind == "c":
        re, im = parts.into_parts(left, into)
        square, into = re * re + im * im, re.dtype
    else:
        square = left * left
    squares = reduce(REDUCTIONS["sum"], square, axis, keepdims, into, where=where)
    if not isinstance(ddof, (HostValue, int, float)):
        ddof = views.as_array(a.session, ddof)
    freedom = _count(a, axis, keepdims, where) - ddof
    if isinstance(freedom, HostValue):
        freedom = wrap(a.session, a.session.make(p.HostOp("max"), freedom.node, host_const(0)))
    else:
        freedom = np.maximum(freedom, 0)
    return _quotient(squares, freedom, into)


def _std(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0,
    keepdims: Any = NO_VALUE, *, where: Any = True, mean: Any = NO_VALUE,
) -> Any:  # fmt: skip
    """np.std: the root of the variance."""
    refuse_out("std", out)
    if dtype is None and is_half(a.dtype):
        return _in_float32(_std, a, axis, None, None, ddof, keepdims, where=where, mean=mean)
    variance = _var(a, axis, dtype, None, ddof, keepdims, where=where, mean=mean)
    if variance.ndim and kind_of(variance.dtype) != "f":  # NumPy writes the root into the variance
        raise failure(
            TraceError,
            f"std: the root of a variance in {variance.dtype.name} is no {variance.dtype.name}",
            fix="leave dtype= out, or write np.sqrt(x.var(..., dtype=...))",
        )
    root = call_row("sqrt", variance)
    return Tracer(a.session, cast(a.session, root.node, variance.dtype))


def _corrected(method: Callable[..., Any]) -> Callable[..., Any]:
    """np.var and np.std, which have a keyword more than the methods."""

    def rule(
        a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0,
        keepdims: Any = NO_VALUE, *, where: Any = True, mean: Any = NO_VALUE,
        correction: Any = NO_VALUE,
    ) -> Any:  # fmt: skip
        if correction is not NO_VALUE:
            if type(ddof) is not int or ddof != 0:
                raise failure(
                    ReductionError,
                    "ddof and correction can't be provided simultaneously.",
                    fix="pass one of them; they mean the same",
                )
            ddof = correction
        return method(a, axis, dtype, out, ddof, keepdims, where=where, mean=mean)

    return rule


def _ptp(a: Any, axis: Any = None, out: Any = None, keepdims: Any = NO_VALUE) -> Any:
    """np.ptp: the largest value minus the smallest."""
    refuse_out("ptp", out)
    largest, smallest = (reduce(REDUCTIONS[m], a, axis, keepdims) for m in ("max", "min"))
    return call_row("subtract", largest, smallest)


def _count_nonzero(a: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    """np.count_nonzero: the sum of the truth values."""
    truth = Tracer(a.session, cast(a.session, a.node, BOOL))
    return reduce(REDUCTIONS["sum"], truth, axis, keepdims, INT64)


def _without_nan(name: str, fill: float) -> Callable[..., Any]:
    """np.nansum and np.nanprod."""
    row = REDUCTIONS[name]

    def rule(
        a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = NO_VALUE,
        initial: Any = NO_VALUE, where: Any = True,
    ) -> Any:  # fmt: skip
        refuse_out(f"nan{name}", out)
        into = None if dtype is None else as_dtype(dtype)
        if kind_of(a.dtype) in "fc":
            a = call_row("where", call_row("isnan", a), a.dtype.type(fill), a)
        return reduce(row, a, axis, keepdims, into, initial, where)

    return rule


def _nanmean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = NO_VALUE, *,
    where: Any = True,
) -> Any:  # fmt: skip
    """np.nanmean: the mean of what is not NaN."""
    if kind_of(a.dtype) not in "fc":
        return _mean(a, axis, dtype, out, keepdims, where=where)
    if dtype is not None and kind_of(as_dtype(dtype)) not in "fc":
        raise failure(
            TraceError,
            f"nanmean: the mean of {a.dtype.name} cannot be computed in {as_dtype(dtype).name}",
            fix="leave dtype= out, and convert the result",
        )
    known = ~call_row("isnan", a)
    if not _is_all(where):
        known = known & Tracer(a.session, _mask(a.session, a.node, where))
    return _mean(a, axis, dtype, out, keepdims, where=known)


METHODS: dict[str, Callable[..., Any]] = {
    "sum": _adding("sum"),
    "prod": _adding("prod"),
    "max": _ordering("max"),
    "min": _ordering("min"),
    "any": _testing("any"),
    "all": _testing("all"),
    "argmax": _finding("argmax"),
    "argmin": _finding("argmin"),
    "mean": _mean,
    "var": _var,
    "std": _std,
}
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **{getattr(np, name): rule for name, rule in METHODS.items()},
    np.amax: METHODS["max"],
    np.amin: METHODS["min"],
    np.var: _corrected(_var),
    np.std: _corrected(_std),
    np.ptp: _ptp,
    np.count_nonzero: _count_nonzero,
    np.nansum: _without_nan("sum", 0.0),
    np.nanprod: _without_nan("prod", 1.0),
    np.nanmean: _nanmean,
}
