"""What every printer of C++ needs: a statement, constant or dtype in, its text out."""

from __future__ import annotations

from abc import ABC, abstractmethod

from opkiln.ops.dtypes import dtype_row
from opkiln.ops.record import record
from opkiln.ops.table import REDUCTIONS
from opkiln.runtime import kernel as k
from opkiln.runtime.bodies import comments, expression, literal, scalar, splat, stored
from opkiln.runtime.folds import ACCUMULATORS, folded, identity_of, settled, vector

LONG_BLOCK = 2048  # of folds that only find: 64 steps, which any integer counts


@record
class Job:
    """One kernel to print: its symbol, and its operands' classes along the axis of the vectors.

    One letter per operand: C contiguous, Z zero stride, G general. They speak of the columns; after
    a leading "r" they speak of the rows, and the kernel reduces a panel of neighbouring rows at a
    time; H is scratch, which then holds such a panel. Elementwise kernels have C alone, and tell
    the zero stride by themselves.
    """

    symbol: str
    kernel: k.Kernel
    classes: str

    @property
    def by_rows(self) -> bool:
        """Whether vectors run across rows."""
        return self.classes.startswith("r")

    @property
    def letters(self) -> str:
        """One class letter per operand."""
        return self.classes.removeprefix("r")


def reads(section: k.Section) -> set[int]:
    """Values that the section's statements use."""
    result: set[int] = set()
    for s in section.body:
        match s:
            case k.Apply(_, _, args):
                result.update(args)
            case k.Convert(_, arg) | k.Accumulate(_, _, arg) | k.Store(_, arg):
                result.add(arg)
            case _:
                pass
    return result


def lanes(kernel: k.Kernel, vector_bytes: int) -> int:
    """Lanes so that the widest value of a loop fills a vector.

    At least 4; 32 are enough for a fold, and what folds to a row's value may be wider.
    """
    if kernel.product:  # its vectors are those of the machine, however many lanes others have
        return vector_bytes
    looped = {
        value
        for section in kernel.sections
        if section.kind == "loop"
        for value in (*reads(section), *(_made(s) for s in section.body))
    }
    widest = max((dtype_row(kernel.dtypes[v]).lane for v in looped if v >= 0), default=8)
    lanes = max(vector_bytes // widest, 4)
    folds = any(isinstance(s, k.Accumulate) for s in kernel.statements())
    return min(lanes, ACCUMULATORS) if folds else lanes


def _made(s: k.Statement) -> int:
    """The value that a statement of a loop makes there, or -1."""
    return -1 if isinstance(s, (k.Store, k.Accumulate)) else s.value


class Printer(ABC):
    """What both printers share: which values live where, and how leaves and operands are read."""

    row_suffix = ""  # of a row value's declaration

    def __init__(self, job: Job, width: int) -> None:
        self.kernel, self.classes, self.name = job.kernel, job.letters, job.symbol
        self.lanes = width
        self.title = f"// {job.symbol} {job.classes}"
        self.dtypes = job.kernel.dtypes
        self.folds = [s for s in self.kernel.statements() if isinstance(s, k.Accumulate)]
        self.leaves: dict[int, k.Param | k.Const] = {}
        self.row_values: dict[int, str] = {}  # values that live in the state, with their type
        self.finding = [f for f in self.folds if REDUCTIONS[f.row].finds]
        self.faulting = any("fault" in expression(self.kernel, s) for s in self.kernel.statements())
        for section in self.kernel.sections:
            for s in section.body:
                if isinstance(s, (k.Param, k.Const)):
                    self.leaves[s.value] = s
                elif isinstance(s, k.Accumulate) or (
                    section.kind != "loop" and not isinstance(s, k.Store)
                ):
                    self.row_values[s.value] = vector(self.dtypes[s.value])

    @abstractmethod
    def fold_type(self, fold: k.Accumulate) -> str:
        """The type of a fold's accumulators."""

    @abstractmethod
    def loop(self, index: int, section: k.Section) -> list[str]:
        """The function of one column loop."""

    @abstractmethod
    def entry(self) -> list[str]:
        """The function that the runtime calls."""

    def text(self) -> str:
        """The whole kernel: a state struct, a function per column loop, the entry."""
        loops = [s for s in self.kernel.sections if s.kind == "loop"]
        parts = [self.title, *comments(self.kernel), *self.state()]
        for i, section in enumerate(loops):
            parts += self.loop(i, section)
        return "\n".join(parts + self.entry())

    def state(self) -> list[str]:
        """What passes between the entry and the column loops."""
        lines = [f"struct {self.name}_state {{", "  const u64 *scalar;"]
        lines += [f"  {kind} v{v}{self.row_suffix};" for v, kind in self.row_values.items()]
        lines += [f"  {self.fold_type(f)} a{f.value};" for f in self.folds]
        lines += ["  ok_fault_t fault;"] if self.faulting else []
        lines += ["  i64 seen;"] if self.finding else []  # steps or columns before a loop's call
        return [*lines, "};"]

    def folded(self, fold: k.Accumulate) -> str:
        """The type of what the fold combines."""
        return vector(folded(self.kernel, fold))

    def pieces(self, used: list[int], body: list[str], closing: list[str], block: int) -> list[str]:
        """The body for each piece of the columns: m of them from column j on, at the pointers q.

        A piece ends with its run of columns and, unless `block` is 0, with a block.
        """
        ends = ["m = a->run - near;", "if (n - j < m) m = n - j;"]
        if block:
            ends.append(f"if ({block} - j % {block} < m) m = {block} - j % {block};")
        if len(closing) > 1:
            closing = ["{", *(f"  {line}" for line in closing), "}"]
        return [
            "for (i64 j = 0, m; j < n; j += m) {",
            "  const i64 far = j < a->run ? 0 : j / a->run, near = j - far * a->run;",
            *(f"  {line}" for line in ends),
            f"  char *q[{max(len(self.kernel.operands), 1)}];",
            *(f"  q[{o}] = p[{o}] + far * a->far[{o}] + near * a->col[{o}];" for o in used),
            "  if (a->run < n) {  // the hardware does not look from run to run",
            "    for (int line = 0; line < 512; line += 64) {",
            *(
                f"      __builtin_prefetch(q[{o}] + a->far[{o}] + line);"
                for o in used
                if self.classes[o] == "C" and not self.kernel.operands[o].write
            ),
            "    }",
            "  }",
            *(f"  {line}" for line in body),
            *([f"  if ((j + m) % {block} == 0 || j + m == n) {closing[0]}"] if closing else []),
            *(f"  {line}" for line in closing[1:]),
            "}",
        ]

    def settled(self, fold: k.Accumulate, total: str) -> str:
        """The fold's result from its accumulators' total."""
        return settled(self.kernel, fold, total, "n")

    def counted(self, section: k.Section, walk: list[str]) -> list[str]:
        """The walk, which ends with the folds' totals, over the columns that they are to count.

        What the loop stores is needed for every column: it is stored first, the totals thrown away.
        """
        if self.kernel.folded is None or not any(s in section.body for s in self.folds):
            return walk
        lines = ["{", "  const i64 n = folded;", *(f"  {line}" for line in walk), "}"]
        if any(isinstance(s, k.Store) for s in section.body):
            lines = ["if (folded != n) {", *(f"  {line}" for line in walk), "}", *lines]
        return lines

    def identity_of(self, fold: k.Accumulate) -> str:
        """The scalar that idle accumulators hold."""
        return identity_of(self.kernel, fold)

    def leaf(self, s: k.Param | k.Const) -> str:
        """A parameter or constant as a vector."""
        if isinstance(s, k.Const):
            return literal(s.constant)
        dtype = self.dtypes[s.value]
        if dtype.kind == "b":
            return f"ok_splat_bool((u8)st.scalar[{s.slot}])"
        kind = scalar(dtype)
        return f"ok_splat<{kind}>(*(const ok_vec<{kind}>::one *)(st.scalar + {s.slot}))"

    def splat(self, operand: int, at: str) -> str:
        """One element of an operand in all lanes."""
        return splat(self.kernel.operands[operand].dtype, at)

    def stored(self, operand: int, arg: int) -> tuple[str, str]:
        """Suffix of the store function and the value for an operand."""
        return stored(self.kernel.operands[operand].dtype, f"v{arg}")

    def row_expression(self, s: k.Apply | k.Convert) -> str:
        """The right-hand side of a row value; booleans as byte masks, as the state has them."""
        text = expression(self.kernel, s)
        return f"ok_mask<i8>({text})" if self.dtypes[s.value].kind == "b" else text

    def touched(self, section: k.Section) -> list[int]:
        """Operands that a section loads or stores."""
        return sorted({s.operand for s in section.body if isinstance(s, (k.Load, k.Store))})

    def fault_in(self) -> list[str]:
        """The fault accumulator as a local."""
        return ["ok_fault_t fault = st.fault;"] if self.faulting else []

    def fault_out(self) -> list[str]:
        """... and back."""
        return ["st.fault = fault;"] if self.faulting else []

    def entry_head(self) -> list[str]:
        """Signature and state of the entry function."""
        count = max(len(self.kernel.operands), 1)
        state = f"{self.name}_state"
        lines = [
            f'extern "C" __attribute__((visibility("default"))) u64 {self.name}('
            "const ok_args *a, i64 row_begin, i64 row_end) {",
        ]
        if self.kernel.reduced:
            lines += [
                f"  if (!a) return ok_place<{state}>::scratch{self.more_scratch()};",
                f"  ok_place<{state}> place;",
                f"  {state} &st = place.at(a->scratch);",
            ]
        else:
            lines.append(f"  {state} st;")
        lines += [
            "  st.scalar = a->scalar;",
            "  const i64 n = a->cols;",
            f"  char *moved[{count}], *const *p = a->ptr;",
        ]
        if self.kernel.folded is not None:
            lines.append(f"  const i64 folded = *(const i64 *)(a->scalar + {self.kernel.folded});")
        return [*lines, *(["  st.fault = ok_fault_t{};"] if self.faulting else [])]

    def more_scratch(self) -> str:
        """What is added to the scratch that the state takes; `row_begin` is the columns."""
        return ""

    def entry_tail(self) -> list[str]:
        """Return of the fault bits."""
        return [f"  return ok_leave({'ok_fault_bits(st.fault)' if self.faulting else '0'});", "}"]
