"""A reduction in, the text of one whose vectors run across rows out.

A panel of neighbouring rows walks the columns together. This is for reductions of leading axes,
where rows lie side by side in memory and columns are far apart. Every row folds in the order of the
column printer, so both give the same bits.
"""

from __future__ import annotations

from opkiln.ops.table import REDUCTIONS
from opkiln.runtime import kernel as k
from opkiln.runtime.emit_cpp.text import (
    BLOCK,
    Printer,
    expression,
    is_blocked,
    reads,
    scalar,
    vector,
)

# Vectors per panel: 512 bytes of neighbouring rows per column keep the prefetcher useful.
VECTORS = 8


class PanelPrinter(Printer):
    """Row values are arrays of VECTORS vectors, one lane per row."""

    row_suffix = f"[{VECTORS}]"

    def fold_type(self, fold: k.Accumulate) -> str:
        """The accumulators of a panel."""
        return f"ok_panel<{vector(self.dtypes[fold.value])}, {VECTORS}, ok_{fold.row}_op>"

    def leaves_of(self, section: k.Section) -> list[str]:
        """Parameters and constants that the section reads."""
        return [
            f"const auto v{value} = {self.leaf(self.leaves[value])};"
            for value in sorted(reads(section))
            if value in self.leaves
        ]

    def vectors(self, section: k.Section) -> list[str]:
        """The section's statements for vector u of the panel, `left` rows from its first."""
        own = {s.value for s in section.body if not isinstance(s, k.Store)}
        lines = ["const i64 left = live - u * OK_N;"]
        for value in sorted(reads(section)):
            if value in self.row_values and value not in own:
                lines.append(f"const auto v{value} = st.v{value}[u];")
        lines += [line for s in section.body if (line := self.statement(s, section.kind))]
        return lines

    def statement(self, s: k.Statement, kind: str) -> str:
        """One statement for vector u."""
        keep = "" if kind == "loop" else " = st.v{0}[u]"
        match s:
            case k.Load(value, o):
                return f"const auto v{value}{keep.format(value)} = {self.load(o)};"
            case k.Store(o, arg):
                suffix, text = self.stored(o, arg)
                return f"ok_store_part{suffix}({self.at(o)}, {text}, left);"
            case k.Accumulate(value, row, arg):
                a = f"st.a{value}.acc[k & 31][u]"
                return f"{a} = {REDUCTIONS[row].combine.format(a, f'v{arg}')};"
            case k.Apply(value) | k.Convert(value):
                text = expression(self.kernel, s) if kind == "loop" else self.row_expression(s)
                return f"const auto v{value}{keep.format(value)} = {text};"
            case _:
                return ""

    def at(self, o: int) -> str:
        """Address of an operand's vector u."""
        return f"p{o} + u * OK_N * {self.kernel.operands[o].dtype.itemsize}"

    def load(self, o: int) -> str:
        """Vector u of an operand; one element for all rows when it is broadcast along them."""
        if self.classes[o] == "Z":
            return self.splat(o, f"p{o}")
        dtype = self.kernel.operands[o].dtype
        if dtype.kind == "b":
            return f"ok_load_part_bool({self.at(o)}, left)"
        return f"ok_load_part<{scalar(dtype)}>({self.at(o)}, left)"

    def loop(self, index: int, section: k.Section) -> list[str]:
        """The loop over `n` columns of one panel of `live` rows."""
        used = self.touched(section)
        loaded = sorted({s.operand for s in section.body if isinstance(s, k.Load)})
        lines = [
            f"static OK_OPAQUE void {self.name}_loop{index}("
            f"char *const *p, const i64 *cs, i64 n, i64 live, {self.name}_state &st) {{"
        ]
        lines += [f"  char *p{o} = p[{o}];" for o in used]
        # Columns far apart lie on pages of their own, where the hardware does not look ahead.
        fetched = [o for o in loaded if self.classes[o] == "C"]
        lines += [f"  const i64 ahead{o} = cs[{o}] < 2048 ? 0 : 4 * cs[{o}];" for o in fetched]
        lines += [f"  {line}" for line in self.leaves_of(section) + self.fault_in()]
        lines.append("  for (i64 k = 0; k < n; ++k) {")
        if fetched:
            lines.append("    for (i64 u = 0; u * OK_N < live; ++u) {")
            lines += [f"      __builtin_prefetch({self.at(o)} + ahead{o});" for o in fetched]
            lines.append("    }")
        lines += self.each_vector(section, "    ")
        lines += [f"    p{o} += cs[{o}];" for o in used]
        lines.append("  }")
        return [*lines, *(f"  {line}" for line in self.fault_out()), "}"]

    def each_vector(self, section: k.Section, indent: str) -> list[str]:
        """The section for all vectors of the panel that hold live rows."""
        return [
            f"{indent}for (i64 u = 0; u * OK_N < live; ++u) {{",
            *(f"{indent}  {line}" for line in self.vectors(section)),
            f"{indent}}}",
        ]

    def entry(self) -> list[str]:
        """Panels of rows, and in each the sections in order."""
        count = len(self.kernel.operands)
        lines = self.entry_head()
        lines.append(f"  for (i64 r = row_begin; r < row_end; r += {VECTORS} * OK_N) {{")
        lines.append(
            f"    const i64 live = row_end - r < {VECTORS} * OK_N ? row_end - r : {VECTORS} * OK_N;"
        )
        at_row = "moved[i] = a->ptr[i] + r * a->row[i];"
        lines += [f"    for (int i = 0; i < {count}; ++i) {at_row}", "    p = moved;"]
        index = 0
        for section in self.kernel.sections:
            if section.kind == "loop":
                lines += [f"    {line}" for line in self.walk(index, section)]
                index += 1
            else:  # values of a call are the same for every row: per panel they cost nothing
                lines += [f"    {line}" for line in self.rowwise(section)]
        return [*lines, "  }", *self.entry_tail()]

    def rowwise(self, section: k.Section) -> list[str]:
        """A row section for all vectors of the panel."""
        lines = ["{"]
        lines += [f"  char *const p{o} = p[{o}];" for o in self.touched(section)]
        lines += [f"  {line}" for line in self.leaves_of(section) + self.fault_in()]
        lines += self.each_vector(section, "  ")
        return [*lines, *(f"  {line}" for line in self.fault_out()), "}"]

    def walk(self, index: int, section: k.Section) -> list[str]:
        """Run a column loop for the panel; float sums close a block every 512 columns."""
        folds = [s for s in section.body if isinstance(s, k.Accumulate)]
        blocked = [f for f in folds if is_blocked(self.kernel, f)]
        lines = [f"st.a{f.value}.start({self.identity_of(f)});" for f in folds]
        call = f"{self.name}_loop{index}"
        if blocked:
            used = self.touched(section)
            lines.append(f"for (i64 j = 0; j < n; j += {BLOCK}) {{")
            lines.append(f"  char *q[{max(len(self.kernel.operands), 1)}];")
            lines += [f"  q[{o}] = p[{o}] + j * a->col[{o}];" for o in used]
            lines.append(f"  {call}(q, a->col, n - j < {BLOCK} ? n - j : {BLOCK}, live, st);")
            lines += [f"  st.a{f.value}.close_block({self.identity_of(f)});" for f in blocked]
            lines.append("}")
        else:
            lines.append(f"{call}(p, a->col, n, live, st);")
        if folds:
            lines.append(f"for (int u = 0; u < {VECTORS}; ++u) {{")
            for f in folds:
                total = (
                    f"st.a{f.value}.pairs[u].sum()" if f in blocked else f"st.a{f.value}.total(u)"
                )
                if REDUCTIONS[f.row].identity == "zero":
                    total = f"n ? {total} : {vector(self.dtypes[f.value])}{{}}"
                lines.append(f"  st.v{f.value}[u] = {total};")
            lines.append("}")
        return lines
