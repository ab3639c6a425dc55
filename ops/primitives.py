"""The primitive ops a graph is made of.

They are leaves, host scalars, elementwise ops, casts, reductions and views.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import numpy as np

from opkiln.ops.defs import OpDef
from opkiln.ops.record import record

InputAxes: TypeAlias = "tuple[tuple[Input, int], ...]"


@record
class Input(OpDef):
    """The `index`-th array leaf of a call (captures follow the arguments).

    `extents` says of each axis which input it is as long as, and along which axis: a size of this
    input's own, or one that equals it. Without it, all are its own.
    """

    index: int
    dtype: np.dtype[np.generic]
    rank: int
    extents: InputAxes = ()


@record
class HostArg(OpDef):
    """The `index`-th weak leaf.

    Its kind: a Python int that fits int64 ("i"), a larger one ("u"), or a float ("f").
    """

    index: int
    kind: str


@record
class Dim(OpDef):
    """Extent of one axis of an Input: a host int."""

    axis: int


@record
class HostConst(OpDef):
    """A host int or float known while tracing."""

    value: int | float


@record
class HostOp(OpDef):
    """Arithmetic on host scalars, by Python's rules: checked int64, or float64."""

    fn: str  # add sub mul floordiv mod truediv pow neg abs max min float | a guard:
    # bcast same nonempty index


@record
class Constant(OpDef):
    """A 0-d value baked into the kernel."""

    value: np.generic


@record
class FromHost(OpDef):
    """A host scalar as a 0-d value of `dtype`.

    `mode` says what becomes of values out of range: check (OverflowError), saturate or wrap.
    """

    dtype: np.dtype[np.generic]
    mode: str


@record
class Elementwise(OpDef):
    """One row of the op table, on operands already cast to the row's signature."""

    row: str

    @property
    def name(self) -> str:
        """The row's name."""
        return self.row


@record
class Cast(OpDef):
    """Convert to `dtype` as NumPy's astype."""

    dtype: np.dtype[np.generic]


@record
class Reduce(OpDef):
    """Reduce over `axes` (sorted, non-negative) in `dtype`, by a row of the reduction table.

    `seeded` says that an initial value follows, so that even a row that refuses to reduce nothing
    gives its identity for it.
    """

    row: str
    axes: tuple[int, ...]
    keepdims: bool
    dtype: np.dtype[np.generic]
    seeded: bool = False

    @property
    def name(self) -> str:
        """The row's name."""
        return self.row


@record
class Transpose(OpDef):
    """Axis i of the result is axis `perm[i]` of the operand: an index map, no kernel."""

    perm: tuple[int, ...]


@record
class ExpandDims(OpDef):
    """Length-1 axes inserted at `axes`: an index map, no kernel.

    `axes` are positions in the result, sorted.
    """

    axes: tuple[int, ...]


@record
class BroadcastTo(OpDef):
    """The operand broadcast to the extents given by the host sources: an index map, no kernel."""


@record
class Squeeze(OpDef):
    """The operand without `axes` (sorted), each of length 1: an index map, no kernel."""

    axes: tuple[int, ...]


@record
class Slice(OpDef):
    """Elements `start + step * i`, i < count, along each of `axes` (sorted): an index map.

    Sources: the operand, then per axis a start and a count, both within the operand's extent.
    """

    axes: tuple[int, ...]
    steps: tuple[int, ...]


@record
class Diagonal(OpDef):
    """Two axes of equal length as one, at the place of `axis`: an index map, no kernel."""

    axis: int
    other: int


@record
class Reshape(OpDef):
    """The operand's elements in C order under the extents given by the host sources.

    The same memory where its strides allow that, else a copy.
    """


@record
class UpdateSlices(OpDef):
    """Values written one after the other into slices of one new array, which they cover.

    Sources: an extent per axis of the result, then per value the value, of the result's rank, and a
    start per axis. Element i of value v lands at `start + steps[v] * i`, axis by axis. Of
    `disjoint` values none covers another.
    """

    dtype: np.dtype[np.generic]
    steps: tuple[tuple[int, ...], ...]
    disjoint: bool

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.steps[0])

    def parts(self, src: tuple[Any, ...]) -> list[tuple[Any, tuple[Any, ...], tuple[int, ...]]]:
        """Value, starts and steps of each piece, from the sources."""
        rank, width = self.rank, self.rank + 1
        return [
            (src[at], src[at + 1 : at + width], steps)
            for at, steps in zip(range(rank, len(src), width), self.steps, strict=True)
        ]


@record
class MatMul(OpDef):
    """Products of the matrices in the last two axes, for each place of the axes before them.

    Both operands have the result's dtype, no half and no bool, and two axes at least; those before
    the last two broadcast.
    """


@record
class CustomCall(OpDef):
    """The `index`-th result of a custom op.

    Sources: the tensors that are `given`, the scalars that are no strings (host numbers), then the
    extents of all results, one result after the other.
    """

    op: OpDef
    given: tuple[bool, ...]
    dtypes: tuple[np.dtype[np.generic], ...]  # of the results
    ranks: tuple[int, ...]
    index: int

    @property
    def name(self) -> str:
        """The custom op's."""
        return self.op.name

    def split(self, src: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...]:
        """The sources as tensors, scalars, and the extents of each result."""
        tensors, extents = sum(self.given), len(src) - sum(self.ranks)
        shapes: list[tuple[Any, ...]] = []
        at = extents
        for rank in self.ranks:
            shapes.append(src[at : at + rank])
            at += rank
        return src[:tensors], src[tensors:extents], *shapes

    def results(self) -> tuple[CustomCall, ...]:
        """The op of each result of this call."""
        fields = self.op, self.given, self.dtypes, self.ranks
        return tuple(CustomCall(*fields, i) for i in range(len(self.ranks)))


@record
class Reinterpret(OpDef):
    """The same bits as another dtype of the same size: no kernel."""

    dtype: np.dtype[np.generic]


@record
class Transient(OpDef):
    """Stands for its first source in a finished graph; until then it tells values apart."""


VIEWS: tuple[type[OpDef], ...] = (Transpose, ExpandDims, BroadcastTo, Squeeze, Slice, Diagonal)
HOST_OPS: tuple[type[OpDef], ...] = (HostArg, Dim, HostConst, HostOp)


def op_text(op: OpDef) -> tuple[str, str]:
    """Name and remaining properties of an op, for printing graphs beside its operands and dtype."""

    def show(value: Any) -> str:
        return value.name if isinstance(value, np.dtype) else repr(value)

    match op:
        case Input(index=index):
            return f"arg{index}", ""
        case HostArg(index=index):
            return f"scalar{index}", ""
        case Constant(value=value) | HostConst(value=value):
            return str(value), ""
        case FromHost(mode=mode):
            return "convert", f"({mode})"
        case CustomCall(ranks=ranks, index=index):
            return op.name, f"result={index}" if len(ranks) > 1 else ""
        case _:
            skipped = {"row", "dtype"}
            default = vars(type(op))  # of fields that have one
            props = (
                f"{k}={show(v)}"
                for k, v in op.props.items()
                if k not in skipped and (k not in default or default[k] != v)
            )
            return re.sub(r"\B([A-Z])", r"_\1", op.name).lower(), " ".join(props)
