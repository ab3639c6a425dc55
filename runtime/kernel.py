"""Kernel: the backend-neutral loop nest that lowering makes and every emitter prints.

A kernel walks rows x columns. In an elementwise kernel the split into rows and columns is the
runtime's (after axes are dropped and merged); in a reduction the columns are the reduced axes. Its
body is a list of sections: `once`, then per row alternating `row` sections and `loop` sections over
the columns. A value lives where its section runs: one per call, one per row, or one per element.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from opkiln.ops.record import record
from opkiln.runtime.graph import Names, Node, size_text
from opkiln.runtime.indexmap import AxisMap

DT = np.dtype[np.generic]


@record
class Load:
    """value = operand[here]."""

    value: int
    operand: int


@record
class Param:
    """value = scalar parameter `slot` of the kernel."""

    value: int
    slot: int


@record
class Const:
    """value = a constant, exact to the bit."""

    value: int
    constant: np.generic

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    @property
    def identity(self) -> tuple[int, str, bytes]:
        """Constants compare by dtype and bits: -0.0 is not 0.0, NaN is itself."""
        return self.value, self.constant.dtype.str, self.constant.tobytes()


@record
class Apply:
    """value = op-table row `row` of the arguments."""

    value: int
    row: str
    args: tuple[int, ...]


@record
class Convert:
    """value = argument in the value's dtype."""

    value: int
    arg: int


@record
class Accumulate:
    """Fold the argument over the columns by reduction row `row`.

    `value` exists from the next row section on.
    """

    value: int
    row: str
    arg: int


@record
class Store:
    """operand[here] = argument."""

    operand: int
    arg: int


Statement = Load | Param | Const | Apply | Convert | Accumulate | Store


@record
class Section:
    """Statements that run once per call ("once"), per row ("row") or per element ("loop")."""

    kind: str
    body: tuple[Statement, ...]


@record
class Operand:
    """An array the kernel touches; `axes` say what the index along each axis of it follows."""

    buffer: int
    axes: AxisMap
    dtype: DT
    write: bool
    per_row: bool = False  # constant along the columns by construction


@record
class Kernel:
    """One loop nest over `rank` logical axes.

    `reduced` are those that make the columns of a reduction. `folded` is the scalar parameter that
    says how many columns its folds run over, where that may be 1 of many: a store broadcasts them.

    A `product` has no sections: over the axes (..., m, n, k), of which k is reduced, its last
    operand is the sum over k of the first two, multiplied.

    Nor has one that is the `call` of a custom op: its axes are those of its operands, one after the
    other, and each operand follows its own.
    """

    rank: int
    reduced: tuple[int, ...]
    operands: tuple[Operand, ...]
    scalars: tuple[DT, ...]  # dtype per scalar parameter
    dtypes: tuple[DT, ...]  # dtype per value
    sections: tuple[Section, ...]
    cost: float  # nanoseconds per element, a rough guess
    may_raise: bool
    folded: int | None = None
    product: bool = False
    call: Node | None = None

    def statements(self) -> Iterator[Statement]:
        """All statements in order."""
        for section in self.sections:
            yield from section.body

    def __str__(self) -> str:
        head = f"kernel rank={self.rank} reduced={list(self.reduced)}"
        head += f" folded by scalar {self.folded}" if self.folded is not None else ""
        head += " product" if self.product else ""
        head += f" call {self.call.op.name}" if self.call is not None else ""
        lines = [head]
        for i, o in enumerate(self.operands):
            mode = "out" if o.write else "in"
            axes = ", ".join(along.text({}) for along in o.axes)
            lines.append(f"  {mode}{i}: {o.dtype.name} buffer {o.buffer} axes [{axes}]")
        for section in self.sections:
            lines.append(f"  {section.kind}:")
            lines += [f"    {self.show(s)}" for s in section.body]
        return "\n".join(lines)

    def show(self, s: Statement) -> str:
        """One statement as text."""
        match s:
            case Load(value, operand):
                return f"v{value} = load {operand} : {self.dtypes[value].name}"
            case Param(value, slot):
                return f"v{value} = scalar {slot} : {self.dtypes[value].name}"
            case Const(value, constant):
                return f"v{value} = {constant!r}"
            case Apply(value, row, args):
                return f"v{value} = {row} {' '.join(f'v{a}' for a in args)}"
            case Convert(value, arg):
                return f"v{value} = {self.dtypes[value].name} v{arg}"
            case Accumulate(value, row, arg):
                return f"v{value} = fold {row} v{arg}"
            case Store(operand, arg):
                return f"store {operand} v{arg}"


@record
class View:
    """Elements of another buffer, in C order, under extents of the view's own.

    Those elements are `axes` over the index space `space`. Buffer `copy` holds them, dense, where
    the other's strides allow no view: -1 if they always do.
    """

    buffer: int
    axes: AxisMap
    space: tuple[Node, ...]
    copy: int


@record
class Buffer:
    """Memory a plan touches. kind: arg, capture, out, temp, view. `extents` are host nodes.

    `dense` says that a temp lies in C order, whichever order the loop that writes it has.
    """

    kind: str
    dtype: DT
    extents: tuple[Node, ...]
    dense: bool = False
    view: View | None = None

    def text(self, names: Names) -> str:
        """One line for printing."""
        text = f"{self.kind} {self.dtype.name}[{_extents(self.extents, names)}]"
        if self.view is not None:
            text += f" of buffer {self.view.buffer}"
            text += f" or its copy {self.view.copy}" if self.view.copy >= 0 else ""
        return text


@record
class Launch:
    """A kernel with what the plan binds to it: iteration extents and scalar slots.

    It is the copy that buffer `view` may need, or runs always (-1).
    """

    kernel: Kernel
    extents: tuple[Node, ...]
    scalars: tuple[int, ...]
    view: int = -1


@record
class Lowered:
    """A whole program: buffers, scalar slots (host node, dtype, mode), launches in order, outputs.

    outputs: ("buffer", index) or ("host", node), each once; `slots[i]` is the place of graph
    output i among them. checks: host nodes that must be evaluated for their errors alone.
    """

    buffers: tuple[Buffer, ...]
    scalars: tuple[tuple[Node, DT, str], ...]
    launches: tuple[Launch, ...]
    outputs: tuple[tuple[str, Any], ...]
    slots: tuple[int, ...]
    checks: tuple[Node, ...]

    def __str__(self) -> str:
        return self.text({})

    def text(self, names: Names, arrays: tuple[str, ...] = ()) -> str:
        """Buffers, scalars, then each launch and its kernel; the first buffers are `arrays`."""
        lines = [
            f"buffer {i}: {b.text(names)}" + (f" = {arrays[i]}" if i < len(arrays) else "")
            for i, b in enumerate(self.buffers)
        ]
        lines += [
            f"scalar {i}: {d.name} = {size_text(n, names)} ({m})"
            for i, (n, d, m) in enumerate(self.scalars)
        ]
        for i, launch in enumerate(self.launches):
            needed = f" unless buffer {launch.view} needs no copy" if launch.view >= 0 else ""
            lines.append(f"launch {i} over [{_extents(launch.extents, names)}]{needed}")
            lines.append(str(launch.kernel))
        return "\n".join(lines)


def _extents(nodes: tuple[Node, ...], names: Names) -> str:
    return ", ".join(size_text(node, names) for node in nodes)
