"""NumPy functions and methods on traced arrays, a table each; refusals say what to write."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.table import BY_UFUNC, ELEMENTWISE, REDUCTION_OF
from opkiln.runtime.errors import MissingAttribute, NotYet, NotYetFunction, TraceError
from opkiln.runtime.graph import Node
from opkiln.runtime.trace import parts, reductions, times, views
from opkiln.runtime.trace.advice import (
    METHODS_ADVICE,
    NO_ATTRIBUTE,
    WRITE_INSTEAD,
)
from opkiln.runtime.trace.promote import (
    BROADCAST,
    as_dtype,
    cast,
    clip,
    constant,
    elementwise,
    operand,
    session_of,
)
from opkiln.runtime.trace.session import ArrayValue, HostValue, failure, is_a
from opkiln.runtime.trace.tracer import MAKE_STATIC, Tracer, call_row, update_in_place

DT = np.dtype[Any]
MISSING = object()


# ---- ufuncs ----


# A row per result, of ufuncs that give several.
_SEVERAL: dict[np.ufunc, tuple[str, ...]] = {
    np.divmod: ("floor_divide", "remainder"),
    np.modf: ("modf_fraction", "modf_whole"),
    np.frexp: ("frexp_mantissa", "frexp_exponent"),
}


def _several(ufunc: np.ufunc, *inputs: Any) -> tuple[Any, ...]:
    return tuple([call_row(name, *inputs) for name in _SEVERAL[ufunc]])


_COMPOSED: dict[np.ufunc, Callable[..., Any]] = {
    np.isnat: times.isnat,
    **{ufunc: partial(_several, ufunc) for ufunc in _SEVERAL},
}


def call_ufunc(
    ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Everything that `__array_ufunc__` gets beyond a plain call of a known row."""
    kwargs = {k: v for k, v in kwargs.items() if not _is_default(k, v)}
    if method == "reduce" and ufunc in REDUCTION_OF:
        return reductions.reduce_ufunc(ufunc, *inputs, **kwargs)
    if method != "__call__":
        raise failure(
            TraceError,
            f"np.{ufunc.__name__}.{method} cannot be traced",
            fix=METHODS_ADVICE[method],
        )
    out = kwargs.pop("out", None)
    dtype = kwargs.pop("dtype", None)
    if kwargs:
        raise failure(
            NotYet,
            f"np.{ufunc.__name__}: the keyword {next(iter(kwargs))}= is not supported yet",
            fix="use np.where(mask, new, old) for where=, x.astype(...) for the others",
        )
    row = BY_UFUNC.get(ufunc) or (ELEMENTWISE.get(ufunc.__name__) if ufunc.nout == 1 else None)
    composed = _COMPOSED.get(ufunc)
    if row is None and composed is None:
        raise _unknown(ufunc.__name__)
    if out is not None:
        return _into(ufunc, out[0] if len(out) == 1 else out, inputs, dtype)
    if composed is not None and row is None:
        return composed(*inputs)
    assert row is not None
    session = session_of(inputs)
    wanted = None if dtype is None else as_dtype(dtype)
    return Tracer(session, elementwise(session, row, inputs, wanted))


_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "out": (None,), "where": (True,), "casting": ("same_kind",), "order": ("K",),
    "subok": (True,), "dtype": (None,), "signature": (None,), "initial": (reductions.NO_VALUE,),
}  # fmt: skip


def _is_default(name: str, value: Any) -> bool:
    if name == "out" and is_a(value, tuple):
        return all(v is None for v in value)
    return any(value is d or (isinstance(d, str) and value == d) for d in _DEFAULTS.get(name, ()))


def _into(ufunc: np.ufunc, out: Any, inputs: tuple[Any, ...], dtype: Any) -> Any:
    name = ufunc.__name__
    if not isinstance(out, ArrayValue):
        what = "a captured array" if isinstance(out, np.ndarray) else "several arrays"
        raise failure(
            TraceError,
            f"np.{name}: out= is {what}",
            fix=f"write y = np.{name}(...) and return y; callers pass out= to the whole",
        )
    if not out.node.rank:
        raise failure(
            TraceError, f"np.{name}: return arrays must be of ArrayType", fix="leave out= out"
        )
    session_of((*inputs, out))
    return update_in_place(
        out, name, lambda: call_ufunc(ufunc, "__call__", inputs, {"dtype": dtype})
    )


def _unknown(name: str) -> Exception:
    """It is a function of NumPy, so that none of a similar name is what was meant."""
    advice = WRITE_INSTEAD.get(name.rpartition(".")[2]) or (
        "write it with the functions that can: + - * / np.where np.exp x.sum(axis) ..."
    )
    return failure(NotYetFunction, f"np.{name} cannot be traced yet", fix=advice)


# ---- other functions ----


def _where(condition: Any, x: Any = MISSING, y: Any = MISSING) -> Any:
    if x is MISSING or y is MISSING:
        raise failure(
            TraceError,
            "np.where with one argument: the size of its result depends on the data",
            fix="use np.where(condition, a, b), or call it outside the compiled function",
        )
    return call_row("where", condition, x, y)


def _clip(
    a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, *,
    min: Any = None, max: Any = None, **kwargs: Any,
) -> Any:  # fmt: skip
    if kwargs:
        raise failure(NotYet, f"clip: the keyword {next(iter(kwargs))}= is not supported yet")
    lo, hi = (a_min if min is None else min), (a_max if max is None else max)
    if out is not None:
        return update_in_place(out, "clip", lambda: _clip(a, lo, hi))
    session = session_of([v for v in (a, lo, hi) if v is not None])
    return Tracer(session, clip(session, views.as_array(session, a).node, lo, hi))


def _round(a: Any, decimals: Any = 0, out: Any = None) -> Any:
    reductions.refuse_out("round", out)
    digits = views.whole(decimals, "decimals", "pass an int")
    kind = a.dtype.kind
    if kind in "iu":
        if digits < 0:
            raise failure(
                NotYet,
                "round of integers to tens and hundreds is not supported yet",
                fix="write (x + 5) // 10 * 10 with the rounding that you want",
            )
        return copy(a)
    if digits == 0 or kind == "b":
        return call_row("rint", a)
    if kind == "c":
        return parts.by_parts(lambda part: _round(part, digits), a)
    scale = constant(a.session, 10.0 ** abs(digits), a.dtype)
    ahead, back = ("multiply", "divide") if digits > 0 else ("divide", "multiply")
    factor = Tracer(a.session, scale)
    return call_row(back, call_row("rint", call_row(ahead, a, factor)), factor)


def astype(x: Any, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True,
           copy: bool = True, device: Any = None) -> Any:  # fmt: skip
    """ndarray.astype."""
    del order, subok, device
    wanted = as_dtype(dtype)
    if not np.can_cast(x.dtype, wanted, casting):  # type: ignore[arg-type]
        raise failure(
            TraceError,
            f"Cannot cast array data from {x.dtype!r} to {wanted!r} "
            f"according to the rule {casting!r}",
        )
    if not copy and wanted == x.dtype:
        return x
    return Tracer(x.session, cast(x.session, x.node, wanted))


def copy(a: Any, order: str = "K", subok: bool = False) -> Any:
    """np.copy: a value of its own, for in-place updates."""
    del order, subok
    a.session.check_open()
    return Tracer(a.session, a.node)


def _like(value: Any) -> Callable[..., Any]:
    def fill(a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None,
             *, device: Any = None) -> Any:  # fmt: skip
        return _full_like(a, value, dtype, order, subok, shape, device=device)

    return fill


def _full_like(a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: bool = True,
               shape: Any = None, *, device: Any = None) -> Any:  # fmt: skip
    del order, subok, device
    session = session_of([v for v in (a, fill_value) if isinstance(v, (ArrayValue, HostValue))])
    a = views.as_array(session, a)
    wanted = a.dtype if dtype is None else as_dtype(dtype)
    value = operand(session, fill_value)
    if isinstance(value, complex) and wanted.kind not in "bc":
        value = value.real
    if isinstance(value, Node):
        node = cast(session, value, wanted)
    elif not isinstance(value, int) and wanted.kind in "iu":
        with np.errstate(all="ignore"):
            node = session.make(p.Constant(np.float64(value.real).astype(wanted)))
    else:
        node = constant(session, value, wanted)
    target = a.node.shape if shape is None else views.extents(session, shape)
    views.check_fits(node, target)
    if node.shape == target:
        return Tracer(session, node)
    return Tracer(session, session.make(BROADCAST, node, *target))


def _shape(a: Any) -> Any:
    return a.shape if isinstance(a, Tracer) else ()


def _ndim(a: Any) -> int:
    return a.node.rank if isinstance(a, ArrayValue) else 0


def _size(a: Any, axis: Any = None) -> Any:
    if not isinstance(a, ArrayValue):
        return 1
    return a.size if axis is None else a.shape[views.one_axis(axis, a.node.rank)]  # type: ignore[attr-defined]


def _matrix_transpose(x: Any) -> Any:
    return views.swapaxes(x, -1, -2)


def _astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    del device
    return astype(x, dtype, copy=copy)


def _device(x: Any) -> str:
    del x
    return "cpu"


def _result_type(*values: Any) -> DT:
    weak: dict[Any, Any] = {int: 0, float: 0.0}  # complex scalars are static, and so themselves
    known: list[Any] = []
    for value in values:
        if isinstance(value, (ArrayValue, HostValue)):
            dtype = value.node.dtype
            known.append(weak.get(dtype, dtype))
        else:
            known.append(value)
    return np.result_type(*known)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **reductions.FUNCTIONS,
    **parts.FUNCTIONS,
    np.where: _where,
    np.clip: _clip,
    np.sinc: partial(call_row, "sinc"),
    np.round: _round,
    np.around: _round,
    np.transpose: views.transpose,
    np.permute_dims: views.transpose,
    np.matrix_transpose: _matrix_transpose,
    np.swapaxes: views.swapaxes,
    np.moveaxis: views.moveaxis,
    np.expand_dims: views.expand_dims,
    np.squeeze: views.squeeze,
    np.broadcast_to: views.broadcast_to,
    np.broadcast_arrays: views.broadcast_arrays,
    np.shape: _shape,
    np.ndim: _ndim,
    np.size: _size,
    np.copy: copy,
    np.astype: _astype,
    np.zeros_like: _like(0),
    np.ones_like: _like(1),
    np.empty_like: _like(0),
    np.full_like: _full_like,
    np.result_type: _result_type,
}
_ANY_ARGUMENT = {
    np.where, np.clip, np.broadcast_to, np.broadcast_arrays, np.full_like, np.shape, np.ndim,
    np.size, np.result_type,
}  # fmt: skip


def call_function(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`__array_function__`."""
    rule = FUNCTIONS.get(func)
    if rule is None:
        home = func.__module__.removeprefix("numpy").lstrip(".")  # such as linalg
        raise _unknown(f"{home}.{func.__name__}".lstrip("."))
    if func not in _ANY_ARGUMENT and args and not isinstance(args[0], ArrayValue):
        args = (views.as_array(session_of(_traced(args, kwargs)), args[0]), *args[1:])
    return _call_rule(f"np.{func.__name__}", rule, *args, **kwargs)


_TORCH_KEYWORDS = {"dim": "axis", "keepdim": "keepdims"}


# Parameters that decide what a program does, so that tracing needs their values.
_FIXED = frozenset({"axis", "axes", "axis1", "axis2", "source", "destination", "decimals"})


def _require_fixed(
    name: str, rule: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Refuse a value that only a run has where the trace needs it.

    Raises:
        TraceError: names the function, its parameter and what to make static.
    """
    given = {**dict(zip(rule.__code__.co_varnames, args, strict=False)), **kwargs}
    for parameter in _FIXED & set(given):
        value, what = given[parameter], f"{parameter}= of {name}"
        if isinstance(value, ArrayValue):
            raise failure(
                TraceError,
                f"{what} is an array, whose value is known only when the compiled function runs",
                fix=MAKE_STATIC,
            )
        if isinstance(value, HostValue) and value.session.scalars(value.node):
            raise value.session.scalar_failure(value.node, f"{what} needs the value of")


def _call_rule(name: str, rule: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a rule; arguments that do not fit its parameters are an error about `name`.

    Raises:
        TraceError: names what the user called, where Python would name the rule.
    """
    if any(isinstance(v, (ArrayValue, HostValue)) for v in (*args[1:], *kwargs.values())):
        _require_fixed(name, rule, args, kwargs)
    try:
        return rule(*args, **kwargs)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # from within the rule
        text = str(error).partition("() ")[2] or str(error)
    meant = [f"{_TORCH_KEYWORDS[k]}= for {k}=" for k in kwargs if k in _TORCH_KEYWORDS]
    raise failure(
        TraceError,
        f"{name}() {text}",
        fix=f"write {', '.join(meant)}" if meant else "leave out what is not supported yet",
    )


def _traced(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    return [v for v in (*args, *kwargs.values()) if isinstance(v, (ArrayValue, HostValue))]


# ---- methods and attributes ----


def _reshape(x: Any, *shape: Any, order: str = "C", copy: Any = None) -> Any:
    del order, copy
    given = views.items(shape[0]) if len(shape) == 1 else shape
    if views.extents(x.session, tuple(0 if _is_minus_one(n) else n for n in given)) == x.node.shape:
        return views.expanded(x, ())
    raise failure(NotYet, "reshape is not supported yet", fix=WRITE_INSTEAD["reshape"])


def _is_minus_one(extent: Any) -> bool:
    return type(extent) is int and extent == -1


def _ravel(x: Any, order: str = "C") -> Any:
    del order
    if x.ndim == 1:
        return views.expanded(x, ())
    raise failure(NotYet, "ravel and flatten are not supported yet", fix=WRITE_INSTEAD["reshape"])


def _flatten(x: Any, order: str = "C") -> Any:
    return copy(_ravel(x, order))


def _clip_method(x: Any, min: Any = None, max: Any = None, out: Any = None, **kwargs: Any) -> Any:
    return _clip(x, min, max, out, **kwargs)


METHODS: dict[str, Callable[..., Any]] = {
    **reductions.METHODS,
    **parts.METHODS,
    "clip": _clip_method,
    "round": _round,
    "astype": astype,
    "copy": copy,
    "transpose": views.transpose_method,
    "swapaxes": views.swapaxes,
    "squeeze": views.squeeze,
    "reshape": _reshape,
    "ravel": _ravel,
    "flatten": _flatten,
}
ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "T": views.transpose,
    "mT": _matrix_transpose,
    **parts.ATTRIBUTES,
    "device": _device,
}


def attribute(x: Any, name: str) -> Any:
    """A method or attribute of a traced array.

    Raises:
        MissingAttribute: with the supported spelling.
    """
    method = METHODS.get(name)
    if method is not None:
        return partial(_call_rule, f"x.{name}", method, x)
    known = ATTRIBUTES.get(name)
    if known is not None:
        return known(x)
    if name.startswith("__"):
        raise AttributeError(name)
    _missing(name)


def _missing(name: str) -> NoReturn:
    import difflib

    advice = NO_ATTRIBUTE.get(name) or WRITE_INSTEAD.get(name)
    if advice is None and getattr(np, name, None) in {*BY_UFUNC, *FUNCTIONS}:
        advice = f"write np.{name}(x)"
    if advice is None:
        known = [*METHODS, *ATTRIBUTES, "shape", "dtype", "ndim", "size"]
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.75)
        advice = f"did you mean {', '.join(near)}?" if near else "use operators and NumPy functions"
    raise failure(MissingAttribute, f"x.{name} of a traced array cannot be traced yet", fix=advice)
