"""A kernel in, the text of one whose vectors run along the columns out.

The text is a state struct, a function per column loop, and the entry.
"""

from __future__ import annotations

from opkiln.ops.table import REDUCTIONS
from opkiln.runtime import kernel as k
from opkiln.runtime.bodies import expression, loaded, memory, put
from opkiln.runtime.emit_cpp.text import LONG_BLOCK, Job, Printer, reads
from opkiln.runtime.folds import ACCUMULATORS, BLOCK, is_blocked

UNROLLED = 16  # operands whose row pointers are computed one by one
LONG_ROW = 4096  # elements from which a row begins with those before a cache line
GROUP = 4  # steps of a loop that stores less than it reads, taken together
SHORT_BODY = 8  # statements of a loop that may be printed so many times


class ColumnPrinter(Printer):
    """One row at a time; a loop takes a step of one vector, or of 32 elements when it folds."""

    def __init__(self, job: Job, width: int) -> None:
        super().__init__(job, width)
        self.step = ACCUMULATORS if self.folds else width
        self.vectors = self.step // width
        # What the loop of an elementwise kernel reads is dense, or one element for all lanes: all
        # else is packed by the runtime.
        self.spread: list[int] = []
        if not self.kernel.reduced:
            loops = [s for s in self.kernel.sections if s.kind == "loop"]
            touched = {o for section in loops for o in self.touched(section)}
            self.spread = sorted(o for o in touched if not self.kernel.operands[o].write)

    def fold_type(self, fold: k.Accumulate) -> str:
        """One row's accumulators."""
        name = "ok_find" if fold in self.finding else "ok_fold"
        return f"{name}<{self.folded(fold)}, {self.vectors}, ok_{fold.row}_op>"

    # *** one column loop ***

    def loop(self, index: int, section: k.Section) -> list[str]:
        """The loop over whole steps, of which `valid` elements count (fewer in the rest)."""
        walked = [o for o in self.touched(section) if self.classes[o] != "Z"]
        folds = [s for s in section.body if isinstance(s, k.Accumulate)]
        lines = [
            f"static OK_OPAQUE void {self.name}_loop{index}("
            f"char *const *p, const i64 *cs, i64 steps, i64 valid, {self.name}_state &st) {{"
        ]
        lines += [f"  char *p{o} = p[{o}];" for o in walked]
        lines += [
            f"  const i64 c{o} = cs[{o}];"
            for o in walked
            if self.classes[o] == "G" or o in self.spread
        ]
        lines += [f"  {line}" for line in self.prologue(section, folds)]
        lines += [f"  {line}" for line in self.grouped(section, walked)]
        lines.append("  for (; steps > 0; --steps) {")
        for at in range(self.vectors):
            body = [line for s in section.body if (line := self.element(s, at))]
            lines += ["    {", *(f"      {line}" for line in body), "    }"]
        lines += [f"    p{o} += {self.step} * {self.stride(o)};" for o in walked]
        found = [f.value for f in folds if f in self.finding]
        lines += [f"    here{v} += 1;" for v in found]
        lines.append("  }")
        for at in range(self.vectors):
            lines += [f"  st.a{f.value}.acc[{at}] = a{f.value}_{at};" for f in folds]
            lines += [f"  st.a{v}.step[{at}] = s{v}_{at};" for v in found]
        lines += [f"  st.seen = here{v}[0];" for v in found[:1]]
        lines += [f"  {line}" for line in self.fault_out()]
        return [*lines, "  (void)valid;", "}"]

    def grouped(self, section: k.Section, walked: list[int]) -> list[str]:
        """A loop over some steps at a time of what reads much and stores little, as tests do.

        Each operand is read for all of them first. Read in turns, two arrays are so far ahead of
        the stores that for some of their places in memory the hardware takes a seventh longer.
        """
        loads = [s for s in section.body if isinstance(s, k.Load)]
        stored = [s.operand for s in section.body if isinstance(s, k.Store)]
        wide = max((self.step * self.kernel.operands[o].dtype.itemsize for o in stored), default=64)
        count = min(GROUP, 64 // wide)
        if self.kernel.reduced or count < 2 or len(loads) != 2 or len(section.body) > SHORT_BODY:
            return []
        lines = [f"for (; steps >= {count}; steps -= {count}) {{"]
        for s in loads:
            for at in range(count):
                lines.append(f"  const auto r{s.value}_{at} = {self.load(s.operand, at)};")
            lines.append('  asm volatile("" : : : "memory");  // in this order')
        for at in range(count):
            body = [f"const auto v{s.value} = r{s.value}_{at};" for s in loads]
            body += [line for s in section.body if s not in loads and (line := self.element(s, at))]
            lines += ["  {", *(f"    {line}" for line in body), "  }"]
        lines += [f"  p{o} += {count * self.step} * {self.stride(o)};" for o in walked]
        return [*lines, "}"]

    def prologue(self, section: k.Section, folds: list[k.Accumulate]) -> list[str]:
        """Broadcast operands, row values, constants and accumulators, read once before the loop."""
        lines = self.inputs(section)
        for s in section.body:
            if isinstance(s, k.Load) and self.classes[s.operand] == "Z":
                lines.append(f"const auto v{s.value} = {self.splat(s.operand, f'p[{s.operand}]')};")
        lines += self.fault_in()
        for f in folds:
            kind = self.folded(f)
            lines.append(f"const {kind} idle{f.value} = ok_c<{kind}>({self.identity_of(f)});")
            for at in range(self.vectors):
                first = f" + (ok_elt<IVec<{kind}>>){at * self.lanes}" if at else ""
                lane = f"IVec<{kind}>{{OK_IOTA}}{first}"
                lines.append(f"const auto m{f.value}_{at} = {lane} < (ok_elt<IVec<{kind}>>)valid;")
                lines.append(f"{kind} a{f.value}_{at} = st.a{f.value}.acc[{at}];")
                if f in self.finding:
                    lines.append(f"IVec<{kind}> s{f.value}_{at} = st.a{f.value}.step[{at}];")
            if f in self.finding:
                lines.append(f"IVec<{kind}> here{f.value} = ok_c<IVec<{kind}>>(st.seen);")
        return lines

    def inputs(self, section: k.Section) -> list[str]:
        """Row values, parameters and constants that the section reads."""
        lines: list[str] = []
        own = {s.value for s in section.body if not isinstance(s, k.Store)}
        for value in sorted(reads(section)):
            if value in self.leaves:
                lines.append(f"const auto v{value} = {self.leaf(self.leaves[value])};")
            elif value in self.row_values and value not in own:
                lines.append(f"const auto v{value} = st.v{value};")
        return lines

    def element(self, s: k.Statement, vector_index: int) -> str:
        """One statement of a column loop, for the given vector of the step."""
        match s:
            case k.Load(value, o):
                return (
                    ""
                    if self.classes[o] == "Z"
                    else f"const auto v{value} = {self.load(o, vector_index)};"
                )
            case k.Store(o, arg):
                suffix, text = self.stored(o, arg)
                at = self.at(o, vector_index)
                if self.classes[o] == "C":
                    return f"ok_store{suffix}({at}, {text});"
                return f"ok_scatter{suffix}({at}, c{o}, {text});"
            case k.Accumulate(value, row, arg):
                a = f"a{value}_{vector_index}"
                masked = f"ok_sel(m{value}_{vector_index}, v{arg}, idle{value})"
                if s in self.finding:
                    step = f"s{value}_{vector_index}"
                    return f"ok_find_next<ok_{row}_op>({a}, {step}, {masked}, here{value});"
                return f"{a} = {REDUCTIONS[row].combine.format(a, masked)};"
            case k.Param() | k.Const():
                return ""
            case _:
                return f"const auto v{s.value} = {expression(self.kernel, s)};"

    def at(self, o: int, vector_index: int) -> str:
        """Address of an operand's vector."""
        return f"p{o} + {vector_index * self.lanes} * {self.stride(o)}" if vector_index else f"p{o}"

    def stride(self, o: int) -> str:
        """Bytes between elements."""
        fixed = self.classes[o] == "C" and o not in self.spread
        return str(self.kernel.operands[o].dtype.itemsize) if fixed else f"c{o}"

    def load(self, o: int, vector_index: int) -> str:
        """Load one vector of an operand."""
        name, stride = ("ok_gather", f", c{o}") if self.classes[o] == "G" else ("ok_load", "")
        arguments = f"{self.at(o, vector_index)}{stride}"
        return loaded(self.kernel.operands[o].dtype, name, arguments)

    # *** the entry ***

    def entry(self) -> list[str]:
        """Rows, and in each row the sections in order."""
        count = len(self.kernel.operands)
        lines = self.entry_head()
        for section in self.kernel.sections:
            if section.kind == "once":
                lines += [f"  {line}" for line in self.rowwise(section)]
        if not self.kernel.reduced:
            lines += [f"  {self.pad(o)}" for o in range(count)]
        if self.spread:
            dense = " && ".join(f"a->col[{o}]" for o in self.spread)
            lines.append(f"  const bool spread = !({dense});")
        lines.append("  for (i64 r = row_begin; r < row_end; ++r) {")
        # The first row, the only one of small calls, needs no arithmetic and no copy.
        lines.append(f"    if (r{' || spread' if self.spread else ''}) {{")
        at_row = "moved[{0}] = a->ptr[{0}] + r * a->row[{0}];"
        if count <= UNROLLED:  # a loop here costs several nanoseconds a row
            lines += [f"      {at_row.format(i)}" for i in range(count)]
        else:
            lines.append(f"      for (int i = 0; i < {count}; ++i) {at_row.format('i')}")
        lines += ["      p = moved;", "    }"]
        if self.spread:
            lines.append("    if (spread) {  // one element in all lanes")
            for o in self.spread:
                at = f"pad{o}, moved[{o}]"
                lines.append(
                    f"      if (!a->col[{o}]) ok_pad{self.cell(o)}({at}, 0, 0, {self.step}), "
                    f"moved[{o}] = pad{o};"
                )
            lines.append("    }")
        index = 0
        for section in self.kernel.sections:
            if section.kind == "row":
                lines += [f"    {line}" for line in self.rowwise(section)]
            elif section.kind == "loop":
                walk = self.counted(section, self.walk(index, section))
                lines += [f"    {line}" for line in walk]
                index += 1
        return [*lines, "  }", *self.entry_tail()]

    def rowwise(self, section: k.Section) -> list[str]:
        """Statements that run once per row or call, on splat vectors for the bits of the loops."""
        lines = ["{", *(f"  {line}" for line in self.inputs(section) + self.fault_in())]
        for s in section.body:
            match s:
                case k.Load(value, o):
                    lines.append(
                        f"  const auto v{value} = st.v{value} = {self.splat(o, f'p[{o}]')};"
                    )
                case k.Store(o, arg):
                    lines.append(f"  {put(self.kernel.operands[o].dtype, f'p[{o}]', f'v{arg}')}")
                case k.Apply(value) | k.Convert(value):
                    lines.append(f"  const auto v{value} = st.v{value} = {self.row_expression(s)};")
                case _:
                    pass
        return [*lines, *(f"  {line}" for line in self.fault_out()), "}"]

    def walk(self, index: int, section: k.Section) -> list[str]:
        """Run a column loop over the row: whole steps, the padded rest; float sums by blocks."""
        folds = [s for s in section.body if isinstance(s, k.Accumulate)]
        blocked = [f for f in folds if is_blocked(self.kernel, f)]
        finding = [f for f in folds if f in self.finding]
        lines = [f"st.a{f.value}.start({self.identity_of(f)});" for f in folds]
        used = self.touched(section)
        call = f"{self.name}_loop{index}"
        body = [
            f"const i64 whole = m / {self.step}, rest = m % {self.step};",
            f"if (whole) {call}(q, a->col, whole, {self.step}, st);",
            "if (rest) {",
            *(f"  {line}" for line in self.rest(section, used, call)),
            "}",
        ]
        if not self.folds:  # an elementwise row is one run
            return ["{", *(f"  {line}" for line in self.run(used, body)), "}"]
        block = BLOCK if blocked else LONG_BLOCK if finding else 0
        body = [f"if (j % {block} == 0) st.seen = 0;", *body] if finding else body
        closing = [f"st.a{f.value}.close_block({self.identity_of(f)});" for f in blocked]
        closing += [f"st.a{f.value}.close((j + m - 1) / {block} * {block});" for f in finding]
        lines += self.pieces(used, body, closing, block)
        for f in folds:
            total = f"st.a{f.value}.pairs.sum()" if f in blocked else f"st.a{f.value}.total()"
            lines.append(f"st.v{f.value} = {self.settled(f, total)};")
        return lines

    def pad(self, o: int) -> str:
        """Room for one step of an operand."""
        return f"alignas(64) char pad{o}[{self.step * self.kernel.operands[o].dtype.itemsize}];"

    def run(self, used: list[int], body: list[str]) -> list[str]:
        """An elementwise row: the elements before a cache line, if it is long, then the others.

        Stores that cross cache lines cost a tenth, and all of 64 bytes do where NumPy's large
        arrays begin, 16 bytes after a line. So do loads; but for them to cross none is no help if
        stores of 16 bytes then do.
        """
        lines = ["i64 m = n;", "char *const *q = p;"]
        operands = self.kernel.operands
        bytes_of = {o: operands[o].dtype.itemsize for o in used if self.classes[o] == "C"}
        if not bytes_of:
            return [*lines, *body]
        wide = [o for o in bytes_of if operands[o].write and self.step * bytes_of[o] >= 16]
        o = max(wide or bytes_of, key=lambda o: bytes_of[o])
        size = bytes_of[o]
        line = min(64, self.step * size)  # what comes before it has to be less than a step
        return [
            *lines,
            f"char *after[{len(operands)}];",
            f"if (n >= {LONG_ROW} && (u64)p[{o}] % {line}) "
            f"m = (i64)({line} - (u64)p[{o}] % {line}) / {size};",
            "for (i64 left = n;;) {",
            *(f"  {text}" for text in body),
            "  if (!(left -= m)) break;",
            *(f"  after[{o}] = p[{o}] + m * a->col[{o}];" for o in used),
            "  q = after, m = left;",
            "}",
        ]

    def rest(self, section: k.Section, used: list[int], call: str) -> list[str]:
        """The last elements of a row, padded to a step with copies of the first of them."""
        count = max(len(self.kernel.operands), 1)
        written = {s.operand for s in section.body if isinstance(s, k.Store)}
        moved = [o for o in used if self.classes[o] != "Z"]
        sizes = {o: self.kernel.operands[o].dtype.itemsize for o in moved}
        lines = [f"char *t[{count}];", f"i64 ts[{count}];"]
        lines += [f"t[{o}] = q[{o}];" for o in used if o not in moved]
        for o in moved:
            if self.kernel.reduced:
                lines.append(self.pad(o))
            lines.append(f"t[{o}] = pad{o}, ts[{o}] = {sizes[o]};")
            if o not in written:
                at = f"q[{o}] + whole * {self.step} * a->col[{o}]"
                fill = f"ok_pad{self.cell(o)}(pad{o}, {at}, a->col[{o}], rest, {self.step});"
                lines.append(f"if (a->col[{o}]) {fill}" if o in self.spread else fill)
        lines.append(f"{call}(t, ts, 1, rest, st);")
        for o in moved:
            if o in written:
                at = f"q[{o}] + whole * {self.step} * a->col[{o}]"
                lines.append(f"ok_unpad{self.cell(o)}({at}, a->col[{o}], pad{o}, rest);")
        return lines

    def cell(self, o: int) -> str:
        """What follows ok_pad in the name of the function that copies elements of an operand."""
        dtype = self.kernel.operands[o].dtype
        return memory(dtype) if dtype.kind == "c" else f"<u{8 * dtype.itemsize}>"
