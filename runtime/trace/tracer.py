"""What a traced function sees: symbolic arrays and numbers that record what is done to them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.table import BY_UFUNC, ELEMENTWISE
from opkiln.runtime.errors import HostRangeError, NotYet, OpkilnError, ShapeError, TraceError
from opkiln.runtime.graph import Node, const_value, host_const, topological
from opkiln.runtime.trace.promote import (
    BROADCAST,
    cast,
    elementwise,
    is_big,
    operand,
    power,
    session_of,
)
from opkiln.runtime.trace.session import ArrayValue, HostValue, Session, failure


class MissingAttribute(TraceError, AttributeError):
    """An array attribute that a traced array does not have; hasattr() sees it as absent."""


class NotYetScalar(TraceError, NotYet):
    """Arithmetic of scalar arguments that has no native counterpart yet."""


_IF = "if/while/and/or/not, min() or max()"
_CHOOSE = "write np.where(condition, a, b), np.minimum, np.maximum"


def wrap(session: Session, node: Node) -> Any:
    """A node as the user sees it: an array, a symbolic number, or the number where it is known."""
    if not node.is_host:
        return Tracer(session, node)
    value = const_value(node)
    return HostTracer(session, node) if value is None else value


def call_row(name: str, *args: Any) -> Any:
    """A table row on traced values."""
    session = session_of(args)
    return Tracer(session, elementwise(session, ELEMENTWISE[name], args))


def _is_number(value: Any) -> bool:
    """Python's own numbers: they keep arithmetic with symbolic numbers on the host."""
    return isinstance(value, (int, float)) and not isinstance(value, np.generic)


def _array_op(row: str) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    def forward(self: Any, other: Any) -> Any:
        return call_row(row, self, other)

    def reflected(self: Any, other: Any) -> Any:
        return call_row(row, other, self)

    return forward, reflected


def _unary(row: str) -> Callable[[Any], Any]:
    return lambda self: call_row(row, self)


def _in_place(row: str) -> Callable[[Any, Any], Any]:
    def update(self: Any, other: Any) -> Any:
        return update_in_place(self, row, lambda: call_row(row, self, other))

    return update


def _advice(message: str, fix: str, cls: type[OpkilnError] = TraceError) -> Callable[..., NoReturn]:
    """A method that always refuses, with what to write instead."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise failure(cls, message, fix=fix)

    return refuse


def _needs_value(message: str, fix: str, what: str, scalar_fix: str) -> Callable[..., NoReturn]:
    """A method that needs the value: refused for arrays, and in other words for scalar arguments.

    `what` and `scalar_fix` are for 0-d values that come from scalar arguments alone.
    """

    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        session, node = self.session, self.node
        inputs = frozenset(session.inputs)
        if session.scalars(node) and not inputs.intersection(topological([node], stop=inputs)):
            raise session.scalar_failure(node, what, scalar_fix)
        raise failure(TraceError, message, fix=fix)

    return refuse


def update_in_place(target: Any, name: str, compute: Callable[[], Any]) -> Any:
    """`target op= value`: rebinds an intermediate, so that its aliases see the new value.

    Raises:
        TraceError: the target is an argument, a capture or a view, or the dtype does not fit.
    """
    session = target.session
    rewrite = "write x = x + y in place of x += y (and so on), and return the new value"
    if not target.owned:
        what = "an argument" if target.root is target else "a view of an argument"
        raise failure(TraceError, f"{name}: in-place update of {what}", fix=rewrite)
    if target.root is not target:
        raise failure(
            TraceError,
            f"{name}: in-place update through a view, which would change the array it looks at",
            fix="update that array itself (for w = v.T and w += y write v += y.T); or, if it may "
            "keep its value, write w = w + y",
        )
    result = compute()
    if (
        not target.shape
    ):  # NumPy's own scalars are immutable: the name is rebound, aliases keep theirs
        return result
    target.update(fit(session, result.node, target.node, name))
    return target


def fit(session: Session, value: Node, into: Node, name: str) -> Node:
    """A result cast and broadcast to the array that NumPy would write it into."""
    if not np.can_cast(value.dtype, into.dtype, "same_kind"):
        raise failure(
            TraceError,
            f"Cannot cast ufunc '{name}' output from {value.dtype!r} to {into.dtype!r} "
            f"with casting rule 'same_kind'",
            fix="write x = x + y, which makes a new array of the wider dtype, or cast the operand",
        )
    value = cast(session, value, into.dtype)
    if value.shape == into.shape:
        return value
    dims = [
        (const_value(a), const_value(b))
        for a, b in zip(into.shape[::-1], value.shape[::-1], strict=False)
    ]
    if value.rank > into.rank or any(a == 1 and b not in (None, 1) for a, b in dims):
        raise failure(
            ShapeError, f"{name}: the result does not fit into the array that is updated in place"
        )
    # The result's extents may be larger than the target's: a run-time guard, as NumPy's own check.
    return session.make(BROADCAST, value, *into.shape)


class Operators:
    """Operators that arrays and symbolic numbers share, by row of the op table."""

    __slots__ = ()

    __add__, __radd__ = _array_op("add")
    __sub__, __rsub__ = _array_op("subtract")
    __mul__, __rmul__ = _array_op("multiply")
    __truediv__, __rtruediv__ = _array_op("divide")
    __floordiv__, __rfloordiv__ = _array_op("floor_divide")
    __mod__, __rmod__ = _array_op("remainder")
    __and__, __rand__ = _array_op("bitwise_and")
    __or__, __ror__ = _array_op("bitwise_or")
    __xor__, __rxor__ = _array_op("bitwise_xor")
    __lshift__, __rlshift__ = _array_op("left_shift")
    __rshift__, __rrshift__ = _array_op("right_shift")
    __lt__ = _array_op("less")[0]
    __le__ = _array_op("less_equal")[0]
    __gt__ = _array_op("greater")[0]
    __ge__ = _array_op("greater_equal")[0]
    __eq__ = _array_op("equal")[0]
    __ne__ = _array_op("not_equal")[0]
    __hash__ = None  # type: ignore[assignment]
    __neg__, __pos__ = _unary("negative"), _unary("positive")
    __abs__, __invert__ = _unary("absolute"), _unary("invert")
    __matmul__ = __rmatmul__ = _advice(
        "@ (matmul) is not supported yet",
        "write (a[:, :, None] * b[None, :, :]).sum(1) for small sizes",
    )

    def __pow__(self, exponent: Any) -> Any:
        session = session_of((self, exponent))
        base, to = operand(session, self), operand(session, exponent)
        return Tracer(session, power(session, base, to, by_operator=True))

    def __rpow__(self, base: Any) -> Any:
        session = session_of((self,))
        return Tracer(
            session,
            power(session, operand(session, base), operand(session, self), by_operator=True),
        )

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "__call__" and not kwargs:
            row = BY_UFUNC.get(ufunc)
            if row is not None:
                session = session_of(inputs)
                return Tracer(session, elementwise(session, row, inputs))
        from opkiln.runtime.trace import functions  # the table of NumPy functions names this module

        return functions.call_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        from opkiln.runtime.trace import functions

        return functions.call_function(func, args, kwargs)

    @staticmethod
    def __opkiln_apply__(name: str, args: tuple[Any, ...]) -> Any:
        """How opkiln.ops.erf and the like reach this stage without importing it."""
        return call_row(name, *args)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return np


class HostTracer(Operators, HostValue):
    """A size or a weak scalar. Python arithmetic keeps it so; a NumPy function makes an array.

    Asking for the value of a size (int, index, range, ==, if) pins it: the trace holds for it.
    """

    __slots__ = ()

    @property
    def is_size(self) -> bool:
        return not self.session.scalars(self.node)

    def pinned(self, what: str = "the value", fix: str = "") -> int | float:
        """The value now; `what` and `fix` are for the error about a scalar argument."""
        self.session.check_open()
        return self.session.pin(self.node, what, fix)

    def _unless(self, kind: type, call: str, fix: str) -> str:
        """`fix`, or the advice to leave the conversion out where it does nothing."""
        return f"leave {call} out: it is of type {kind.__name__} already" if (
            self.node.dtype is kind
        ) else fix  # fmt: skip

    def __int__(self) -> int:
        return int(self.pinned("int()", self._unless(int, "int()", "write np.trunc(k)")))

    def __index__(self) -> int:
        if self.node.dtype is float:
            raise failure(
                TraceError, "a float cannot be interpreted as an integer", fix="use // instead of /"
            )
        return int(self.pinned("range(), an index or another use of the integer"))

    def __float__(self) -> float:
        fix = self._unless(float, "float()", "write 1.0 * k")
        return float(self.pinned("float() or a function of math", f"{fix}; use np.sqrt and so on"))

    def __bool__(self) -> bool:
        return bool(self.pinned(_IF, _CHOOSE))

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self.pinned("a look-up in a dict or set"))

    def __round__(self, digits: int | None = None) -> Any:
        fix = "write np.rint(k)" if digits is None else "write np.round(k, digits)"
        return round(self.pinned("round()", self._unless(int, "round()", fix)), digits)

    def __trunc__(self) -> int:
        return int(self.pinned("trunc()", "write np.trunc(k)"))

    def __floor__(self) -> int:
        return math.floor(self.pinned("floor()", "write np.floor(k)"))

    def __ceil__(self) -> int:
        return math.ceil(self.pinned("ceil()", "write np.ceil(k)"))

    def __format__(self, spec: str) -> str:
        return format(self.pinned("formatting"), spec) if spec else repr(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        fix = "leave np.asarray out: NumPy functions take the number"
        if isinstance(self.node.op, p.HostArg):
            path = self.session.labels[self.node.op.index][1]
            if path.endswith("]"):
                whole = path.split("[", maxsplit=1)[0]
                fix = f"pass np.asarray({whole}) as the argument in place of the list"
        return np.asarray(
            self.pinned("np.asarray or a function that needs a real array", fix), dtype
        )

    def __getattr__(self, name: str) -> Any:
        """What Python's own numbers have; nothing of an array.

        Raises:
            MissingAttribute: the attribute needs the value, or numbers do not have it.
        """
        kind: type[int] | type[float] = self.node.dtype
        if name in ("real", "imag", "numerator", "denominator") and hasattr(kind, name):
            return {"real": self, "numerator": self, "denominator": 1}.get(name, kind(0))
        if name == "conjugate":
            return lambda: self
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(kind, name):
            if self.is_size:
                return getattr(self.pinned(), name)
            raise self.session.scalar_failure(self.node, f".{name}", cls=MissingAttribute)
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
        from opkiln.runtime.graph import size_text

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


def _host_op(fn: str, row: str) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    def forward(self: Any, other: Any) -> Any:
        if isinstance(other, HostValue) or _is_number(other):
            return _host(self.session, fn, self, other)
        return call_row(row, self, other)

    def reflected(self: Any, other: Any) -> Any:
        if isinstance(other, HostValue) or _is_number(other):
            return _host(self.session, fn, other, self)
        return call_row(row, other, self)

    return forward, reflected


def _host_pow(self: Any, exponent: Any) -> Any:
    if isinstance(exponent, HostValue) or _is_number(exponent):
        if isinstance(exponent, int) and exponent < 0:
            exponent = float(exponent)  # Python's 2 ** -1 is a float
        return _host(self.session, "pow", self, exponent)
    return Operators.__pow__(self, exponent)


def _host_rpow(self: Any, base: Any) -> Any:
    return (
        _host(self.session, "pow", base, self)
        if _is_number(base)
        else Operators.__rpow__(self, base)
    )


def _host_bits(symbol: str, method: str) -> Callable[[Any, Any], Any]:
    def bits(self: Any, other: Any) -> Any:
        if not isinstance(other, HostTracer) and not _is_number(other):
            return getattr(Operators, method)(self, other)
        if not self.is_size or (isinstance(other, HostTracer) and not other.is_size):
            source = other if self.is_size else self
            raise source.session.scalar_failure(
                source.node, symbol, "use // and %", cls=NotYetScalar
            )
        concrete = other.pinned() if isinstance(other, HostTracer) else other
        return getattr(self.pinned(), method)(concrete)

    return bits


def _host_compare(method: str, row: str) -> Callable[[Any, Any], Any]:
    def compare(self: Any, other: Any) -> Any:
        if other is None or isinstance(other, str):
            return method == "__ne__"
        other_sized = isinstance(other, HostTracer) and other.is_size
        if self.is_size and (other_sized or _is_number(other)):
            concrete = other.pinned() if isinstance(other, HostTracer) else other
            return getattr(self.pinned(), method)(concrete)
        return call_row(row, self, other)

    return compare


for _name, (_row, _fn) in _HOST_FN.items():
    _forward, _reflected = _host_op(_fn, _row)
    setattr(HostTracer, f"__{_name}__", _forward)
    setattr(HostTracer, f"__r{_name}__", _reflected)
HostTracer.__pow__ = _host_pow  # type: ignore[method-assign]
HostTracer.__rpow__ = _host_rpow  # type: ignore[method-assign]
for _name, _row in {"and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>"}.items():
    for _method in (f"__{_name}__", f"__r{_name}__"):
        setattr(HostTracer, _method, _host_bits(_row, _method))
for _name, _row in {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    "eq": "equal", "ne": "not_equal",
}.items():  # fmt: skip
    setattr(HostTracer, f"__{_name}__", _host_compare(f"__{_name}__", _row))


_NO_VALUE = "the value of a traced array is known only when the compiled function runs"


class Tracer(Operators, ArrayValue):
    """A symbolic array: an argument or an intermediate of a function that is being traced."""

    __slots__ = ("__weakref__",)

    __iadd__, __isub__, __imul__ = _in_place("add"), _in_place("subtract"), _in_place("multiply")
    __itruediv__, __ifloordiv__ = _in_place("divide"), _in_place("floor_divide")
    __imod__, __iand__, __ior__ = (
        _in_place("remainder"),
        _in_place("bitwise_and"),
        _in_place("bitwise_or"),
    )
    __ixor__, __ilshift__ = _in_place("bitwise_xor"), _in_place("left_shift")
    __irshift__ = _in_place("right_shift")

    __bool__ = _needs_value(
        f"if/while/and/or/not on a traced array: {_NO_VALUE}",
        "write np.where(condition, a, b) for a choice, & | ~ for and, or, not",
        _IF,
        _CHOOSE,
    )
    __int__ = __float__ = __complex__ = __index__ = item = tolist = _needs_value(
        f"int(), float(), .item(): {_NO_VALUE}",
        "keep it an array (x.astype(np.float64)), or convert the returned result outside",
        "int(), float(), .item()",
        "keep it an array",
    )
    __array__ = _advice(
        f"np.asarray, np.array or a function that needs a real array: {_NO_VALUE}",
        "drop np.asarray (np.array, np.ascontiguousarray): this is an array already, and "
        "x.astype(dtype) converts it",
    )
    __iter__ = __contains__ = _advice(
        "iteration over a traced array, whose length is known only when the compiled function runs",
        "compute on the whole array, with x.sum(axis) or np.where(...)",
    )
    __setitem__ = _advice(
        "item assignment into a traced array",
        "write x = np.where(mask, value, x), which makes a new array",
    )
    __delitem__ = __setitem__

    @property
    def __dlpack__(self) -> Any:
        raise failure(
            MissingAttribute, f"__dlpack__: {_NO_VALUE}", fix="convert the returned result outside"
        )

    def __ipow__(self, exponent: Any) -> Any:
        return update_in_place(self, "power", lambda: Operators.__pow__(self, exponent))

    def __imatmul__(self, other: Any) -> Any:  # type: ignore[misc]
        return self.__matmul__(other)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype."""
        return self.node.dtype  # type: ignore[no-any-return]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.node.rank

    @property
    def shape(self) -> tuple[Any, ...]:
        """One symbolic size per axis; those known to be constant are Python ints."""
        return tuple([wrap(self.session, d) for d in self.node.shape])

    @property
    def size(self) -> Any:
        """Number of elements, symbolic."""
        total: Any = 1
        for extent in self.shape:
            total = extent if isinstance(total, int) and total == 1 else total * extent
        return total

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> Any:
        """Bytes of all elements, symbolic."""
        return self.size * self.itemsize

    def __len__(self) -> int:
        """Pins the length, because Python insists on an int; x.shape[0] does not."""
        if not self.node.rank:
            raise failure(TraceError, "len() of unsized object")
        return int(self.shape[0])

    def __format__(self, spec: str) -> str:
        if spec:
            raise failure(
                TraceError, f"formatting: {_NO_VALUE}", fix="format the returned result outside"
            )
        return repr(self)

    def __repr__(self) -> str:
        return f"<traced {self.dtype.name} array of shape {self.shape}>"

    def __getitem__(self, key: Any) -> Any:
        from opkiln.runtime.trace import views

        return views.getitem(self, key)

    def __copy__(self) -> Any:
        return Tracer(self.session, self.node)

    def __deepcopy__(self, memo: Any) -> Any:
        return Tracer(self.session, self.node)

    def __reduce__(self) -> NoReturn:
        raise failure(
            TraceError, "pickling a traced array", fix="pickle the returned result instead"
        )

    def __getattr__(self, name: str) -> Any:
        """Array methods and attributes, from the table of NumPy functions."""
        from opkiln.runtime.trace import functions

        return functions.attribute(self, name)


def as_view(base: Any, view: Callable[[Node], Node]) -> Any:
    """A view of `base`: it follows in-place updates of the array that it looks at."""
    base.session.check_open()
    value = Tracer(base.session, view(base.node), owned=base.owned)
    value.root, value.parent, value.mapping, value.seen = base.root, base, view, base.root.held
    return value
