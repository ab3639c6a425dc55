"""Ufunc calls beyond a plain row: methods, several results, and NumPy's keywords."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from opkiln.ops.defs import OpRow
from opkiln.ops.table import BY_UFUNC, ELEMENTWISE, REDUCTION_OF
from opkiln.runtime.errors import CallError, NotYet, NotYetFunction, TraceError
from opkiln.runtime.trace import linear, reductions, times, views
from opkiln.runtime.trace.advice import METHODS_ADVICE, WRITE_INSTEAD, WRITE_INTO
from opkiln.runtime.trace.promote import as_dtype, cast, elementwise, operand, session_of
from opkiln.runtime.trace.session import ArrayValue, failure, is_a
from opkiln.runtime.trace.tracer import Tracer, call_row, update_in_place

DT = np.dtype[Any]
Inputs = tuple[Any, ...]

# A row per result, of ufuncs that give several.
SEVERAL: dict[np.ufunc, tuple[str, ...]] = {
    np.divmod: ("floor_divide", "remainder"),
    np.modf: ("modf_fraction", "modf_whole"),
    np.frexp: ("frexp_mantissa", "frexp_exponent"),
}


_COMPOSED: dict[np.ufunc, Callable[..., Any]] = {np.isnat: times.isnat, **linear.UFUNCS}


def _row_of(ufunc: np.ufunc) -> OpRow | None:
    """The row of a ufunc of one result; another library's, such as SciPy's erf, goes by name."""
    return BY_UFUNC.get(ufunc) or (ELEMENTWISE.get(ufunc.__name__) if ufunc.nout == 1 else None)


def call_ufunc(ufunc: np.ufunc, method: str, inputs: Inputs, kwargs: dict[str, Any]) -> Any:
    """Everything that `__array_ufunc__` gets beyond a plain call of a known row."""
    kwargs = {k: v for k, v in kwargs.items() if not _is_default(k, v)}
    if method == "reduce" and ufunc in REDUCTION_OF:
        return reductions.reduce_ufunc(ufunc, *inputs, **kwargs)
    if method == "outer" and len(inputs) == 2:
        return call_ufunc(ufunc, "__call__", _spread(inputs), kwargs)
    if method != "__call__":
        raise failure(
            TraceError,
            f"np.{ufunc.__name__}.{method} cannot be traced",
            fix=METHODS_ADVICE[method],
        )
    _require_served(ufunc, kwargs)
    outs = kwargs.pop("out", None)
    where = kwargs.pop("where", True)
    casting = kwargs.get("casting", "same_kind")
    if where is not True:
        inputs, where = _masked(ufunc, inputs, where, outs)
    if kwargs:
        inputs = _as_asked(ufunc, inputs, **kwargs)
    if outs is None:
        return _call(ufunc, inputs)
    return _into(ufunc, outs, lambda: _call(ufunc, inputs), where, casting)


def _spread(inputs: Inputs) -> Inputs:
    """The operands of an outer product, each pair of their elements once."""
    session = session_of(inputs)
    x, y = (views.as_array(session, v) for v in inputs)
    return views.expanded(x, tuple(range(x.ndim, x.ndim + y.ndim))), y


def _call(ufunc: np.ufunc, inputs: Inputs) -> Any:
    """The value, or a tuple of them."""
    if ufunc in SEVERAL:
        return tuple([call_row(name, *inputs) for name in SEVERAL[ufunc]])
    row = _row_of(ufunc)
    if row is None:
        return _COMPOSED[ufunc](*inputs)
    session = session_of(inputs)
    return Tracer(session, elementwise(session, row, inputs))


# ---- keywords ----

_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "out": (None,), "where": (True,), "casting": ("same_kind",), "order": ("K",),
    "subok": (True,), "dtype": (None,), "signature": (None,), "initial": (reductions.NO_VALUE,),
}  # fmt: skip


def _is_default(name: str, value: Any) -> bool:
    if name == "out" and is_a(value, tuple):
        return all(v is None for v in value)
    return any(value is d or (isinstance(d, str) and value == d) for d in _DEFAULTS.get(name, ()))


def _require_served(ufunc: np.ufunc, kwargs: dict[str, Any]) -> None:
    """Refuse ufuncs without a row, and values of keywords that NumPy or opkiln does not take.

    Raises:
        NotYetFunction, NotYet.
    """
    name = ufunc.__name__
    if _row_of(ufunc) is None and ufunc not in SEVERAL and ufunc not in _COMPOSED:
        raise unknown(name)
    if "order" in kwargs:
        raise failure(
            NotYet,
            f"np.{name}: order={kwargs['order']!r} is not supported yet",
            fix="leave it out; the caller may pass an out= of that order to the whole",
        )
    kwargs.pop("subok", None)  # no subclass of an array is ever traced


def _as_asked(
    ufunc: np.ufunc, inputs: Inputs, casting: str = "same_kind", dtype: Any = None,
    signature: Any = None,
) -> Inputs:  # fmt: skip
    """The operands cast as dtype=, signature= and casting= say; NumPy's resolver decides.

    Raises:
        TraceError: there is no such loop, or the rule forbids a cast. CallError: no such rule.
    """
    session = session_of(inputs)
    operands = [operand(session, v) for v in inputs]
    types = [getattr(o, "dtype", type(o)) for o in operands]
    wanted: dict[str, Any] = {}
    if signature is not None:
        wanted["signature"] = _loop_of(ufunc, signature)
    elif dtype is not None:
        wanted["signature"] = (*(None,) * ufunc.nin, *(as_dtype(dtype),) * ufunc.nout)
    try:
        loop = ufunc.resolve_dtypes((*types, *(None,) * ufunc.nout), casting=casting, **wanted)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:  # no such loop, no such rule for casts
        kind = TraceError if isinstance(error, TypeError) else CallError
        raise failure(kind, f"np.{ufunc.__name__}: {error}") from None
    if not wanted:
        return inputs
    return tuple(
        [Tracer(session, cast(session, o, d)) for o, d in zip(operands, loop, strict=False)]
    )


def _loop_of(ufunc: np.ufunc, signature: Any) -> tuple[DT | None, ...]:
    """signature=, "dd->d" or a tuple, as a dtype or None per operand and result."""
    nargs = ufunc.nin + ufunc.nout
    given: Any = signature
    if isinstance(signature, str):
        before, arrow, after = signature.partition("->")
        given = (*before, *after) if arrow else (*(None,) * ufunc.nin, *before)
    if not is_a(given, tuple, list) or len(given) != nargs:
        raise failure(
            CallError,
            f"np.{ufunc.__name__}: signature= must name {ufunc.nin} operands and {ufunc.nout} "
            f"results, got {signature!r}",
            fix=f'write for example "{"d" * ufunc.nin}->{"d" * ufunc.nout}"',
        )
    return tuple([None if part is None else as_dtype(part) for part in given])


def _masked(ufunc: np.ufunc, inputs: Inputs, where: Any, outs: Any) -> tuple[Inputs, Any]:
    """The mask of where=, and operands that cannot fault where it is False."""
    name = ufunc.__name__
    if outs is None or any(out is None for out in outs):
        raise failure(
            TraceError,
            f"np.{name}: where= without out= leaves the rest of the result undefined",
            fix="use np.where(mask, new, old), or pass an out= of the function's own",
        )
    session = session_of((*inputs, *outs))
    mask = views.as_array(session, where)
    if mask.dtype != np.bool_:
        raise failure(
            TraceError,
            f"Cannot cast array data from {mask.dtype!r} to dtype('bool') according to the rule "
            "'safe'",
        )
    rows = SEVERAL.get(ufunc, (ufunc.__name__,))
    if any(name in ELEMENTWISE and ELEMENTWISE[name].faults for name in rows):
        inputs = (*inputs[:-1], call_row("where", mask, inputs[-1], 1))
    return inputs, mask


def _into(
    ufunc: np.ufunc, outs: Inputs, compute: Callable[[], Any], where: Any, casting: str
) -> Any:
    """Write the results, where `where` is True, into arrays of the traced function."""
    name = ufunc.__name__
    for out in outs:
        _require_writable(name, out)
    values: list[Any] = []

    def value(i: int) -> Any:
        if not values:
            found = compute()
            values.extend(found if ufunc.nout > 1 else (found,))
        return values[i]

    def into(i: int, out: Any) -> Any:
        if out is None:
            return value(i)
        return update_in_place(out, name, lambda: value(i), where=where, casting=casting)

    results = [into(i, out) for i, out in enumerate(outs)]
    return tuple(results) if ufunc.nout > 1 else results[0]


def _require_writable(name: str, out: Any) -> None:
    if out is None:
        return
    if not isinstance(out, ArrayValue):
        what = f"a {type(out).__name__}"
        if isinstance(out, np.ndarray):
            what = "a captured array, which takes no traced value"
        raise failure(
            TraceError,
            f"np.{name}: out= is {what}",
            fix=f"write y = np.{name}(...) and return y; {WRITE_INTO}; callers pass out= to the "
            "whole",
        )
    if not out.node.rank:
        raise failure(
            TraceError, f"np.{name}: return arrays must be of ArrayType", fix="leave out= out"
        )


def unknown(name: str) -> Exception:
    """It is a function of NumPy, so that none of a similar name is what was meant."""
    advice = WRITE_INSTEAD.get(name.rpartition(".")[2]) or (
        "write it with the functions that can: + - * / np.where np.exp x.sum(axis) ..."
    )
    return failure(NotYetFunction, f"np.{name} cannot be traced yet", fix=advice)
