"""What every printer of C++ needs: a statement, constant or dtype in, its text out."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cache

import numpy as np

from opkiln.ops.dtypes import dtype_row
from opkiln.ops.record import record
from opkiln.ops.table import ELEMENTWISE, REDUCTIONS
from opkiln.runtime import kernel as k

# A fold has 32 accumulators whatever the vector width: element i goes to accumulator i % 32. Float
# sums close a block after 512 elements and add blocks pairwise, which keeps the error within
# NumPy's bound.
ACCUMULATORS = 32
BLOCK = 512

# os.path: pathlib takes 4 ms to import.
_HEADERS = os.path.join(os.path.dirname(__file__), "..", "..", "native", "include", "opkiln")  # noqa: PTH118, PTH120


@record
class Job:
    """One kernel to print: its symbol, and its operands' classes along the axis of the vectors.

    One letter per operand: C contiguous, Z zero stride, G general. They speak of the columns; after
    a leading "r" they speak of the rows, and the kernel reduces a panel of neighbouring rows at a
    time.
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


@cache
def sections(name: str = "bodies.h") -> dict[str, tuple[tuple[str, ...], str]]:
    """The bodies header as name -> (sections it needs, text)."""
    with open(os.path.join(_HEADERS, name), encoding="utf-8") as file:  # noqa: PTH118, PTH123
        text = file.read()
    result: dict[str, tuple[tuple[str, ...], str]] = {}
    for chunk in re.split(r"^//@ ", text, flags=re.MULTILINE)[1:]:
        head, _, body = chunk.partition("\n")
        title, _, needs = head.partition(":")
        result[title.strip()] = (tuple(needs.split()), body)
    return result


@cache
def functions() -> dict[str, str]:
    """Which section defines each op body."""
    return {
        name: title
        for title, (_, body) in sections().items()
        for name in re.findall(r"OK_FN [^;{(]*?\b(ok_\w+)\(", body)
    }


def closure(text: Iterable[str]) -> list[str]:
    """Names of the sections that these texts use, each after what it needs; core first."""
    table, home = sections(), functions()
    order: list[str] = ["core"]
    wanted = sorted({home[m] for t in text for m in re.findall(r"\bok_\w+", t) if m in home})
    stack = list(reversed(wanted))
    while stack:
        name = stack[-1]
        missing = [d for d in table[name][0] if d not in order]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        if name not in order:
            order.append(name)
    return order


def lanes(kernel: k.Kernel, vector_bytes: int) -> int:
    """Lanes so that the widest value fills a vector; at least 4, and 32 are enough for a fold."""
    widest = max((d.itemsize for d in kernel.dtypes), default=8)
    lanes = max(vector_bytes // widest, 4)
    folds = any(isinstance(s, k.Accumulate) for s in kernel.statements())
    return min(lanes, ACCUMULATORS) if folds else lanes


def expression(kernel: k.Kernel, s: k.Statement) -> str:
    """The right-hand side of a computing statement, with v<i> for values."""
    match s:
        case k.Apply(_, name, args):
            kinds = [kernel.dtypes[a].kind for a in args]
            mixed = "".join(kinds) if len(set(kinds)) > 1 and kinds[0] != "b" else kinds[0]
            return ELEMENTWISE[name].body(mixed).format(*(f"v{a}" for a in args), f="fault")
        case k.Convert(value, arg):
            source, target = kernel.dtypes[arg], kernel.dtypes[value]
            if source == target:
                return f"v{arg}"
            if source.kind == "b":
                return f"ok_cast_from_bool<{scalar(target)}>(v{arg})"
            return (
                f"ok_to_bool(v{arg})"
                if target.kind == "b"
                else f"ok_cast<{scalar(target)}>(v{arg})"
            )
        case k.Const(_, constant):
            return literal(constant)
        case k.Accumulate(_, name, _):
            return REDUCTIONS[name].combine.format("a", "b")
        case _:
            return ""


def combiner(row: str) -> str:
    """The reduction's combining step as a type."""
    body = REDUCTIONS[row].combine.format("a", "b")
    function = f"template <class V> OK_FN V f(V a, V b) {{ return {body}; }}"
    return f"struct ok_{row}_op {{\n  {function}\n}};\n"


def scalar(dtype: k.DT) -> str:
    return dtype_row(dtype).cxx


def vector(dtype: k.DT) -> str:
    """The type of a value that outlives its section: booleans as byte masks."""
    return "vi8" if dtype.kind == "b" else f"v{scalar(dtype)}"


def literal(constant: np.generic) -> str:
    """A constant by its bits, so that -0.0, inf and NaN payloads survive."""
    if constant.dtype.kind == "b":
        return f"ok_splat_bool({int(constant)})"
    kind = scalar(constant.dtype)
    bits = int.from_bytes(constant.tobytes(), "little")
    if constant.dtype.kind == "f":
        suffix = "u" if constant.dtype.itemsize == 4 else "ul"
        return f"ok_splat<{kind}>(__builtin_bit_cast({kind}, {bits:#x}{suffix}))"
    return f"ok_splat<{kind}>(({kind}){bits}ul)"


def identity(row: str, dtype: k.DT) -> str:
    """The scalar that fills idle lanes: -0.0 for a float sum, since x + -0.0 is x for every x."""
    if REDUCTIONS[row].identity == "zero":
        return "-0.0" if dtype.kind == "f" else "0"
    if dtype.kind == "f":
        return "-__builtin_inf()"
    return (
        str(np.iinfo(dtype.name).min)
        if dtype.itemsize < 8 or dtype.kind == "u"
        else "(-0x7fffffffffffffffl - 1)"
    )


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


def is_ordered(kernel: k.Kernel, fold: k.Accumulate) -> bool:
    """Whether the order of the fold shows in its bits: of rounding combinations alone."""
    return REDUCTIONS[fold.row].exactness != "exact" and kernel.dtypes[fold.value].kind == "f"


def is_blocked(kernel: k.Kernel, fold: k.Accumulate) -> bool:
    """Whether the fold adds floats, and so closes blocks to bound its error."""
    return REDUCTIONS[fold.row].combine == "{0} + {1}" and kernel.dtypes[fold.value].kind == "f"


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
        parts = [*self.header(), *self.state()]
        for i, section in enumerate(loops):
            parts += self.loop(i, section)
        return "\n".join(parts + self.entry())

    def state(self) -> list[str]:
        """What passes between the entry and the column loops."""
        lines = [f"struct {self.name}_state {{", "  const u64 *scalar;"]
        lines += [f"  {kind} v{v}{self.row_suffix};" for v, kind in self.row_values.items()]
        lines += [f"  {self.fold_type(f)} a{f.value};" for f in self.folds]
        lines += ["  ok_fault_t fault;"] if self.faulting else []
        return [*lines, "};"]

    def header(self) -> list[str]:
        """The kernel's statements as comments.

        What a plan binds to the kernel stays out: it is no part of the text.
        """
        lines = [self.title]
        for section in self.kernel.sections:
            lines.append(f"//   {section.kind}:")
            lines += [f"//     {self.kernel.show(s)}" for s in section.body]
        return lines

    def identity_of(self, fold: k.Accumulate) -> str:
        """The scalar that idle accumulators hold."""
        return identity(fold.row, self.dtypes[fold.value])

    def settled(self, fold: k.Accumulate, total: str, kind: str) -> str:
        """The fold's result from its accumulators' total."""
        if not is_ordered(self.kernel, fold):
            total = f"ok_settle({total})"
        if REDUCTIONS[fold.row].identity == "zero":  # +0 for no element, whatever fills idle lanes
            total = f"n ? {total} : {kind}{{}}"
        return total

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
        dtype = self.kernel.operands[operand].dtype
        if dtype.kind == "b":
            return f"ok_splat_bool(*(const u8 *)({at}))"
        kind = scalar(dtype)
        return f"ok_splat<{kind}>(*(const ok_vec<{kind}>::one *)({at}))"

    def stored(self, operand: int, arg: int) -> tuple[str, str]:
        """Suffix of the store function and the value for an operand."""
        return ("_bool" if self.kernel.operands[operand].dtype.kind == "b" else ""), f"v{arg}"

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
        lines = [
            f'extern "C" __attribute__((visibility("default"))) u64 {self.name}('
            "const ok_args *a, i64 row_begin, i64 row_end) {",
            f"  {self.name}_state st;",
            "  st.scalar = a->scalar;",
            "  const i64 n = a->cols;",
            f"  char *moved[{count}], *const *p = a->ptr;",
        ]
        return [*lines, *(["  st.fault = ok_fault_t{};"] if self.faulting else [])]

    def entry_tail(self) -> list[str]:
        """Return of the fault bits."""
        return [f"  return {'ok_fault_bits(st.fault)' if self.faulting else '0'};", "}"]
