"""Elementwise calls: a row and what the user passed in, a node over NumPy's casts of it out."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any
from typing import cast as as_type

import numpy as np

from opkiln.ops import dtypes
from opkiln.ops import primitives as p
from opkiln.ops.defs import OpRow
from opkiln.ops.dtypes import is_half, kind_of, part_of
from opkiln.ops.table import ELEMENTWISE
from opkiln.runtime import interop
from opkiln.runtime.errors import (
    CallError,
    HostRangeError,
    IntegerPowerError,
    NotYet,
    TraceError,
)
from opkiln.runtime.graph import Node, host_const
from opkiln.runtime.reference import scalar
from opkiln.runtime.trace.session import (
    ArrayValue,
    HostValue,
    Session,
    failure,
    is_a,
    require_dtype,
)

DT = np.dtype[Any]
Number = int | float | complex
Operand = Node | Number  # an array node, a host node (weak), or a number in the source (weak)

BOOL = np.dtype(np.bool_)
INT64, UINT64 = np.dtype(np.int64), np.dtype(np.uint64)
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_STRONG: dict[Any, DT] = {int: INT64, float: FLOAT64, complex: np.dtype(np.complex128)}

_OPS = {name: p.Elementwise(name) for name in ELEMENTWISE}
BROADCAST = p.BroadcastTo()
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
}
_OF_INTEGERS = {"isnan": False, "isinf": False, "isfinite": True}
_OWN_INTEGERS = ("floor", "ceil", "trunc")  # an integer is its own floor


def session_of(values: tuple[Any, ...] | list[Any]) -> Session:
    """The one trace that the traced values among `values` belong to.

    Raises:
        TraceError: it has ended, or two traces meet.
    """
    session: Session | None = None
    for value in values:
        if isinstance(value, (ArrayValue, HostValue)):
            if session is None:
                session = value.session
                session.check_open()
            elif session is not value.session:
                raise failure(
                    TraceError,
                    f"values of two traces meet: {session.name} and {value.session.name}",
                    fix="pass the value to the inner function as an argument",
                )
    assert session is not None
    return session


def as_dtype(dtype: Any) -> DT:
    """A dtype argument, refused when opkiln does not compute in it."""
    try:
        found = dtypes.as_dtype(dtype)
    except TypeError as error:
        raise failure(TraceError, str(error), fix="pass a dtype such as np.float32") from None
    require_dtype(found, "dtype argument")
    native: DT = found.newbyteorder("=")
    return native


def may_cast(source: DT, target: DT, casting: Any) -> bool:
    """np.can_cast.

    Raises:
        CallError: NumPy knows no such rule.
    """
    try:
        return np.can_cast(source, target, casting)
    except ValueError as error:
        raise failure(CallError, str(error)) from None


@lru_cache(maxsize=512)
def cast_op(dtype: DT) -> p.Cast:
    """The op, made once per dtype."""
    return p.Cast(dtype)


@lru_cache(maxsize=512)
def _from_host_op(dtype: DT, mode: str) -> p.FromHost:
    return p.FromHost(dtype, mode)


@lru_cache(maxsize=4096)
def _constant_op(value: int | tuple[str, ...], dtype: DT, mode: str) -> p.Constant:
    if isinstance(value, tuple):
        parts = [float.fromhex(text) for text in value]
        number: Number = complex(*parts) if len(parts) == 2 else parts[0]
    else:
        number = value
    if dtype == BOOL:
        return p.Constant(np.bool_(number))
    return p.Constant(scalar(number, dtype, mode))


def _bits(value: Number) -> int | tuple[str, ...]:
    """A number so that 1 differs from 1.0 and -0.0 from 0.0."""
    if isinstance(value, int):
        return value
    parts = (value.real, value.imag) if isinstance(value, complex) else (value,)
    return tuple([part.hex() for part in parts])


def constant(session: Session, value: Number, dtype: DT, mode: str = "check") -> Node:
    """A number of the source as a 0-d value of `dtype`, by NumPy's range rule."""
    try:
        op = _constant_op(_bits(value), dtype, mode)
    except OverflowError as error:
        raise failure(HostRangeError, str(error)) from None
    return session.make(op)


def operand(session: Session, value: Any) -> Operand:
    """What one argument of a NumPy call is: a node, or a number that stays weak.

    Raises:
        TraceError, UnsupportedDType: it is nothing that can be computed with.
    """
    if isinstance(value, (ArrayValue, HostValue)):
        return value.node
    kind = as_type("Any", type(value))
    if kind is float or kind is int or kind is complex:
        return value  # type: ignore[no-any-return]
    if isinstance(value, Node):
        return value
    if is_a(value, np.generic):
        require_dtype(value.dtype, "NumPy scalar")
        if value.dtype.kind in "mM":
            from opkiln.runtime.trace import times

            return times.constant(session, value)
        return session.make(p.Constant(value))
    if isinstance(value, bool):
        return session.make(p.Constant(np.bool_(value)))
    if isinstance(value, np.ndarray):
        if kind is np.memmap:
            return session.capture(np.asarray(as_type("Any", value)), owner=value)
        if kind is not np.ndarray:
            raise failure(
                TraceError,
                f"captured array: expected numpy.ndarray, got the subclass {kind.__name__}",
                fix="pass a plain array, for example np.asarray(a)",
            )
        return session.capture(value)
    for base in (int, float, complex):
        if isinstance(value, base):  # of a subclass
            return base(value)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    if is_a(value, list, tuple):
        _refuse_scalars(session, value)
        return session.capture_list(value)
    if interop.offers_memory(value):
        return session.capture_foreign(value)
    raise failure(
        TraceError,
        f"cannot compute with a {kind.__name__}: expected an array or a number, got {value!r:.60}",
        fix="convert it before the call, or pass it as an argument",
    )


def _refuse_scalars(session: Session, value: Any) -> None:
    """Refuse a list as an array if it holds scalar arguments, as one passed to the function does.

    Raises:
        TraceError: names the parameter.
    """
    depth, first, kind = 0, value, as_type("Any", type(value)).__name__
    while is_a(first, list, tuple) and first:
        depth, first = depth + 1, first[0]
    if not isinstance(first, HostValue):
        return
    found = session.scalars(first.node)
    if not found:
        return
    path = session.labels[found[0]][1]
    whole = path.rsplit("[", depth)[0] if isinstance(first.node.op, p.HostArg) else path
    if whole == path:
        raise failure(
            TraceError,
            f"a {kind} used as an array holds the scalar argument {path}, whose value is not fixed "
            f"while tracing",
            fix=f"build the array outside and pass it, or {session.static_advice(found)}",
        )
    raise failure(
        TraceError,
        f"{whole} is used as an array, but it was passed as a {kind} of numbers, and each of them "
        f"is a scalar argument of its own",
        fix=f"pass np.asarray({whole}) in its place",
    )


def elementwise_operand(session: Session, value: Any) -> Node:
    """A value as a strong array node, as np.asarray makes it."""
    known = operand(session, value)
    if not isinstance(known, Node):
        big = isinstance(known, int) and known >= 2**63
        return constant(session, known, UINT64 if big else _STRONG[type(known)])
    if known.dtype is int or known.dtype is float:
        wide = UINT64 if is_big(known) else INT64
        return cast(session, known, FLOAT64 if known.dtype is float else wide)
    return known


def is_weak(value: Operand) -> bool:
    """Whether the value takes the dtype of what it meets."""
    return not isinstance(value, Node) or value.dtype is int or value.dtype is float


def is_big(value: Operand) -> bool:
    """Whether it is a run-time int above int64."""
    return isinstance(value, Node) and isinstance(value.op, p.HostArg) and value.op.kind == "u"


def cast(session: Session, value: Operand, dtype: DT, mode: str = "check") -> Node:
    """The operand as a node of `dtype`.

    Raises:
        TraceError: an int above int64 as bfloat16, which ml_dtypes refuses.
    """
    if dtype.kind == "V" and (
        is_big(value) or (isinstance(value, int) and not -(2**63) <= value < 2**63)
    ):
        raise failure(
            TraceError,
            f"Python integer out of bounds for {dtype.name}: expected one that fits int64",
            fix="pass a float",
        )
    if dtype.kind in "mM" and is_weak(value):
        value = cast(session, value, INT64)
    if not isinstance(value, Node):
        return constant(session, value, dtype, mode)
    have = value.dtype
    if have is dtype:
        return value
    if have is int or have is float:
        if dtype == BOOL or (have is float and dtype.kind in "iu") or is_half(dtype):
            # By truth value, so nothing may be cut off first; or cut off or rounded by an ordinary
            # cast.
            wide = FLOAT64 if have is float else UINT64 if is_big(value) else INT64
            return session.make(cast_op(dtype), session.make(_from_host_op(wide, "check"), value))
        if dtype.kind == "c":
            part = session.make(_from_host_op(part_of(dtype), mode), value)
            return session.make(cast_op(dtype), part)
        return session.make(_from_host_op(dtype, mode), value)
    if have == dtype:
        return value
    if have.kind in "mM" or dtype.kind in "mM":
        from opkiln.runtime.trace import times

        return times.cast(session, value, dtype)
    return session.make(cast_op(dtype), value)


def result_type(*values: Any) -> DT:
    """np.result_type, of traced values too."""
    weak: dict[Any, Any] = {int: 0, float: 0.0}
    known: list[Any] = []
    for value in values:
        if isinstance(value, (ArrayValue, HostValue)):
            dtype = value.node.dtype
            known.append(weak.get(dtype, dtype))
        else:
            known.append(value)
    return np.result_type(*known)


_SIGNATURES: dict[Any, tuple[tuple[DT, ...], DT]] = {}


def signature(row: OpRow, operands: list[Operand]) -> tuple[tuple[DT, ...], DT]:
    """The dtypes to cast to and the result's, as NumPy's resolver gives them.

    Raises:
        TraceError: NumPy has no loop for these operands.
        UnsupportedDType: NumPy's answer is a dtype that opkiln lacks.
    """
    types = tuple([o.dtype if isinstance(o, Node) else type(o) for o in operands])
    if all(
        isinstance(t, type) for t in types
    ):  # weak values alone are what np.asarray makes of them
        types = tuple([_STRONG[t] for t in types])
    key = (row.name, types)
    known = _SIGNATURES.get(key)
    if known is not None:
        return known
    try:
        found = row.signature(row, types)
    except TypeError as error:
        raise failure(TraceError, str(error)) from None
    for result in (*found[0], found[1]):
        require_dtype(result, f"np.{row.name}")
    _SIGNATURES[key] = found
    return found


def elementwise(session: Session, row: OpRow, values: tuple[Any, ...]) -> Node:
    """The node of `row` over what the user passed."""
    operands = [operand(session, v) for v in values]
    if any(isinstance(o, Node) and not is_weak(o) and o.dtype.kind in "mM" for o in operands):
        from opkiln.runtime.trace import times  # which writes them over the rows here

        return times.elementwise(session, row, operands)
    special = _SPECIAL.get(row.name)
    if special is not None:
        return special(session, row, operands)
    return plain(session, row, operands)


def plain(session: Session, row: OpRow, operands: list[Operand], mode: str = "check") -> Node:
    """Operands cast to the signature, then the row; `mode` holds for weak operands."""
    wanted, _ = signature(row, operands)
    if kind_of(wanted[0]) not in row.accepts and row.name != "where":
        return _without_body(session, row, operands, wanted)
    src = [cast(session, o, d, mode) for o, d in zip(operands, wanted, strict=True)]
    return session.make(_OPS[row.name], *src)


def _without_body(
    session: Session, row: OpRow, operands: list[Operand], wanted: tuple[DT, ...]
) -> Node:
    """Calls that NumPy answers for dtypes the row has no body for."""
    if row.name in _OWN_INTEGERS:
        return cast(session, operands[0], wanted[0])
    if row.name in _OF_INTEGERS:
        return filled(session, np.bool_(_OF_INTEGERS[row.name]), operands[0])
    if row.name == "clip":
        x, low, high = (cast(session, o, d) for o, d in zip(operands, wanted, strict=True))
        return session.make(_OPS["minimum"], session.make(_OPS["maximum"], x, low), high)
    raise failure(
        NotYet,
        f"np.{row.name} of {wanted[0].name} is not supported yet",
        fix="convert the operand first, for example with x.astype(np.float32)",
    )


def filled(session: Session, value: Any, like: Operand) -> Node:
    """`value` in the shape of `like`."""
    node = as_type("Node", operand(session, value))
    if isinstance(like, Node) and like.shape:
        return session.make(BROADCAST, node, *like.shape)
    return node


# ---- rows whose weak operands follow a rule of their own ----


def _compare(session: Session, row: OpRow, operands: list[Operand]) -> Node:
    """Integers compare by value, however large the Python int is."""
    wanted, _ = signature(row, operands)
    if wanted[0].kind not in "iu" or wanted[1].kind not in "iu":
        return plain(session, row, operands)
    for i, value in enumerate(operands):
        other = operands[1 - i]
        if not is_weak(value):
            continue
        if not isinstance(value, Node):
            info = np.iinfo(wanted[1 - i])
            assert isinstance(value, int)
            if not info.min <= value <= info.max and not is_big(other):
                pair = (info.min, value) if i == 1 else (value, info.min)
                return filled(session, np.bool_(_COMPARE[row.name](*pair)), other)
            if is_big(other):  # then the number's own width decides
                operands[i] = constant(session, value, INT64 if value < 0 else UINT64, "saturate")
        else:
            operands[i] = session.make(
                _from_host_op(UINT64 if is_big(value) else INT64, "check"), value
            )
    return plain(session, row, operands)


@cache
def _where_mode() -> str:
    """What np.where does with a Python int out of range: NumPy 2.4 wraps it, 2.5 refuses it."""
    try:
        np.where(np.array([True]), np.array([0], np.uint8), 256)
    except OverflowError:
        return "check"
    return "wrap"


def _where(session: Session, row: OpRow, operands: list[Operand]) -> Node:
    """np.where has a rule of its own for numbers out of range; the installed NumPy decides."""
    wanted, _ = signature(row, operands)
    for value, dtype in zip(operands[1:], wanted[1:], strict=True):
        if isinstance(value, int) and dtype.kind in "iu" and not -(2**63) <= value < 2**64:
            raise failure(HostRangeError, f"Python integer {value} out of bounds for {dtype.name}")
    return plain(session, row, operands, _where_mode())


def clip(session: Session, x: Node, low: Any, high: Any) -> Node:
    """np.clip of an array: a Python int at or beyond the end of the array's range bounds nothing.

    Raises:
        HostRangeError: a bound beyond the other end, or one that the result's dtype cannot hold.
    """
    lo = None if low is None else _bound(session, x.dtype, operand(session, low), "max")
    hi = None if high is None else _bound(session, x.dtype, operand(session, high), "min")
    if lo is not None and hi is not None:
        return elementwise(session, ELEMENTWISE["clip"], (x, lo, hi))
    if lo is None and hi is None:
        return x
    row, bound = ("minimum", hi) if lo is None else ("maximum", lo)
    assert bound is not None
    return elementwise(session, ELEMENTWISE[row], (x, bound))


def _bound(session: Session, dtype: DT, bound: Operand, fn: str) -> Operand | None:
    """A bound of np.clip moved to the end of the dtype's range, or None if it bounds nothing."""
    if dtype.kind not in "iu":
        return bound
    end = int(np.iinfo(dtype).min if fn == "max" else np.iinfo(dtype).max)
    if isinstance(bound, int):
        return None if (bound <= end if fn == "max" else bound >= end) else bound
    if not isinstance(bound, Node) or bound.dtype is not int:
        return bound
    if is_big(bound):
        return None if fn == "min" and dtype != UINT64 else bound
    if end in (-(2**63), 2**63 - 1, 2**64 - 1):  # no run-time int lies beyond it
        return bound
    return session.make(p.HostOp(fn), bound, host_const(end))


def _literal(value: Operand) -> Number | None:
    """The number that an operand is known to be while tracing."""
    if not isinstance(value, Node):
        return value
    if isinstance(value.op, p.Constant):
        return value.op.value.item()  # type: ignore[no-any-return]
    return None


def _product(session: Session, base: Node, exponent: int) -> Node:
    """The product, by repeated squaring; the exponent is at least 1."""
    multiply, result, square = _OPS["multiply"], None, base
    while True:
        if exponent & 1:
            result = square if result is None else session.make(multiply, result, square)
        exponent >>= 1
        if not exponent:
            assert result is not None
            return result
        square = session.make(multiply, square, square)


def power(session: Session, base: Operand, exponent: Operand, *, by_operator: bool) -> Node:
    """`base ** exponent`. Known exponents take NumPy's fast paths, and small ones become products.

    np.power, unlike the operator, does not take sqrt for 0.5: they differ at -0.0 and -inf.
    """
    row = ELEMENTWISE["power"]
    number: Any = _literal(exponent)
    if (
        by_operator
        and number == 2
        and type(exponent) is int
        and getattr(base, "dtype", None) == BOOL
    ):
        return plain(session, ELEMENTWISE["square"], [base])  # so NumPy's b ** 2 is int8, not int64
    (dtype, _), _ = signature(row, [base, exponent])
    if number is None:
        return plain(session, row, [base, exponent])
    x, power_of = cast(session, base, dtype), cast(session, exponent, dtype)
    if number == 0:
        return filled(session, dtype.type(1), x)
    if kind_of(dtype) == "f":
        fast = {-1: "reciprocal", 2: "square"} | ({0.5: "sqrt"} if by_operator else {})
        if number == 1:
            return x
        if number in fast:
            return session.make(_OPS[fast[number]], x)
        if number in (3, 4):  # of a half rounded once, as np.power rounds it
            wide = cast(session, x, FLOAT32) if is_half(dtype) else x
            return cast(session, _product(session, wide, int(number)), dtype)
    elif dtype.kind == "c":
        found = _complex_power(session, x, number, by_operator=by_operator)
        if found is not None:
            return found
    elif number < 0:
        raise failure(
            IntegerPowerError,
            "Integers to negative integer powers are not allowed.",
            fix="make the base or the exponent a float, for example x ** -1.0",
        )
    elif number <= 64:  # wrap-around products are exact whatever their order
        return _product(session, x, int(number))
    return session.make(_OPS["power"], x, power_of)


def _complex_power(session: Session, x: Node, number: Any, *, by_operator: bool) -> Node | None:
    """The power of a complex value to a number, where no logarithm is needed for it."""
    fast = {-1: "reciprocal", 0.5: "sqrt"}
    if by_operator and number in fast:
        return session.make(_OPS[fast[number]], x)
    if number.imag or number.real not in range(1, 100):
        return None
    if number == 2:
        return session.make(_OPS["square"], x)
    if number == 1:  # NumPy's power of any zero is +0 + 0j
        zero = session.make(p.Constant(x.dtype.type(0)))
        return session.make(_OPS["where"], session.make(_OPS["equal"], x, zero), zero, x)
    return _product(session, x, int(number.real))


_SPECIAL: dict[str, Callable[[Session, OpRow, list[Operand]], Node]] = {
    **dict.fromkeys(_COMPARE, _compare),
    "where": _where,
    "power": lambda session, row, operands: power(session, *operands, by_operator=False),
}
