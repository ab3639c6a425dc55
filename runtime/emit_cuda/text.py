"""A kernel in, its CUDA text out.

Elements are taken by the threads of the grid, rows of a reduction by its warps. A warp is the 32
accumulators of a row: thread i takes columns i, i + 32 ... and so folds in the order, and to the
bits, of every other emitter.
"""

from __future__ import annotations

from collections.abc import Iterable

from opkiln.ops.record import record
from opkiln.ops.table import REDUCTIONS
from opkiln.runtime import kernel as k
from opkiln.runtime.bodies import comments, expression, literal, loaded, scalar, stored
from opkiln.runtime.folds import (
    ACCUMULATORS,
    BLOCK,
    folded,
    identity_of,
    is_blocked,
    settled,
    vector,
)
from opkiln.runtime.indexmap import covered


@record
class Job:
    """One kernel to print, and its symbol."""

    symbol: str
    kernel: k.Kernel


def is_scratch(kernel: k.Kernel, operand: k.Operand) -> bool:
    """Whether the operand holds the columns of one row at a time, so that each warp needs its own.

    The stride of its first kept axis is then the distance between two warps' columns.
    """
    written = {o.buffer for o in kernel.operands if o.write and not o.per_row}
    still = covered(operand.axes) <= set(kernel.reduced)
    rows = kernel.rank > len(kernel.reduced) > 0
    return rows and still and operand.buffer in written


class Printer:
    """The text of one kernel."""

    def __init__(self, job: Job) -> None:
        self.kernel, self.symbol = job.kernel, job.symbol
        self.dtypes = job.kernel.dtypes
        self.kept = [i for i in range(self.kernel.rank) if i not in self.kernel.reduced]
        self.faulting = any("fault" in expression(self.kernel, s) for s in self.kernel.statements())
        self.columns = "n" if self.kernel.folded is None else "folded"  # that a fold takes

    def text(self) -> str:
        """The whole kernel."""
        operands, scalars = max(len(self.kernel.operands), 1), max(len(self.kernel.scalars), 1)
        shape = f"{operands}, {max(self.kernel.rank, 1)}, {scalars}"
        lines = [
            f"// {self.symbol}",
            *comments(self.kernel),
            f'extern "C" __global__ void {self.symbol}(const ok_args<{shape}> a) {{',
        ]
        lines += ["  ok_fault_t fault = {};"] if self.faulting else []
        lines += [f"  {line}" for line in self.leaves()]
        for section in self.kernel.sections:
            if section.kind == "once":
                lines += [f"  {line}" for line in self.plain(section, "a.ptr[{}]")]
        walk = self.product if self.kernel.product else self.rows if self.kernel.reduced else None
        lines += [f"  {line}" for line in (walk or self.elements)()]
        lines += ["  ok_report(a.fault, ok_fault_bits(fault));"] if self.faulting else []
        return "\n".join([*lines, "}"])

    # *** where things lie ***

    def leaves(self) -> list[str]:
        """Parameters and constants, which are the same for all threads."""
        lines: list[str] = []
        for s in self.kernel.statements():
            if isinstance(s, k.Const):
                lines.append(f"const auto v{s.value} = {literal(s.constant)};")
            elif isinstance(s, k.Param):
                dtype = self.dtypes[s.value]
                text = f"ok_param<{scalar(dtype)}>(a.scalar[{s.slot}])"
                text = f"ok_splat_bool({text}.x)" if dtype.kind == "b" else text
                lines.append(f"const auto v{s.value} = {text};")
        return lines

    def extent(self, axes: list[int]) -> str:
        """How many elements the axes span."""
        return " * ".join(f"a.extent[{i}]" for i in axes) or "1"

    def indices(self, flat: str, axes: list[int]) -> list[str]:
        """The index along each axis, from a flat one over them."""
        if len(axes) == 1:
            return [f"const i64 i{axes[0]} = {flat};"]
        lines: list[str] = []
        for at, axis in enumerate(axes):
            inner = axes[at + 1 :]
            below = f"({self.extent(inner)})" if len(inner) > 1 else self.extent(inner)
            text = f"{flat} / {below}" if inner else flat
            text = text if at == 0 else f"{text} % a.extent[{axis}]"
            lines.append(f"const i64 i{axis} = {text};")
        return lines

    def pointers(self, name: str, base: str, used: Iterable[int], axes: list[int]) -> list[str]:
        """The operands' elements at the indices of these axes."""
        lines: list[str] = []
        for o in used:
            operand = self.kernel.operands[o]
            followed = covered(operand.axes)
            moved = [f" + i{i} * a.stride[{o}][{i}]" for i in axes if i in followed]
            if axes == self.kept and is_scratch(self.kernel, operand):
                moved = [f" + warp * a.stride[{o}][{self.kept[0]}]"]
            lines.append(f"char *const {name}{o} = {base.format(o)}{''.join(moved)};")
        return lines

    def touched(self, kind: str) -> list[int]:
        """Operands that sections of this kind load or store."""
        sections = [s for s in self.kernel.sections if s.kind == kind]
        body = [s for section in sections for s in section.body]
        return sorted({s.operand for s in body if isinstance(s, (k.Load, k.Store))})

    # *** statements ***

    def plain(self, section: k.Section, at: str) -> list[str]:
        """Statements without folds, on operands that lie at `at`."""
        return [line for s in section.body if (line := self.statement(s, at))]

    def statement(self, s: k.Statement, at: str) -> str:
        match s:
            case k.Load(value, o):
                text = loaded(self.kernel.operands[o].dtype, "ok_load", at.format(o))
                return f"const auto v{value} = {text};"
            case k.Store(o, arg):
                suffix, text = stored(self.kernel.operands[o].dtype, f"v{arg}")
                return f"ok_store{suffix}({at.format(o)}, {text});"
            case k.Accumulate():
                return self.accumulate(s)
            case k.Apply() | k.Convert():
                return f"const auto v{s.value} = {expression(self.kernel, s)};"
            case _:
                return ""

    def accumulate(self, s: k.Accumulate) -> str:
        a = f"a{s.value}"
        arg = f"v{s.arg}"
        if folded(self.kernel, s).kind == "b":  # a mask may have the width of what it compares
            arg = f"ok_mask<i8>({arg})"
        if REDUCTIONS[s.row].finds:
            text = f"ok_find_next<ok_{s.row}_op>({a}, at{s.value}, {arg}, j);"
        else:
            text = f"{a} = {REDUCTIONS[s.row].combine.format(a, arg)};"
        return f"if (j < folded) {text}" if self.kernel.folded is not None else text

    # *** elementwise ***

    def elements(self) -> list[str]:
        """Each thread takes elements in turns of the whole grid."""
        used = self.touched("loop")
        lines = [
            f"const i64 n = {self.extent(self.kept)};",
            "for (i64 i = ok_thread(); i < n; i += ok_threads()) {",
        ]
        body = [*self.indices("i", self.kept), *self.pointers("p", "a.ptr[{}]", used, self.kept)]
        for section in self.kernel.sections:
            if section.kind == "loop":
                body += self.plain(section, "p{}")
        return [*lines, *(f"  {line}" for line in body), "}"]

    # *** products ***

    def product(self) -> list[str]:
        """Each thread takes elements of the result: sums of blocks in the order of the columns."""
        (k,) = self.kernel.reduced
        a, b, out = self.kernel.operands
        total = vector(out.dtype)
        factors = [loaded(o.dtype, "ok_load", f"q{i}") for i, o in enumerate((a, b))]
        suffix, text = stored(out.dtype, "total")
        inner = [
            f"const i64 i{k} = j;",
            *self.pointers("q", "p{}", (0, 1), [k]),
            f"sum = sum + {factors[0]} * {factors[1]};",
        ]
        body = [
            *self.indices("i", self.kept),
            *self.pointers("p", "a.ptr[{}]", (0, 1, 2), self.kept),
            f"{total} total = {{}};",
            f"for (i64 begin = 0; begin < a.extent[{k}]; begin += {BLOCK}) {{",
            f"  const i64 end = begin + {BLOCK} < a.extent[{k}] ? begin + {BLOCK} : a.extent[{k}];",
            f"  {total} sum = {{}};",
            "  for (i64 j = begin; j < end; ++j) {",
            *(f"    {line}" for line in inner),
            "  }",
            "  total = total + sum;",
            "}",
            f"ok_store{suffix}(p2, {text});",
        ]
        return [
            f"const i64 n = {self.extent(self.kept)};",
            "for (i64 i = ok_thread(); i < n; i += ok_threads()) {",
            *(f"  {line}" for line in body),
            "}",
        ]

    # *** reductions ***

    def rows(self) -> list[str]:
        """Each warp takes rows in turns of the whole grid."""
        lines = [
            f"const i64 rows = {self.extent(self.kept)};",
            f"const i64 n = {self.extent(list(self.kernel.reduced))};",
            f"const i64 warp = ok_thread() / {ACCUMULATORS}, lane = threadIdx.x % {ACCUMULATORS};",
            f"const i64 warps = ok_threads() / {ACCUMULATORS};",
        ]
        if self.kernel.folded is not None:
            lines.append(f"const i64 folded = (i64)a.scalar[{self.kernel.folded}];")
            lines.append("const i64 most = folded > n ? folded : n;")
        lines.append("for (i64 r = warp; r < rows; r += warps) {")
        used = sorted({*self.touched("row"), *self.touched("loop")})
        body = [*self.indices("r", self.kept), *self.pointers("p", "a.ptr[{}]", used, self.kept)]
        for section in self.kernel.sections:
            if section.kind == "row":
                body += self.row(section)
            elif section.kind == "loop":
                body += self.loop(section)
        return [*lines, *(f"  {line}" for line in body), "}"]

    def row(self, section: k.Section) -> list[str]:
        """All threads of the warp compute a row's values, its first one stores them."""
        lines = self.plain(section, "p{}")
        lines = [f"if (lane == 0) {t}" if t.startswith("ok_store") else t for t in lines]
        stores = any(isinstance(s, k.Store) for s in section.body)
        return [*lines, *(["__syncwarp();"] if stores else [])]

    def loop(self, section: k.Section) -> list[str]:
        """The columns, 32 at a time; where floats add up, by blocks.

        Stores beside folds fill scratch, which has room for as many columns as either has.
        """
        folds = [s for s in section.body if isinstance(s, k.Accumulate)]
        blocked = [f for f in folds if is_blocked(self.kernel, f)]
        columns = list(self.kernel.reduced)
        n = "most" if folds and self.kernel.folded is not None else "n"
        used = sorted({s.operand for s in section.body if isinstance(s, (k.Load, k.Store))})
        inner = [
            *self.indices("j", columns),
            *self.pointers("q", "p{}", used, columns),
            *self.plain(section, "q{}"),
        ]
        inner = [f"  {line}" for line in inner]
        lines = [line for f in folds for line in self.start(f)]
        if blocked:
            end = f"{n} - begin < {BLOCK} ? {n} : begin + {BLOCK}"
            head = f"for (i64 j = begin + lane; j < end; j += {ACCUMULATORS}) {{"
            body = [f"const i64 end = {end};", head, *inner, "}"]
            closing = [line for f in blocked for line in self.close(f)]
            if self.kernel.folded is not None:
                closing = ["if (begin < folded) {", *(f"  {line}" for line in closing), "}"]
            lines.append(f"for (i64 begin = 0; begin < {n}; begin += {BLOCK}) {{")
            lines += [*(f"  {line}" for line in (*body, *closing)), "}"]
        else:
            lines += [f"for (i64 j = lane; j < {n}; j += {ACCUMULATORS}) {{", *inner, "}"]
        if any(isinstance(s, k.Store) for s in section.body):
            lines.append("__syncwarp();")
        return [*lines, *(self.total(f) for f in folds)]

    def start(self, fold: k.Accumulate) -> list[str]:
        """What a thread folds into."""
        kind = vector(folded(self.kernel, fold))
        lines = [f"{kind} a{fold.value} = {self.identity(fold)};"]
        if REDUCTIONS[fold.row].finds:
            lines.append(f"vi64 at{fold.value} = {{}};")
        if is_blocked(self.kernel, fold):
            lines.append(f"ok_pairs<{kind}, ok_{fold.row}_op> b{fold.value};")
            lines.append(f"b{fold.value}.blocks = 0;")
        return lines

    def close(self, fold: k.Accumulate) -> list[str]:
        """Add up a block."""
        return [
            f"b{fold.value}.add(ok_total<ok_{fold.row}_op>(a{fold.value}));",
            f"a{fold.value} = {self.identity(fold)};",
        ]

    def total(self, fold: k.Accumulate) -> str:
        """The row's value, from those of the threads."""
        if is_blocked(self.kernel, fold):
            text = f"b{fold.value}.sum()"
        elif REDUCTIONS[fold.row].finds:
            text = f"ok_found<ok_{fold.row}_op>(a{fold.value}, at{fold.value})"
        else:
            text = f"ok_total<ok_{fold.row}_op>(a{fold.value})"
        return f"const auto v{fold.value} = {settled(self.kernel, fold, text, self.columns)};"

    def identity(self, fold: k.Accumulate) -> str:
        kind = vector(folded(self.kernel, fold))
        return f"ok_c<{kind}>({identity_of(self.kernel, fold)})"
