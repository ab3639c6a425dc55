"""A reduction in, the text of one whose vectors run across rows out.

A panel of neighbouring rows walks the columns together. This is for reductions of leading axes,
where rows lie side by side in memory and columns are far apart, and for very short rows. Every row
folds in the order of the column printer, so both give the same bits.
"""

from __future__ import annotations

from opkiln.ops.dtypes import dtype_row
from opkiln.ops.table import REDUCTIONS
from opkiln.runtime import kernel as k
from opkiln.runtime.bodies import expression, loaded
from opkiln.runtime.emit_cpp.text import Job, Printer, reads
from opkiln.runtime.folds import ACCUMULATORS, BLOCK, is_blocked, is_ordered

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
        widest = max(dtype_row(d).lane for d in self.dtypes)
        room = PANEL_BYTES // (self.lanes * widest * max(*ordered, 1))
        self.width = max(1 << room.bit_length() - 1, SHORT_VECTORS)
        self.row_suffix = f"[{self.width}]"
        # Scratch is a panel too: dense along its rows, whatever the runtime says of one row's.
        operands = self.kernel.operands
        held = {operands[o].buffer for o, c in enumerate(self.classes) if c == "H"}
        self.held = [o for o, operand in enumerate(operands) if operand.buffer in held]
        self.classes = "".join("C" if o in self.held else c for o, c in enumerate(self.classes))

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
        if self.classes[o] == "C":
            return loaded(dtype, "ok_load_part", f"q{o}, left")
        return loaded(dtype, "ok_gather_part", f"q{o}, r{o}, left")

    def pointers(self, used: list[int]) -> list[str]:
        """First elements of the panel, and the strides between rows where they vary."""
        lines = [f"char *const p{o} = p[{o}];" for o in used]
        return lines + [f"const i64 r{o} = rs[{o}];" for o in used if self.classes[o] == "G"]

    def accumulator(self, fold: k.Accumulate) -> str:
        """Where the accumulator of the columns at hand lies."""
        place = f"at.k % {ACCUMULATORS} * (st.w + 1) + u" if is_ordered(self.kernel, fold) else "u"
        return f"st.a{fold.value}.acc[{place}]"

    def ordered(self, section: k.Section) -> list[k.Accumulate]:
        """The section's folds whose order shows in their bits."""
        folds = [s for s in section.body if isinstance(s, k.Accumulate)]
        return [f for f in folds if is_ordered(self.kernel, f)]

    # *** one column loop ***

    def loop(self, index: int, section: k.Section) -> list[str]:
        """Some columns of the whole vectors of a panel, or of the last part of one."""
        used, ordered = self.touched(section), self.ordered(section)
        folds = [s for s in section.body if isinstance(s, k.Accumulate)]
        finding = [f for f in folds if f in self.finding]
        free = [f for f in folds if f not in ordered and f not in finding]
        apart = ACCUMULATORS if ordered else 1
        lines = [
            "template <bool Whole, int Leaves>",
            f"static OK_OPAQUE void {self.name}_loop{index}("
            f"char *const *p, const i64 *rs, const i64 *cs, ok_columns<{apart}, {TOGETHER}> at, "
            f"i64 live, {self.name}_state &st) {{",
        ]
        lines += [f"  {line}" for line in self.pointers(used)]
        lines += [f"  const i64 c{o} = cs[{o}];" for o in used]
        lines += [f"  {line}" for line in self.leaves_of(section) + self.fault_in()]
        lines.append("  const i64 begin = Whole ? 0 : live / OK_N;")
        lines.append("  const i64 end = Whole ? live / OK_N : begin + 1;")
        lines.append("  for (i64 u = begin; u < end; ++u) {")
        lines.append("    const i64 left = Whole ? OK_N : live - u * OK_N;")
        lines += [f"    {line}" for line in self.row_inputs(section)]
        for f in free:
            lines.append(f"    {self.folded(f)} a{f.value} = {self.accumulator(f)};")
        for f in ordered:  # what finds its accumulator unset starts from the identity
            unset = f"at.k < {ACCUMULATORS}" if is_blocked(self.kernel, f) else "Leaves > 1"
            start = f"{unset} ? {self.start_of(f)} : {self.accumulator(f)}"
            lines.append(f"    {self.folded(f)} a{f.value}_0 = {start};")
        taken = ", ".join(f"{self.folded(f)} &a{f.value}" for f in ordered)
        lines.append(
            f"    const auto leaf = [&]({', '.join(filter(None, ['i64 g', taken]))}) OK_INLINE {{"
        )
        lines += [f"      char *q{o} = {self.at(o)} + g * {apart} / Leaves * c{o};" for o in used]
        for f in finding:
            lines.append(f"      {self.folded(f)} a{f.value} = {self.start_of(f)};")
            lines.append(f"      IVec<{self.folded(f)}> s{f.value} = {{}};")
        lines.append(f"      const i64 count = at.count(g * {apart} / Leaves);")
        lines.append("      for (i64 j = 0; j < count; ++j) {")
        lines += [f"        {line}" for s in section.body if (line := self.statement(s, "loop"))]
        lines += [f"        q{o} += {apart} * c{o};" for o in used]
        lines.append("      }")
        at = f"at.column + g * {apart} / Leaves, {apart}"
        lines += [f"      st.a{f.value}.merge(u, a{f.value}, s{f.value}, {at});" for f in finding]
        lines.append("    };")
        lines.append(f"    leaf({', '.join(['0', *(f'a{f.value}_0' for f in ordered)])});")
        if ordered:
            lines.append("    if (Leaves > 1) {")
            lines += [f"      {self.folded(f)} a{f.value}_1 = {self.start_of(f)};" for f in ordered]
            lines.append(f"      leaf({', '.join(['1', *(f'a{f.value}_1' for f in ordered)])});")
            lines += [
                f"      a{f.value}_0 = ok_{f.row}_op::f(a{f.value}_0, a{f.value}_1);"
                for f in ordered
            ]
            lines.append("    }")
        lines += [f"    {self.accumulator(f)} = a{f.value}_0;" for f in ordered]
        lines += [f"    {self.accumulator(f)} = a{f.value};" for f in free]
        lines.append("  }")
        return [*lines, *(f"  {line}" for line in self.fault_out()), "}"]

    def entry(self) -> list[str]:
        """Panels of rows, and in each the sections in order."""
        count = len(self.kernel.operands)
        lines = self.entry_head()
        span = f"(n < {ACCUMULATORS} ? {SHORT_VECTORS} : {self.width}) * OK_N"
        lines += [
            "  const i64 *const rs = a->row;",
            f"  const i64 span = {span};",
            *(f"  {line}" for line in self.holding()),
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

    def more_scratch(self) -> str:
        """Room for the panels that are held: as many rows as a panel may have."""
        return f" + row_begin * {self.width} * OK_N * {self.bytes_held()}" if self.held else ""

    def bytes_held(self) -> int:
        """Of one row and column."""
        operands = self.kernel.operands
        return sum(operands[o].dtype.itemsize for o in self.held if operands[o].write)

    def holding(self) -> list[str]:
        """The arguments, with panels of scratch in place of the runtime's rows."""
        if not self.held:
            return []
        operands = self.kernel.operands
        count = len(operands)
        lines = [
            f"char *ptr[{count}];",
            f"i64 col[{count}], far[{count}];",
            f"for (int i = 0; i < {count}; ++i) "
            "ptr[i] = a->ptr[i], col[i] = a->col[i], far[i] = a->far[i];",
        ]
        at = f"a->scratch + ok_place<{self.name}_state>::scratch"
        begins: dict[int, str] = {}
        before = 0
        for o in self.held:
            operand = operands[o]
            size = operand.dtype.itemsize
            if operand.buffer not in begins:
                begins[operand.buffer] = f"{at} + n * span * {before}"
                before += size
            lines.append(
                f"ptr[{o}] = {begins[operand.buffer]}, col[{o}] = span * {size}, "
                f"far[{o}] = a->run * col[{o}];"
            )
        return [
            *lines,
            "const ok_args own = {ptr, a->row, col, a->scalar, a->cols, a->run, far, a->scratch};",
            "a = &own;",
        ]

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
        lines += ["i64 leaves = 1;"] if self.ordered(section) else []
        used = f"(leaves > 1 ? {ACCUMULATORS} / leaves : (j + m - 1) % {BLOCK} + 1, st.w)"
        closing = [f"st.a{f.value}.close{used};" for f in blocked]
        columns = self.columns(index, section)
        lines += self.pieces(self.touched(section), columns, closing, BLOCK if blocked else 0)
        if folds:
            lines.append("for (i64 u = 0; u < st.w; ++u) {")
            lines += [f"  st.v{f.value}[u] = {self.total(f)};" for f in folds]
            lines.append("}")
        return ["{", *(f"  {line}" for line in lines), "}"]

    def columns(self, index: int, section: k.Section) -> list[str]:
        """The m columns at the pointers q, a few of one or several accumulators at a time."""
        used, ordered = self.touched(section), self.ordered(section)
        apart, leaves, column = 1, "1", "i"
        lines = [f"char *t[{max(len(self.kernel.operands), 1)}];"]
        if ordered:
            apart, leaves, column = ACCUMULATORS, "leaves", f"j % {BLOCK} + i"
            # Only a piece that holds all columns of its accumulators may fold several at once.
            begins = all(is_blocked(self.kernel, f) for f in ordered)
            first = f"j % {BLOCK} == 0" if begins else "j == 0"
            lines.append(f"leaves = {first} && j + m == n ? ok_leaves(m) : 1;")
        lines += [
            f"for (i64 b = 0; b < m; b += {TOGETHER * apart}) {{",
            f"  for (i64 i = b; i < m && i < b + {apart} / {leaves}; ++i) {{",
            *(f"    t[{o}] = q[{o}] + i * a->col[{o}];" for o in used),
            f"    const ok_columns<{apart}, {TOGETHER}> at = {{{column}, j + i, m - i}};",
        ]
        call = "(t, rs, a->col, at, live, st);"
        for whole, test in (("true", "live >= OK_N"), ("false", "live % OK_N")):
            name = f"{self.name}_loop{index}<{whole}"
            one = test
            if ordered:
                lines.append(f"    if (leaves > 1 && {test}) {name}, 2>{call}")
                one = f"leaves == 1 && {test}"
            lines.append(f"    if ({one}) {name}, 1>{call}")
        return [*lines, "  }", "}"]

    def start_of(self, fold: k.Accumulate) -> str:
        """An accumulator that holds nothing yet."""
        return f"ok_c<{self.folded(fold)}>({self.identity_of(fold)})"

    def total(self, fold: k.Accumulate) -> str:
        """The fold's result for vector u."""
        name = f"st.a{fold.value}"
        if is_blocked(self.kernel, fold):
            text = f"{name}.sum(st.w, u)"
        elif is_ordered(self.kernel, fold):
            text = f"{name}.total(leaves > 1 ? {ACCUMULATORS} / leaves : n, st.w, u)"
        else:
            text = f"{name}.at[u]" if fold in self.finding else f"{name}.acc[u]"
        return self.settled(fold, text)
