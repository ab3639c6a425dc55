"""What every emitter obeys where a kernel folds, so that all of them give the same bits."""

from __future__ import annotations

from opkiln.ops.dtypes import kind_of
from opkiln.ops.table import REDUCTIONS
from opkiln.runtime import kernel as k
from opkiln.runtime.bodies import identity, rounded, scalar

# A fold has 32 accumulators whatever the vector width: element i goes to accumulator i % 32. Float
# sums close a block after 512 elements and add blocks pairwise, which keeps the error within
# NumPy's bound.
ACCUMULATORS = 32
BLOCK = 512


def folded(kernel: k.Kernel, fold: k.Accumulate) -> k.DT:
    """The dtype of what the fold combines: the operand's, whose index may be the result."""
    return kernel.dtypes[fold.arg if REDUCTIONS[fold.row].finds else fold.value]


def identity_of(kernel: k.Kernel, fold: k.Accumulate) -> str:
    """The scalar that idle accumulators hold."""
    return identity(fold.row, folded(kernel, fold))


def combiner(row: str) -> str:
    """The reduction's combining step as a type; of one that finds, which of two values stays."""
    body = REDUCTIONS[row].combine.format("a", "b")
    name, result = ("keep", "auto") if REDUCTIONS[row].finds else ("f", "V")
    function = f"template <class V> OK_FN {result} {name}(V a, V b) {{ return {body}; }}"
    return f"struct ok_{row}_op {{\n  {function}\n}};\n"


def vector(dtype: k.DT) -> str:
    """The type of a value that outlives its section: booleans as byte masks."""
    return "vi8" if dtype.kind == "b" else f"v{scalar(dtype)}"


def is_ordered(kernel: k.Kernel, fold: k.Accumulate) -> bool:
    """Whether the order of the fold shows in its bits: of rounding combinations alone."""
    return REDUCTIONS[fold.row].exactness != "exact" and kind_of(kernel.dtypes[fold.value]) == "f"


def is_blocked(kernel: k.Kernel, fold: k.Accumulate) -> bool:
    """Whether the fold adds floats, and so closes blocks to bound its error."""
    return REDUCTIONS[fold.row].blocked and kind_of(kernel.dtypes[fold.value]) == "f"


def settled(kernel: k.Kernel, fold: k.Accumulate, total: str, columns: str) -> str:
    """The fold's result from its accumulators' total over so many columns."""
    if is_blocked(kernel, fold):  # NumPy's sum starts at +0.0, and so is never -0.0
        zero = f"{vector(folded(kernel, fold))}{{}}"
        total = f"{columns} ? {total} + {zero} : {zero}"
    if is_ordered(kernel, fold):
        return rounded(kernel.dtypes[fold.value], total)
    return f"ok_settle({total})"
