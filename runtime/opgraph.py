"""An op with a signature in, its graph out: where inference and eager calls start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opkiln.ops.defs import OpDef
from opkiln.ops.record import record
from opkiln.ops.rules import RULES
from opkiln.ops.subgraph import Literal, Number
from opkiln.runtime.errors import ArgumentError
from opkiln.runtime.lift import apply_graph, as_array, value_inputs
from opkiln.runtime.memo import Memo
from opkiln.runtime.trace import Traced, trace
from opkiln.runtime.trace.session import ArrayValue, failure

Values = tuple[Any, ...]


@record
class Spec:
    """An input for a trace: dtype and sizes of an array that need not exist."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)


@record
class Pattern:
    """An input whose value decides a shape: per number None for a size, else the number itself.

    That a trace must see: -1, other negative numbers, and floats.
    """

    numbers: tuple[tuple[bool, int | float] | None, ...]  # whether it is a float, and the number
    vector: bool  # False: one number without axes


@record
class Sizes:
    """Such an input with its sizes. To a program they are the lengths of arrays without memory.

    So executors are found by them, and a program serves all of them.
    """

    pattern: Pattern
    actual: tuple[int, ...]

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays of these lengths."""
        return tuple(np.broadcast_to(_NO_MEMORY, n) for n in self.actual)

    @property
    def specs(self) -> tuple[Spec, ...]:
        """Their descriptions for a trace."""
        return tuple(Spec(_NO_MEMORY.dtype, (n,)) for n in self.actual)


_NO_MEMORY = np.zeros((), np.bool_)
_GRAPHS: Memo[Traced] = Memo(1024)


def sizes_of(op: OpDef, value: Any) -> Sizes:
    """An input whose value decides a shape."""
    array = np.asarray(value)
    if array.ndim > 1 or array.dtype.kind not in "iuf":
        raise failure(
            ArgumentError,
            f"{op.name}: expected sizes as a vector of integers, got {array.dtype.name} of shape "
            f"{array.shape}",
        )
    numbers = array.reshape(-1).tolist()
    seen = [type(n) is float or n < 0 for n in numbers]
    pattern = tuple(
        (type(n) is float, n) if literal else None for n, literal in zip(numbers, seen, strict=True)
    )
    rest = tuple(n for n, literal in zip(numbers, seen, strict=True) if not literal)
    return Sizes(Pattern(pattern, array.ndim == 1), rest)


def open_sizes(count: int | None) -> Sizes:
    """Sizes that are not known: a vector of `count`, or one without axes."""
    numbers = (None,) * (1 if count is None else count)
    return Sizes(Pattern(numbers, count is not None), (2,) * len(numbers))


def is_number(value: Any) -> bool:
    """Whether it is a Python number, which takes the dtype of what it meets."""
    return type(value) in (bool, int, float, complex)


@record
class Bound(OpDef):
    """An op with Python numbers in the place of some inputs; None where an input is left."""

    op: OpDef
    numbers: tuple[Number | None, ...]

    @property
    def name(self) -> str:
        """The op's name."""
        return self.op.name

    def filled(self, args: Sequence[Any]) -> Values:
        """All inputs of the op.

        Raises:
            ArgumentError: not as many as are left.
        """
        left = self.numbers.count(None)
        if len(args) != left:
            raise failure(ArgumentError, f"{self.name}: expected {left} inputs, got {len(args)}")
        given = iter(args)
        return tuple(next(given) if n is None else n for n in self.numbers)


@RULES.register("value_inputs", Bound)
def _values_left(op: Bound, count: int) -> frozenset[int]:
    del count
    sized = value_inputs(op.op, len(op.numbers))
    left = [i for i, n in enumerate(op.numbers) if n is None]
    return frozenset(at for at, i in enumerate(left) if i in sized)


@RULES.register("apply_graph", Bound)
def _with_numbers(op: Bound, args: Values) -> Values:
    return apply_graph(op.op, op.filled(args))


def bound(op: OpDef, inputs: Sequence[Any]) -> tuple[OpDef, Values]:
    """The op with the Python numbers among its inputs built in, and the other inputs.

    The user's own code is given numbers as they are.
    """
    if op.opaque:
        return op, tuple(inputs)
    sized = value_inputs(op, len(inputs))
    numbers = tuple(v if is_number(v) and i not in sized else None for i, v in enumerate(inputs))
    if not any(n is not None for n in numbers):
        return op, tuple(inputs)
    left = tuple(v for v, n in zip(inputs, numbers, strict=True) if n is None)
    return Bound(op, numbers), left


def runner(op: OpDef, holes: Sequence[Pattern | None]) -> Callable[..., Values]:
    """The op as a function of arrays, and of tuples of arrays whose lengths are sizes."""

    def run(*inputs: Any) -> Values:
        args = tuple(
            given if hole is None else _filled(hole, given)
            for hole, given in zip(holes, inputs, strict=True)
        )
        results = tuple(as_array(v) for v in apply_graph(op, args))
        keep = [v is None or isinstance(v, ArrayValue) for v in results]  # None: no value there
        return tuple(v if k else Literal.of(v).array for v, k in zip(results, keep, strict=True))

    run.__name__ = run.__qualname__ = op.name
    return run


def _filled(hole: Pattern, given: Values) -> Any:
    lengths = iter(given)
    values = tuple(next(lengths).shape[0] if n is None else n[1] for n in hole.numbers)
    return values if hole.vector else values[0]


def graph_of(op: OpDef, specs: Sequence[Spec | Sizes]) -> Traced:
    """The traced op; actual sizes matter only where the op asks for one while tracing."""
    key = (op, tuple((s.dtype, s.ndim) if isinstance(s, Spec) else s.pattern for s in specs))
    leaves = [leaf for s in specs for leaf in ((s,) if isinstance(s, Spec) else s.specs)]
    traced = _GRAPHS.get(key, lambda: _trace(op, specs, leaves))
    if all(leaves[i].shape[axis] == n for i, axis, n in traced.pins if i < len(leaves)):
        return traced
    return _trace(op, specs, leaves)


def _trace(op: OpDef, specs: Sequence[Spec | Sizes], leaves: Sequence[Spec]) -> Traced:
    numbers = iter(range(len(leaves)))
    tree = tuple(
        next(numbers) if isinstance(s, Spec) else tuple(next(numbers) for _ in s.actual)
        for s in specs
    )
    run = runner(op, [None if isinstance(s, Spec) else s.pattern for s in specs])
    return trace(run, ["inputs"], [2], (tree,), leaves, "a" * len(leaves), name=op.name)
