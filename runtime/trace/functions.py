"""NumPy functions and methods on traced arrays, a table each; refusals say what to write."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.table import BY_UFUNC
from opkiln.runtime.errors import MissingAttribute, TraceError
from opkiln.runtime.graph import Node
from opkiln.runtime.trace import (
    combined,
    joining,
    linear,
    parts,
    reductions,
    reshaping,
    times,
    views,
)
from opkiln.runtime.trace.advice import NO_ATTRIBUTE, WRITE_INSTEAD
from opkiln.runtime.trace.composites import COMPOSITES
from opkiln.runtime.trace.promote import (
    BROADCAST,
    as_dtype,
    cast,
    may_cast,
    operand,
    result_type,
    session_of,
)
from opkiln.runtime.trace.session import ArrayValue, HostValue, failure
from opkiln.runtime.trace.tracer import MAKE_STATIC, Tracer, call_row
from opkiln.runtime.trace.ufuncs import unknown

MISSING = object()


def _sinc(x: Any) -> Any:
    if not parts.is_complex(x):
        return call_row("sinc", x)
    y = math.pi * np.where(x == 0, 1e-20, x)  # as NumPy; the row is one of real numbers
    return np.sin(y) / y


def _where(condition: Any, x: Any = MISSING, y: Any = MISSING) -> Any:
    if x is MISSING or y is MISSING:
        raise failure(
            TraceError,
            "np.where with one argument: the size of its result depends on the data",
            fix="use np.where(condition, a, b), or call it outside the compiled function",
        )
    return call_row("where", condition, x, y)


def astype(x: Any, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True,
           copy: bool = True, device: Any = None) -> Any:  # fmt: skip
    """ndarray.astype."""
    del order, subok, device
    wanted = times.with_unit(as_dtype(dtype), x.dtype)
    if not may_cast(x.dtype, wanted, casting):
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
        node = cast(session, value, wanted)
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


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **reductions.FUNCTIONS,
    **linear.FUNCTIONS,
    **parts.FUNCTIONS,
    **{c.numpy: c.rule for c in COMPOSITES},
    **reshaping.FUNCTIONS,
    **joining.FUNCTIONS,
    **combined.FUNCTIONS,
    np.where: _where,
    np.sinc: _sinc,
    np.transpose: views.transpose,
    np.permute_dims: views.transpose,
    np.matrix_transpose: _matrix_transpose,
    np.linalg.matrix_transpose: _matrix_transpose,
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
    np.result_type: result_type,
}
_ANY_ARGUMENT = {
    np.where, np.broadcast_to, np.broadcast_arrays, np.full_like, np.shape, np.ndim, np.size,
    np.result_type, *(c.numpy for c in COMPOSITES), *linear.FUNCTIONS, *joining.ANY_ARGUMENT,
    *combined.ANY_ARGUMENT, np.atleast_1d, np.atleast_2d, np.atleast_3d,
}  # fmt: skip


def call_function(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`__array_function__`."""
    rule = FUNCTIONS.get(func)
    if rule is None:
        home = func.__module__.removeprefix("numpy").lstrip(".")  # such as linalg
        raise unknown(f"{home}.{func.__name__}".lstrip("."))
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


METHODS: dict[str, Callable[..., Any]] = {
    **reductions.METHODS,
    **linear.METHODS,
    **parts.METHODS,
    **{c.method: c.rule for c in COMPOSITES if c.method},
    **reshaping.METHODS,
    "astype": astype,
    "copy": copy,
    "transpose": views.transpose_method,
    "swapaxes": views.swapaxes,
    "squeeze": views.squeeze,
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
