"""The page docs/ops.md: the op table in, its text out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from tests.values import DTYPES, dtypes_of, kind_of

from opkiln.ops import elementwise
from opkiln.ops.defs import OpRow, ReduceRow
from opkiln.ops.signatures import Part
from opkiln.ops.table import ELEMENTWISE, REDUCTIONS, resolved
from opkiln.runtime.trace import functions, reductions
from opkiln.runtime.trace.composites import COMPOSITES

OPEN = {"": "exact", "zero sign": "exact but for the sign of a zero"}  # by OpRow.ungated
COMPLEX = {  # by OpRow.exactness_of("c")
    "exact": "exact",
    "ulp": "4 ulp",
    "modulus": "16 eps of the modulus",
    "bound": "NumPy's own bound",
}
ULP = Path(__file__).parent.parent / "docs" / "ulp.md"
FAMILIES = {
    "b": "bool", "i": "signed", "u": "unsigned", "f": "float", "c": "complex",
    "m": "timedelta64", "M": "datetime64",
}  # fmt: skip
SHORT = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
         "c64": "complex64", "c128": "complex128"}  # fmt: skip

HEAD = """\
# Operations

Written by the op table itself (`ops/elementwise/`, `ops/reduce.py`), by
`pytest tests/test_repository.py -k page_of_ops --update-golden`. Rows are called by NumPy's names,
or as `ok.ops.<name>` where NumPy lacks them.

- **Takes** are the dtypes that the op computes in; those *cast first* are cast as NumPy casts them.
  {families}.
- **Accuracy:** *exact* rows give NumPy's bits. The others stay within 4 ulp (units of the last
  place) of the true value; in brackets are the [largest errors measured](ulp.md), of float32 and
  float64.
- **Gradient:** yes where the row has a rule, none where the derivative is zero or does not exist.
"""
REDUCING = """\
## Reductions

Rows are combined in the dtype that NumPy accumulates in. `np.mean`, `np.var`, `np.std`, `np.ptp`,
`np.count_nonzero`, `np.nansum`, `np.nanprod` and `np.nanmean` are written over these rows.
[What they promise](numerics.md#reductions).
"""
COMPOSED = """\
## Composites

Functions of NumPy that are written over rows (`runtime/trace/composites.py`), with NumPy's own
arguments.
"""
REST = """\
## Shapes, views and the rest

These are no rows: they move no data, or are written over rows.
[Indexing and assignment](tracing.md#indexing-and-assignment) take ints, slices, `None` and `...`.
What NumPy makes of numbers alone while the function is traced, such as `np.arange(3)`,
`np.linspace(0, 1, 5)` or `np.full(3, 2.0)`, is an array that the program keeps.
"""


def page() -> str:
    """The whole text."""
    spans = {name: [d.name for d in DTYPES if kind_of(d) == k] for k, name in FAMILIES.items()}
    said = "; ".join(f"*{name}*: {', '.join(own)}" for name, own in spans.items() if len(own) > 1)
    parts = [HEAD.format(families=said), *subjects(), REDUCING, folds()]
    parts += [COMPOSED, composites(), REST, others()]
    return "\n".join(parts)


def table(*rows: Iterable[str]) -> str:
    """A table of Markdown; the first row is its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * lines[0].count(" | ") + "|---|", *lines[1:], ""])


def subjects() -> Iterator[str]:
    """A section for each module of rows, in the table's order."""
    modules = [m for m in vars(elementwise).values() if isinstance(m, ModuleType)]
    modules = [m for m in modules if hasattr(m, "ROWS")]
    ulps = measured()
    for module in sorted(modules, key=lambda m: elementwise.ROWS.index(m.ROWS[0])):
        title = (module.__doc__ or "").partition("\n")[0].rstrip(".").removesuffix(" rows")
        head = ("op", "NumPy", "takes", "cast first", "accuracy", "gradient")
        yield f"## {title}\n"
        yield table(head, *(line(ELEMENTWISE[row.name], ulps) for row in module.ROWS))


def line(row: OpRow, ulps: dict[str, dict[str, str]]) -> tuple[str, ...]:
    """One row of the op table as cells."""
    taken = {d: dtypes for d in DTYPES if (dtypes := dtypes_of(row, d))}
    native = [d for d, dtypes in taken.items() if resolved(row, *dtypes)[0] == dtypes]  # type: ignore[index]
    cast = [d for d in taken if d not in native]
    without = "refused" if row.differentiable else "none"
    gradient = "yes" if row.gradient is not None else without
    return (row.name, numpy_name(row), families(native), families(cast), accuracy(row, ulps),
            gradient)  # fmt: skip


def families(dtypes: list[np.dtype[Any]]) -> str:
    """Whole kinds by one name, others by the dtypes' own names."""
    found: list[str] = []
    for kind, name in FAMILIES.items():
        own = [d.name for d in dtypes if kind_of(d) == kind]
        whole = [d.name for d in DTYPES if kind_of(d) == kind]
        found += [name] if own and own == whole else own
    return ", ".join(found) or "-"


def numpy_name(row: OpRow) -> str:
    """How the row is called."""
    if isinstance(row.numpy, Part):
        return f"`np.{row.numpy.ufunc.__name__}(x)[{row.numpy.index}]`"
    return f"`np.{row.name}`" if hasattr(np, row.name) else f"`ok.ops.{row.name}`"


def accuracy(row: OpRow, ulps: dict[str, dict[str, str]]) -> str:
    """The contract, of complex operands too where it is another."""
    own = real_accuracy(row, ulps)
    over = row.exactness_of("c")
    return own if over == row.exactness else f"{own}; complex: {COMPLEX[over]}"


def real_accuracy(row: OpRow, ulps: dict[str, dict[str, str]]) -> str:
    """The contract, and the largest errors measured."""
    if row.exactness == "exact":
        return OPEN[row.ungated]
    body = re.findall(r"\bok_(\w+)\(", row.expr)
    found = ulps.get(body[0] if body else row.name) or ulps.get(row.name, {})
    figures = ", ".join(found[d] for d in ("float32", "float64") if d in found)
    if callable(row.unit):
        of = f" {row.unit.__doc__}".rstrip(".")
    else:
        of = " of the larger operand" if row.unit == "operand" else ""
    return f"{row.ulp:g} ulp{of}" + (f" ({figures})" if figures else "")


def measured() -> dict[str, dict[str, str]]:
    """The table of docs/ulp.md: the largest error by function and dtype."""
    found: dict[str, dict[str, str]] = {}
    rows = re.findall(
        r"^\| (\w+) \| (\w+) \| [\w ]+ \| ([\d.]+)", ULP.read_text("utf-8"), re.MULTILINE
    )
    for name, dtype, ulp in rows:
        found.setdefault(name, {})[SHORT.get(dtype, dtype)] = f"{float(ulp):.2f}"
    return found


def folds() -> str:
    head = ("op", "NumPy", "accumulates in", "accuracy")
    return table(head, *(fold(row) for row in REDUCTIONS.values()))


def fold(row: ReduceRow) -> tuple[str, ...]:
    named = hasattr(np.ndarray, row.name)
    numpy = f"`np.{row.name}`" if named else f"`np.{row.numpy.__name__}.reduce`"
    exactness = OPEN[row.ungated]
    if row.exactness == "bound":
        bound = "NumPy's pairwise bound" if row.blocked else "(n - 1) eps"
        exactness = f"{bound} for floats, integers exact"
    return row.name, numpy, ", ".join(FAMILIES[kind] for kind in row.accepts), exactness


def composites() -> str:
    lines = ((f"`np.{c.numpy.__name__}`", f"`{c.formula}`") for c in COMPOSITES)
    return table(("function", "written as"), *lines)


def others() -> str:
    elsewhere = {*reductions.FUNCTIONS, *(c.numpy for c in COMPOSITES)}
    rest = [f for f in functions.FUNCTIONS if f not in elsewhere]
    attributes = [*functions.ATTRIBUTES, "shape", "size", "ndim", "dtype"]
    spelled = {
        "functions": [f"np.{f.__name__}" for f in rest],
        "methods": [f"x.{m}" for m in functions.METHODS if m not in reductions.METHODS],
        "attributes": [f"x.{a}" for a in attributes],
    }
    lines = ((kind, ", ".join(f"`{n}`" for n in sorted(set(s)))) for kind, s in spelled.items())
    return table(("kind", "names"), *lines)
