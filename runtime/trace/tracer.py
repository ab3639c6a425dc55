"""What a traced function sees: symbolic arrays and numbers that record what is done to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from opkiln.ops.table import BY_UFUNC, ELEMENTWISE
from opkiln.runtime.errors import MissingAttribute, OpkilnError, ShapeError, TraceError
from opkiln.runtime.graph import Node, const_value, topological
from opkiln.runtime.trace.advice import WRITE_INTO
from opkiln.runtime.trace.promote import (
    BROADCAST,
    cast,
    elementwise,
    may_cast,
    operand,
    power,
    session_of,
)
from opkiln.runtime.trace.session import ArrayValue, Session, failure

IF = "if/while/and/or/not, min() or max() on"
INDEX = "an axis, an index, a size or range() needs"
MAKE_STATIC = "name the parameter that it comes from in ok.compile(static=...)"
CHOOSE = "write np.where(condition, a, b), np.minimum, np.maximum"


def wrap(session: Session, node: Node) -> Any:
    """A node as the user sees it: an array, a symbolic number, or the number where it is known."""
    if not node.is_host:
        return Tracer(session, node)
    value = const_value(node)
    if value is not None:
        return value
    from opkiln.runtime.trace.host import HostTracer  # it is built on this module

    return HostTracer(session, node)


def call_row(name: str, *args: Any) -> Any:
    """A table row on traced values."""
    session = session_of(args)
    return Tracer(session, elementwise(session, ELEMENTWISE[name], args))


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


def update_in_place(
    target: Any, name: str, compute: Callable[[], Any], where: Any = True,
    casting: str = "same_kind",
) -> Any:  # fmt: skip
    """`target op= value`: rebinds an intermediate, so that its aliases see the new value.

    Where the mask `where` is False, the old value stays.

    Raises:
        TraceError: the target is an argument, a capture or a view of one, or the dtype does not
            fit. ReadOnlyError: a view that NumPy makes read-only.
    """
    session = target.session
    rewrite = "write x = x + y in place of x += y (and so on), and return the new value"
    if not target.owned:
        what = "an argument" if target.root is target else "a view of an argument"
        raise failure(TraceError, f"{name}: in-place update of {what}", fix=rewrite)
    result = compute()
    if not target.root.node.rank:
        return result  # NumPy's own scalars are immutable: the name is rebound, aliases keep theirs
    node = fit(session, result.node, target.node, name, casting)
    if where is not True:
        chosen = call_row("where", where, Tracer(session, node), target)
        node = fit(session, chosen.node, target.node, name)
    target.update(node)
    return target


def fit(session: Session, value: Node, into: Node, name: str, casting: Any = "same_kind") -> Node:
    """A result cast and broadcast to the array that NumPy would write it into."""
    if not may_cast(value.dtype, into.dtype, casting):
        raise failure(
            TraceError,
            f"Cannot cast ufunc '{name}' output from {value.dtype!r} to {into.dtype!r} "
            f"with casting rule '{casting}'",
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

    def __matmul__(self, other: Any) -> Any:
        from opkiln.runtime.trace import linear  # the table of NumPy functions names this module

        return linear.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        from opkiln.runtime.trace import linear

        return linear.matmul(other, self)

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
        from opkiln.runtime.trace import ufuncs  # the table of NumPy functions names this module

        return ufuncs.call_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        from opkiln.runtime.trace import functions

        return functions.call_function(func, args, kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse torch's functions, which cannot record themselves here."""
        name = getattr(func, "__name__", repr(func))
        raise failure(
            TraceError,
            f"torch.{name} of a traced array cannot be traced",
            fix=f"write np.{name}" if hasattr(np, name) else "use operators and NumPy's functions",
        )

    @staticmethod
    def __opkiln_apply__(name: str, args: tuple[Any, ...]) -> Any:
        """How opkiln.ops.erf and the like reach this stage without importing it."""
        return call_row(name, *args)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return np


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
        IF,
        CHOOSE,
    )
    __index__ = _needs_value(
        f"{INDEX} an integer, but {_NO_VALUE}", MAKE_STATIC, f"{INDEX} the value of", ""
    )
    __int__ = __float__ = __complex__ = item = tolist = _needs_value(
        f"int(), float(), .item(): {_NO_VALUE}",
        "keep it an array (x.astype(np.float64)), or convert the returned result outside; "
        + WRITE_INTO,
        "int(), float(), .item() of",
        "keep it an array",
    )
    __array__ = _advice(
        f"np.asarray, np.array or a function that needs a real array: {_NO_VALUE}",
        "drop np.asarray (np.array, np.ascontiguousarray): this is an array already, and "
        "x.astype(dtype) converts it; to join several, write np.stack((a, b)); " + WRITE_INTO,
    )
    __jax_array__ = _advice(
        "arithmetic between a JAX array and a traced array: JAX needs a real array",
        "write x + w, or np.add(w, x), with the traced array x in charge",
    )
    __contains__ = _advice(
        f"`in` a traced array: {_NO_VALUE}",
        "write np.any(x == value), which is an array of one truth value",
    )

    def __iter__(self) -> Iterator[Any]:
        """The items along a first axis whose length is known while tracing."""
        length = const_value(self.node.shape[0]) if self.node.rank else None
        if length is None:
            raise failure(
                TraceError,
                "iteration over a traced array, whose length is known only when the compiled "
                "function runs"
                if self.node.rank
                else "iteration over a 0-d array",
                fix="compute on the whole array, with x.sum(axis) or np.where(...), or name the "
                "items: x[0], x[1]",
            )
        return iter([self[i] for i in range(int(length))])

    def __setitem__(self, key: Any, value: Any) -> None:
        """A functional update, which every alias sees."""
        from opkiln.runtime.trace import indexing

        indexing.setitem(self, key, value)

    __delitem__ = _advice("deleting items of a traced array", "choose outside what is passed in")

    @property
    def __dlpack__(self) -> Any:
        raise failure(
            MissingAttribute, f"__dlpack__: {_NO_VALUE}", fix="convert the returned result outside"
        )

    def __ipow__(self, exponent: Any) -> Any:
        return update_in_place(self, "power", lambda: Operators.__pow__(self, exponent))

    def __imatmul__(self, other: Any) -> Any:
        from opkiln.runtime.trace import linear

        return update_in_place(self, "matmul", lambda: linear.matmul_like(self, other))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """So that `isinstance(x, np.ndarray)` takes the branch that it takes without tracing."""
        return np.ndarray

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
            total = extent if type(total) is int and total == 1 else total * extent
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
        from opkiln.runtime.trace import indexing

        return indexing.getitem(self, key)

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


def as_view(
    base: Any, view: Callable[[Node], Node], put: Callable[[Node, Node], Node] | None = None
) -> Any:
    """A view of `base`: it follows in-place updates of the array that it looks at.

    `put` writes through it: the base's old value and the view's new one in, the base's new value
    out. Without it the view is read-only.
    """
    base.session.check_open()
    value = Tracer(base.session, view(base.node), owned=base.owned)
    value.root, value.parent, value.mapping, value.put = base.root, base, view, put
    value.seen = base.root.held
    return value
