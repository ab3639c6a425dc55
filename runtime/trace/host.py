"""Symbolic numbers: sizes and scalar arguments, on which Python's arithmetic stays on the host."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from opkiln.ops import primitives as p
from opkiln.runtime.errors import (
    HostRangeError,
    MissingAttribute,
    NotYetScalar,
    TraceError,
)
from opkiln.runtime.graph import Node, const_value, host_const, size_text
from opkiln.runtime.trace.promote import is_big, session_of
from opkiln.runtime.trace.session import ArrayValue, HostValue, Session, failure, is_a
from opkiln.runtime.trace.tracer import CHOOSE, IF, INDEX, Operators, call_row, wrap


def _is_number(value: Any) -> bool:
    """Python's own numbers: they keep arithmetic with symbolic numbers on the host."""
    return isinstance(value, (int, float)) and not isinstance(value, (np.generic, HostValue))


_MAKES_ARRAY = "np.asarray, np.full, np.arange or another function that makes a real array of"


class HostTracer(Operators, HostValue):
    """A size or a weak scalar. Python arithmetic keeps it so; a NumPy function makes an array.

    Asking for the value of a size (int, index, range, ==, if) pins it: the trace holds for it.
    """

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """So that `isinstance(k, int)` takes the branch that it takes without tracing."""
        return self.node.dtype

    @property
    def is_size(self) -> bool:
        return not self.session.scalars(self.node)

    def pinned(self, what: str = "the value of", fix: str = "") -> int | float:
        """The value now; `what` and `fix` are for the error about a scalar argument."""
        self.session.check_open()
        return self.session.pin(self.node, what, fix)

    @property
    def label(self) -> str:
        """The argument's own name, to show in advice."""
        op = self.node.op
        return self.session.labels[op.index][1] if isinstance(op, p.HostArg) else "..."

    def _unless(self, kind: type, call: str, fix: str) -> str:
        """`fix`, or the advice to leave the conversion out where it does nothing."""
        if self.node.dtype is not kind:
            return fix
        return f"leave {call} out, since {self.label} is of type {kind.__name__} already"

    def __int__(self) -> int:
        fix = self._unless(int, "int()", f"write np.trunc({self.label})")
        return int(self.pinned("int() of", fix))

    def __index__(self) -> int:
        if self.node.dtype is float:
            raise failure(
                TraceError, "a float cannot be interpreted as an integer", fix="use // instead of /"
            )
        return int(self.pinned(f"{INDEX} the value of"))

    def __float__(self) -> float:
        fix = self._unless(float, "float()", f"write 1.0 * {self.label}")
        return float(
            self.pinned("float(), or a function of math, of", f"{fix} (and np.sqrt for math.sqrt)")
        )

    def __bool__(self) -> bool:
        return bool(self.pinned(IF, CHOOSE))

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self.pinned("a look-up in a dict or set by"))

    def __round__(self, digits: int | None = None) -> Any:
        fix = f"np.rint({self.label})" if digits is None else f"np.round({self.label}, {digits})"
        return round(
            self.pinned("round() of", self._unless(int, "round()", f"write {fix}")), digits
        )

    def __trunc__(self) -> int:
        return math.trunc(self.pinned("trunc() of", f"write np.trunc({self.label})"))

    def __floor__(self) -> int:
        return math.floor(self.pinned("floor() of", f"write np.floor({self.label})"))

    def __ceil__(self) -> int:
        return math.ceil(self.pinned("ceil() of", f"write np.ceil({self.label})"))

    def __str__(self) -> str:
        """The number of a size; a description of a scalar argument, so that it can be printed."""
        return str(self.pinned()) if self.is_size else repr(self)

    def __format__(self, spec: str) -> str:
        return format(self.pinned("formatting of"), spec) if spec else str(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        fix = (
            f"leave np.asarray out, since NumPy functions take the number (and write "
            f"np.full_like(x, {self.label}) for np.full)"
        )
        if self.label.endswith("]"):
            whole = self.label.split("[", maxsplit=1)[0]
            fix = f"pass np.asarray({whole}) as the argument in place of the list"
        return np.asarray(self.pinned(_MAKES_ARRAY, fix), dtype)

    def __getattr__(self, name: str) -> Any:
        """What Python's own numbers have; nothing of an array.

        Raises:
            MissingAttribute: the attribute needs the value, or numbers do not have it.
        """
        kind: type[int] | type[float] = self.node.dtype
        if name in ("real", "imag", "denominator") and hasattr(kind, name):
            return {"real": self, "denominator": 1}.get(name, kind(0))
        if name == "conjugate":
            return lambda: self
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(kind, name):
            if self.is_size:
                return getattr(self.pinned(), name)
            raise self.session.scalar_failure(self.node, f".{name} of", cls=MissingAttribute)
        found = self.session.scalars(self.node)
        what = "a size" if not found else " and ".join(self.session.labels[i][1] for i in found)
        made = "" if not found or isinstance(self.node.op, p.HostArg) else "a value made from "
        advice = "pass a NumPy array or scalar for it" if found else "use the array it comes from"
        raise failure(
            MissingAttribute,
            f"{made}{what} is a Python {kind.__name__}, which has no attribute {name!r}",
            fix=f"{advice}, such as np.{kind.__name__}64(...)" if found else advice,
        )

    def __repr__(self) -> str:
        return (
            f"<size {size_text(self.node)}>" if self.is_size else f"<scalar {size_text(self.node)}>"
        )

    def __neg__(self) -> Any:
        return _host(self.session, "neg", self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return _host(self.session, "abs", self)

    def __invert__(self) -> Any:
        if self.node.dtype is float:
            raise failure(
                TraceError,
                f"bad operand type for unary ~: {self.label} is a float",
                fix="use ~ on integers, and np.logical_not for truth values",
            )
        return -1 - self


_HOST_FN = {
    "add": ("add", "add"), "sub": ("subtract", "sub"), "mul": ("multiply", "mul"),
    "truediv": ("divide", "truediv"), "floordiv": ("floor_divide", "floordiv"),
    "mod": ("remainder", "mod"),
}  # fmt: skip


def _host_operand(session: Session, value: Any, *, as_float: bool) -> Node:
    if isinstance(value, HostValue):
        node = value.node
        if is_big(node) and not as_float:
            raise failure(
                HostRangeError,
                "scalar arithmetic is checked int64, and this argument is above int64",
                fix="pass it as a float, or as np.uint64(value)",
            )
        return node
    return host_const(float(value) if as_float else value)


def _host(session: Session, fn: str, *values: Any) -> Any:
    """A host op over symbolic numbers and Python's own."""
    session = session_of(values)
    as_float = fn == "truediv" or any(
        (v.node.dtype if isinstance(v, HostValue) else type(v)) is float for v in values
    )
    try:
        src = [
            _host_operand(session, int(v) if isinstance(v, bool) else v, as_float=as_float)
            for v in values
        ]
    except OverflowError as error:
        raise failure(HostRangeError, str(error)) from None
    if not as_float:
        for node in src:
            known = const_value(node)
            if known is not None and not -(2**63) <= known < 2**63:
                raise failure(HostRangeError, f"scalar arithmetic is checked int64, got {known}")
    return wrap(session, session.make(p.HostOp(fn), *src))


# Python's operator for a row.
_OPERATOR = {row: name for name, (row, _) in _HOST_FN.items()} | {"power": "pow"}


def _with_other(row: str, left: Any, right: Any) -> Any:
    """A row of a symbolic number and something that is no Python number: what Python makes of it.

    Raises:
        TraceError: a sequence, which is an array for NumPy's functions but not for operators.
    """
    number, other = (left, right) if isinstance(left, HostTracer) else (right, left)
    if other.__class__ is complex and row in _OPERATOR:
        fix = "multiply or add the array first, or pass np.asarray(...) of the number"
        known = number.pinned("arithmetic with a complex number and", fix)
        operation = getattr(operator, _OPERATOR[row])
        return operation(*(known if v is number else v for v in (left, right)))
    if not is_a(other, list, tuple, str, bytes, bytearray, dict, set):
        return call_row(row, left, right)
    if row == "multiply" and number.node.dtype is int and not is_a(other, dict, set):
        return number.pinned("repetition of a list, tuple or text by") * other
    kinds = [number.node.dtype if v is number else v.__class__ for v in (left, right)]
    raise failure(
        TraceError,
        f"unsupported operand types for {row}: {kinds[0].__name__} and {kinds[1].__name__}",
        fix="write np.asarray(...) around numbers that are meant as an array",
    )


def _host_op(fn: str, row: str) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    def forward(self: Any, other: Any) -> Any:
        if isinstance(other, HostValue) or _is_number(other):
            return _host(self.session, fn, self, other)
        return _with_other(row, self, other)

    def reflected(self: Any, other: Any) -> Any:
        if isinstance(other, HostValue) or _is_number(other):
            return _host(self.session, fn, other, self)
        return _with_other(row, other, self)

    return forward, reflected


def _host_pow(self: Any, exponent: Any) -> Any:
    if isinstance(exponent, HostValue) or _is_number(exponent):
        if isinstance(exponent, int) and _is_number(exponent) and exponent < 0:
            exponent = float(exponent)  # Python's 2 ** -1 is a float
        return _host(self.session, "pow", self, exponent)
    if exponent.__class__ is complex:
        return _with_other("power", self, exponent)
    return Operators.__pow__(self, exponent)


def _host_rpow(self: Any, base: Any) -> Any:
    if _is_number(base):
        return _host(self.session, "pow", base, self)
    if base.__class__ is complex:
        return _with_other("power", base, self)
    return Operators.__rpow__(self, base)


def _concrete(value: Any) -> Any:
    return value.pinned() if isinstance(value, HostTracer) else value


def _host_bits(
    symbol: str, row: str, fn: Callable[[Any, Any], Any]
) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    def bits(left: Any, right: Any) -> Any:
        for value in (left, right):
            if not isinstance(value, HostTracer) and not _is_number(value):
                return _with_other(row, left, right)
        for value in (left, right):
            if isinstance(value, HostTracer) and not value.is_size:
                raise value.session.scalar_failure(
                    value.node, f"{symbol} on", "use // and %", cls=NotYetScalar
                )
        return fn(_concrete(left), _concrete(right))

    return bits, lambda self, other: bits(other, self)


def _host_compare(row: str, fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Of sizes Python's answer now, which pins them; of a scalar argument a 0-d array."""

    def compare(self: Any, other: Any) -> Any:
        if isinstance(other, (HostTracer, numbers.Number, np.generic)):
            sizes = self.is_size and (not isinstance(other, HostTracer) or other.is_size)
            return fn(self.pinned(), _concrete(other)) if sizes else call_row(row, self, other)
        if isinstance(other, ArrayValue) or hasattr(other, "__array__"):
            return call_row(row, self, other)
        if row not in ("equal", "not_equal") and other.__class__.__module__ == "builtins":
            kinds = f"{self.node.dtype.__name__} and {other.__class__.__name__}"
            raise failure(TraceError, f"{row} is not defined between {kinds}")
        return NotImplemented  # Python asks the other operand, and then for identity

    return compare


for _name, (_row, _fn) in _HOST_FN.items():
    _forward, _reflected = _host_op(_fn, _row)
    setattr(HostTracer, f"__{_name}__", _forward)
    setattr(HostTracer, f"__r{_name}__", _reflected)
HostTracer.__pow__ = _host_pow  # type: ignore[method-assign]
HostTracer.__rpow__ = _host_rpow  # type: ignore[method-assign]
for _name, _symbol, _row in (
    ("and", "&", "bitwise_and"), ("or", "|", "bitwise_or"), ("xor", "^", "bitwise_xor"),
    ("lshift", "<<", "left_shift"), ("rshift", ">>", "right_shift"),
):  # fmt: skip
    _forward, _reflected = _host_bits(_symbol, _row, getattr(operator, f"__{_name}__"))
    setattr(HostTracer, f"__{_name}__", _forward)
    setattr(HostTracer, f"__r{_name}__", _reflected)
for _name, _row in {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    "eq": "equal", "ne": "not_equal",
}.items():  # fmt: skip
    setattr(HostTracer, f"__{_name}__", _host_compare(_row, getattr(operator, _name)))
