"""A reduction in, the text of one whose vectors run across rows out.

A panel of neighbouring rows walks the columns together. This is for reductions of leading axes,
where rows lie side by side in memory and columns are far apart, and for very short rows. Every row
folds in the order of the column printer, so both give the same bits.
"""

from __future__ import annotations

from opkiln.ops.table import REDUCTIONS
from opkiln.runtime import kernel as k
from opkiln.runtime.emit_cpp.text import (
    ACCUMULATORS,
    BLOCK,
    Job,
    Printer,
    expression,
    is_blocked,
    is_ordered,
    reads,
    scalar,
)

# A panel is this wide: memory is read in whole pages, which the hardware prefetches best, and the
# 32 accumulators of its rows stay in the second-level cache.
PANEL_BYTES = 4096
SHORT_VECTORS = 4  # of rows so short that not all accumulators are used: all stay in the first
# Columns whose elements an accumulator takes in one go: its load and store cost little beside, and
# the hardware still follows as many streams.
TOGETHER = 8


class PanelPrinter(Printer):
    """Row values are arrays of `width` vectors, one lane per row."""

    def __init__(self, job: Job, width: int) -> None:
        super().__init__(job, width)
        ordered = [
            sum(isinstance(s, k.Accumulate) and is_ordered(self.kernel, s) for s in section.body)
            for section in self.kernel.sections
        ]
        widest = max(d.itemsize for d in self.dtypes)
        room = PANEL_BYTES // (self.lanes * widest * max(*ordered, 1))
        self.width = max(1 << room.bit_length() - 1, SHORT_VECTORS)
        self.row_suffix = f"[{self.width}]"

    def fold_type(self, fold: k.Accumulate) -> str:
        """The accumulators of a panel."""
        kind = self.folded(fold)
        if fold in self.finding:
            return f"ok_find_panel<{kind}, {self.width}, ok_{fold.row}_op>"
        if not is_ordered(self.kernel, fold):
            return f"ok_panel<{kind}, {self.width}, 1, ok_{fold.row}_op>"
        name = "ok_blocked_panel" if is_blocked(self.kernel, fold) else "ok_panel"
        return f"{name}<{kind}, {self.width}, {ACCUMULATORS}, ok_{fold.row}_op>"

    def state(self) -> list[str]:
        """Folds of different loops share their memory; `w` counts the vectors of this panel."""
        lines = super().state()
        own = {f"  {self.fold_type(f)} a{f.value};" for f in self.folds}
        kept = [line for line in lines if line not in own]
        shared = ["  i64 w;", "  union {"]
        for section in self.kernel.sections:
            folds = [s for s in section.body if isinstance(s, k.Accumulate)]
            if folds:
                inner = " ".join(f"{self.fold_type(f)} a{f.value};" for f in folds)
                shared.append(f"    struct {{ {inner} }};")
        return [*kept[:-1], *shared, "  };", kept[-1]]

    def leaves_of(self, section: k.Section) -> list[str]:
        """Parameters and constants that the section reads."""
        return [
            f"const auto v{value} = {self.leaf(self.leaves[value])};"
            for value in sorted(reads(section))
            if value in self.leaves
        ]

    def row_inputs(self, section: k.Section) -> list[str]:
        """Row values that the section reads, for vector u."""
        own = {s.value for s in section.body if not isinstance(s, k.Store)}
        return [
            f"const auto v{value} = st.v{value}[u];"
            for value in sorted(reads(section))
            if value in self.row_values and value not in own
        ]

    def statement(self, s: k.Statement, kind: str) -> str:
        """One statement for vector u, of which `left` rows are live."""
        keep = "" if kind == "loop" else " = st.v{0}[u]"
        match s:
            case k.Load(value, o):
                return f"const auto v{value}{keep.format(value)} = {self.load(o)};"
            case k.Store(o, arg):
                suffix, text = self.stored(o, arg)
                if self.classes[o] == "C":
                    return f"ok_store_part{suffix}(q{o}, {text}, left);"
                return f"ok_scatter_part{suffix}(q{o}, r{o}, {text}, left);"
            case k.Accumulate(value, row, arg) if s in self.finding:
                here = f"ok_c<IVec<{self.folded(s)}>>(j)"
                return f"ok_find_next<ok_{row}_op>(a{value}, s{value}, v{arg}, {here});"
            case k.Accumulate(value, row, arg):
                return f"a{value} = {REDUCTIONS[row].combine.format(f'a{value}', f'v{arg}')};"
            case k.Apply(value) | k.Convert(value):
                text = expression(self.kernel, s) if kind == "loop" else self.row_expression(s)
                return f"const auto v{value}{keep.format(value)} = {text};"
            case _:
                return ""

    def at(self, o: int) -> str:
        """Address of an operand's vector u."""
        match self.classes[o]:
            case "Z":
                return f"p{o}"
            case "C":
                return f"p{o} + u * OK_N * {self.kernel.operands[o].dtype.itemsize}"
            case _:
                return f"p{o} + u * OK_N * r{o}"

    def load(self, o: int) -> str:
        """Vector u of an operand; one element for all rows when it is broadcast along them."""
        if self.classes[o] == "Z":
            return self.splat(o, f"q{o}")
        dtype = self.kernel.operands[o].dtype
        kind = "_bool" if dtype.kind == "b" else f"<{scalar(dtype)}>"
        if self.classes[o] == "C":
            return f"ok_load_part{kind}(q{o}, left)"
        return f"ok_gather_part{kind}(q{o}, r{o}, left)"

    def pointers(self, used: list[int]) -> list[str]:
        """First elements of the panel, and the strides between rows where they vary."""
        lines = [f"char *const p{o} = p[{o}];" for o in used]
        return lines + [f"const i64 r{o} = rs[{o}];" for o in used if self.classes[o] == "G"]

    def accumulator(self, fold: k.Accumulate) -> str:
        """Where the accumulator of column k lies."""
        place = "k % 32 * st.w + u" if is_ordered(self.kernel, fold) else "u"
        return f"st.a{fold.value}.acc[{place}]"

    # *** one column loop ***

    def loop(self, index: int, section: k.Section) -> list[str]:
        """`count` columns from column k on, `cs` apart, for the whole vectors or the last part."""
        used = self.touched(section)
        folds = [s for s in section.body if isinstance(s, k.Accumulate)]
        lines = [
            "template <bool Whole>",
            f"static OK_OPAQUE void {self.name}_loop{index}("
            "char *const *p, const i64 *rs, const i64 *cs, i64 k, i64 count, i64 live, "
            f"{self.name}_state &st) {{",
        ]
        lines += [f"  {line}" for line in self.pointers(used)]
        lines += [f"  const i64 c{o} = cs[{o}];" for o in used]
        lines += [f"  {line}" for line in self.leaves_of(section) + self.fault_in()]
        lines.append("  const i64 begin = Whole ? 0 : live / OK_N;")
        lines.append("  const i64 end = Whole ? live / OK_N : begin + 1;")
        lines.append("  for (i64 u = begin; u < end; ++u) {")
        lines.append("    const i64 left = Whole ? OK_N : live - u * OK_N;")
        lines += [f"    {line}" for line in self.row_inputs(section)]
        lines += [f"    char *q{o} = {self.at(o)};" for o in used]
        for f in folds:
            kind, own = self.folded(f), self.accumulator(f)
            if f in self.finding:
                lines.append(f"    IVec<{kind}> s{f.value} = {{}};")
                own = f"ok_c<{kind}>({self.identity_of(f)})"
            if is_blocked(self.kernel, f):  # the first columns of a block find it unset
                own = f"k < {ACCUMULATORS} ? ok_c<{kind}>({self.identity_of(f)}) : {own}"
            lines.append(f"    {kind} a{f.value} = {own};")
        lines.append("    for (i64 j = 0; j < count; ++j) {")
        lines += [f"      {line}" for s in section.body if (line := self.statement(s, "loop"))]
        lines += [f"      q{o} += c{o};" for o in used]
        lines.append("    }")
        for f in folds:
            v, found = f.value, f"st.seen + k, {self.apart(section)}"
            if f in self.finding:
                lines.append(f"    st.a{v}.merge(u, a{v}, s{v}, {found});")
            else:
                lines.append(f"    {self.accumulator(f)} = a{v};")
        lines.append("  }")
        return [*lines, *(f"  {line}" for line in self.fault_out()), "}"]

    def entry(self) -> list[str]:
        """Panels of rows, and in each the sections in order."""
        count = len(self.kernel.operands)
        lines = self.entry_head()
        lines += [
            "  const i64 *const rs = a->row;",
            f"  const i64 span = (n < {ACCUMULATORS} ? {SHORT_VECTORS} : {self.width}) * OK_N;",
            "  for (i64 r = row_begin; r < row_end; r += span) {",
            "    const i64 live = row_end - r < span ? row_end - r : span;",
            "    st.w = (live + OK_N - 1) / OK_N;",
            f"    for (int i = 0; i < {count}; ++i) moved[i] = a->ptr[i] + r * rs[i];",
            "    p = moved;",
        ]
        index = 0
        for section in self.kernel.sections:
            if section.kind == "loop":
                walk = self.counted(section, self.walk(index, section))
                lines += [f"    {line}" for line in walk]
                index += 1
            else:  # values of a call are the same for every row: per panel they cost nothing
                lines += [f"    {line}" for line in self.rowwise(section)]
        return [*lines, "  }", *self.entry_tail()]

    def rowwise(self, section: k.Section) -> list[str]:
        """A row section for all vectors of the panel."""
        used = self.touched(section)
        lines = ["{", *(f"  {line}" for line in self.pointers(used))]
        lines += [f"  {line}" for line in self.leaves_of(section) + self.fault_in()]
        lines += [
            "  for (i64 u = 0; u < st.w; ++u) {",
            "    const i64 left = live - u * OK_N;",
            *(f"    {line}" for line in self.row_inputs(section)),
            *(f"    char *const q{o} = {self.at(o)};" for o in used),
            *(f"    {line}" for s in section.body if (line := self.statement(s, section.kind))),
            "    (void)left;",
            "  }",
        ]
        return [*lines, *(f"  {line}" for line in self.fault_out()), "}"]

    def walk(self, index: int, section: k.Section) -> list[str]:
        """Run a column loop for the panel; float sums close a block every 512 columns."""
        folds = [s for s in section.body if isinstance(s, k.Accumulate)]
        blocked = [f for f in folds if is_blocked(self.kernel, f)]
        lines = [
            f"st.a{f.value}.start({self.identity_of(f)}, st.w);" for f in folds if f not in blocked
        ]
        lines += [f"st.a{f.value}.blocks = 0;" for f in blocked]
        step = f"n - j < {BLOCK} ? n - j : {BLOCK}" if blocked else "n"
        lines.append(f"for (i64 j = 0; j < n; j += {BLOCK if blocked else 'n'}) {{")
        lines.append(f"  const i64 m = {step};")
        lines += ["  st.seen = j;"] if any(f in self.finding for f in folds) else []
        lines += [f"  {line}" for line in self.columns(index, section)]
        lines += [f"  st.a{f.value}.close(m, st.w);" for f in blocked]
        lines.append("}")
        if folds:
            lines.append("for (i64 u = 0; u < st.w; ++u) {")
            lines += [f"  st.v{f.value}[u] = {self.total(f)};" for f in folds]
            lines.append("}")
        return lines

    def columns(self, index: int, section: k.Section) -> list[str]:
        """The m columns from column j on, TOGETHER at a time: those of one accumulator."""
        used, apart = self.touched(section), self.apart(section)
        size = max(len(self.kernel.operands), 1)
        lines = [f"char *q[{size}];", f"i64 cs[{size}];"]
        lines += [f"cs[{o}] = {apart} * a->col[{o}];" for o in used]
        lines += [
            f"for (i64 b = 0; b < m; b += {TOGETHER * apart}) {{",
            f"  for (i64 k = b; k < m && k < b + {apart}; ++k) {{",
            f"    const i64 rest = (m - k + {apart - 1}) / {apart};",
            f"    const i64 count = rest < {TOGETHER} ? rest : {TOGETHER};",
            *(f"    q[{o}] = p[{o}] + (j + k) * a->col[{o}];" for o in used),
        ]
        for whole, test in (("true", "live >= OK_N"), ("false", "live % OK_N")):
            call = f"{self.name}_loop{index}<{whole}>(q, rs, cs, k, count, live, st)"
            lines.append(f"    if ({test}) {call};")
        return [*lines, "  }", "}"]

    def apart(self, section: k.Section) -> int:
        """How far apart columns are that a loop takes one after the other."""
        folds = (s for s in section.body if isinstance(s, k.Accumulate))
        return ACCUMULATORS if any(is_ordered(self.kernel, f) for f in folds) else 1

    def total(self, fold: k.Accumulate) -> str:
        """The fold's result for vector u."""
        name = f"st.a{fold.value}"
        text = (
            f"{name}.sum(st.w, u)" if is_blocked(self.kernel, fold) else f"{name}.total(n, st.w, u)"
        )
        return self.settled(fold, text)
