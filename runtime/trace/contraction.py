"""Contractions: operands with named axes in, their product summed over names out; and np.einsum.

A pair of operands is a matrix product where names are summed and each operand has some of its own;
else an elementwise product and its sum, which fuse with what is around them.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.dtypes import is_half
from opkiln.ops.table import ELEMENTWISE, REDUCTIONS
from opkiln.runtime.errors import ShapeError, TraceError
from opkiln.runtime.graph import Node, const_value
from opkiln.runtime.infer import broadcast_dim, numel
from opkiln.runtime.trace import reductions
from opkiln.runtime.trace.promote import (
    BOOL,
    BROADCAST,
    FLOAT32,
    as_dtype,
    cast,
    elementwise,
    elementwise_operand,
    may_cast,
    session_of,
)
from opkiln.runtime.trace.session import ArrayValue, HostValue, Session, failure, is_a
from opkiln.runtime.trace.tracer import Tracer

DT = np.dtype[Any]
Label = Hashable
_MATMUL = p.MatMul()


class Term(NamedTuple):
    """An operand and the name of each of its axes, no two alike."""

    node: Node
    labels: tuple[Label, ...]

    def extent(self, label: Label) -> Node:
        """How long the axis of this name is."""
        return self.node.shape[self.labels.index(label)]


# ---- dtypes ----


def wide(dtype: DT) -> DT:
    """What products of this dtype are computed in: halves and bools in float32, rounded once."""
    return FLOAT32 if dtype == BOOL or is_half(dtype) else dtype


def narrow(session: Session, value: Node, dtype: DT) -> Node:
    """The result in its own dtype."""
    if dtype == BOOL:  # a sum of products that are 0 or 1 is 0 only if all are
        return elementwise(session, ELEMENTWISE["not_equal"], (value, 0))
    return cast(session, value, dtype)


# ---- a pair ----


def contract(session: Session, a: Term, b: Term, kept: Collection[Label], text: str = "") -> Term:
    """The product of two operands of one dtype, summed over all names but `kept`.

    Axes of one name broadcast. Not if there is a `text`, which says that lengths {0} and {1} of an
    axis that is summed over differ.
    """
    a, b = _summed(session, a, {*kept, *b.labels}), _summed(session, b, {*kept, *a.labels})
    shared = [x for x in a.labels if x in b.labels]
    batch = [x for x in shared if x in kept]
    inner = [x for x in shared if x not in kept]
    left = [x for x in a.labels if x not in shared]
    right = [x for x in b.labels if x not in shared]
    matrices = bool(inner and left and right)
    for x in inner:
        if text and not (matrices and len(inner) == 1):  # which the product of matrices checks
            b = _equal_extents(session, b, x, a.extent(x), text)
        elif matrices and not text:
            a, b = _stretched(session, a, b, x), _stretched(session, b, a, x)
    if matrices:
        return _matrices(session, a, b, (batch, inner, left, right))
    order = [*batch, *left, *right, *inner]
    factors = _aligned(session, a, order), _aligned(session, b, order)
    value = elementwise(session, ELEMENTWISE["multiply"], factors)
    return _summed(session, Term(value, tuple(order)), kept)


def _matrices(session: Session, a: Term, b: Term, names: tuple[list[Label], ...]) -> Term:
    """One matrix product: own names beyond the last, and those that stay of both, stand before."""
    batch, inner, left, right = names
    outer = [*batch, *left[:-1], *right[:-1]]
    x = _aligned(session, a, [*outer, left[-1], *inner])
    y = _aligned(session, b, [*outer, *inner, right[-1]])
    if len(inner) > 1:
        at = len(outer)
        k = numel(x.shape[at + 1 :])
        x = session.make(p.Reshape(), x, *x.shape[: at + 1], k)
        y = session.make(p.Reshape(), y, *y.shape[:at], k, y.shape[-1])
    return Term(session.make(_MATMUL, x, y), (*outer, left[-1], right[-1]))


def _summed(session: Session, term: Term, kept: Collection[Label]) -> Term:
    """Without the axes of other names."""
    axes = tuple(i for i, x in enumerate(term.labels) if x not in kept)
    if not axes:
        return term
    value = Tracer(session, term.node)
    total = reductions.reduce(REDUCTIONS["sum"], value, axes, False, term.node.dtype)
    return Term(total.node, tuple(x for x in term.labels if x in kept))


def _stretched(session: Session, term: Term, other: Term, label: Label) -> Term:
    """With the extent that the axes of this name broadcast to."""
    try:
        extent = broadcast_dim(term.extent(label), other.extent(label))
    except ShapeError as error:
        raise failure(ShapeError, str(error)) from None
    return _with_extent(session, term, label, extent)


def _with_extent(session: Session, term: Term, label: Label, extent: Node) -> Term:
    if extent is term.extent(label):
        return term
    shape = [extent if x == label else d for x, d in zip(term.labels, term.node.shape, strict=True)]
    return Term(session.make(BROADCAST, term.node, *shape), term.labels)


def _aligned(session: Session, term: Term, order: Sequence[Label]) -> Node:
    """The axes in this order, those of names that the operand lacks of length 1."""
    node = transposed(session, term, [x for x in order if x in term.labels])
    missing = tuple(i for i, x in enumerate(order) if x not in term.labels)
    return session.make(p.ExpandDims(missing), node) if missing else node


def transposed(session: Session, term: Term, order: Sequence[Label]) -> Node:
    """The axes in another order."""
    perm = tuple(term.labels.index(x) for x in order)
    if perm == tuple(range(len(perm))):
        return term.node
    return session.make(p.Transpose(perm), term.node)


def _equal_extents(session: Session, term: Term, label: Label, extent: Node, text: str) -> Term:
    """With an axis that must be as long as `extent`, where broadcasting would take 1 for it too.

    Raises:
        ShapeError: both are known and differ.
    """
    have = term.extent(label)
    known = const_value(extent), const_value(have)
    if None not in known and known[0] != known[1]:
        raise failure(ShapeError, text.format(*known))
    if have is extent:
        return term
    return _with_extent(session, term, label, session.make(p.HostOp("same"), extent, have))


def contract_all(
    session: Session, terms: list[Term], kept: Sequence[Label], text: str = ""
) -> Node:
    """The product of all operands, summed over all names but `kept`, whose order the result has.

    In pairs, each as `contract` does: each time that which leaves the fewest axes.
    """
    while len(terms) > 1:
        pairs = [(i, j) for j in range(len(terms)) for i in range(j)]

        def left_over(pair: tuple[int, int]) -> list[Label]:
            others = [t for at, t in enumerate(terms) if at not in pair]  # noqa: B023
            needed = {*kept, *(x for t in others for x in t.labels)}
            both = dict.fromkeys([*terms[pair[0]].labels, *terms[pair[1]].labels])  # noqa: B023
            return [x for x in both if x in needed]

        i, j = min(pairs, key=lambda pair: len(left_over(pair)))
        made = contract(session, terms[i], terms[j], left_over((i, j)), text)
        terms = [made, *(t for at, t in enumerate(terms) if at not in (i, j))]
    return transposed(session, _summed(session, terms[0], kept), kept)


# ---- einsum ----


def einsum(
    *operands: Any, out: Any = None, dtype: Any = None, order: str = "K",
    casting: Any = "safe", optimize: Any = False,
) -> Any:  # fmt: skip
    """np.einsum; pairs of operands are contracted whatever `optimize` says."""
    del order, optimize
    reductions.refuse_out("einsum", out)
    subscripts, given = _subscripts(operands)
    session = session_of([v for v in given if isinstance(v, (ArrayValue, HostValue))])
    nodes = [elementwise_operand(session, v) for v in given]
    inputs, kept = parse(subscripts, [node.rank for node in nodes])
    found = np.result_type(*(n.dtype for n in nodes)) if dtype is None else as_dtype(dtype)
    for node in nodes:
        if not may_cast(node.dtype, found, casting):
            raise failure(
                TraceError,
                f"Iterator operand required casting from {node.dtype!r} to {found!r} according "
                f"to the rule {casting!r}",
                fix="pass casting='unsafe', or cast the operand",
            )
    terms = [
        _diagonal(session, cast(session, node, wide(found)), labels)
        for node, labels in zip(nodes, inputs, strict=True)
    ]
    if len(terms) == 1 and set(kept) == set(terms[0].labels):
        return Tracer(session, narrow(session, transposed(session, terms[0], kept), found))
    return Tracer(session, narrow(session, contract_all(session, terms, kept), found))


def _diagonal(session: Session, node: Node, labels: tuple[Label, ...]) -> Term:
    """An operand where each name stands once: axes of one name are their diagonal."""
    left = list(labels)
    while len(set(left)) < len(left):
        label = next(x for x in left if left.count(x) > 1)
        axis = left.index(label)
        other = left.index(label, axis + 1)
        sizes = const_value(node.shape[axis]), const_value(node.shape[other])
        if None not in sizes and sizes[0] != sizes[1]:
            raise failure(
                ShapeError,
                f"dimensions in an operand for collapsing index {label!r} don't match "
                f"({sizes[0]} != {sizes[1]})",
            )
        node = session.make(p.Diagonal(axis, other), node)
        del left[other]
    return Term(node, tuple(left))


def _subscripts(operands: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """The subscripts as text, from either form of call, and the arrays."""
    if not operands:
        raise failure(
            TraceError,
            "must specify the einstein sum subscripts string and at least one operand, or at "
            "least one operand and its corresponding subscripts list",
        )
    if isinstance(operands[0], str):
        return operands[0], list(operands[1:])
    pairs = len(operands) // 2
    lists = [*operands[1 : 2 * pairs : 2], *operands[2 * pairs :]]
    texts = ["".join(_symbol(x) for x in names) for names in lists]
    arrow = f"->{texts.pop()}" if len(texts) > pairs else ""
    return ",".join(texts) + arrow, list(operands[: 2 * pairs : 2])


def _symbol(name: Any) -> str:
    """The letter of a number in a sublist."""
    if name is Ellipsis:
        return "..."
    letters = string.ascii_uppercase + string.ascii_lowercase
    if not is_a(name, int, np.integer) or not 0 <= name < len(letters):
        raise failure(
            TraceError,
            f"subscript {name!r} is not an int within the valid range [0, {len(letters)})",
            fix="name axes by ints, as in np.einsum(a, [0, 1], b, [1, 2], [0, 2])",
        )
    return letters[name]


def parse(
    subscripts: str, ranks: Sequence[int]
) -> tuple[list[tuple[Label, ...]], tuple[Label, ...]]:
    """The names of each operand's axes, and of the result's; axes under "..." count from the right.

    Raises:
        ShapeError: as NumPy, and in its words.
    """
    before, arrow, after = subscripts.replace(" ", "").partition("->")
    texts = before.split(",")
    if len(texts) != len(ranks):
        which = "more" if len(ranks) > len(texts) else "fewer"
        raise failure(
            ShapeError,
            f"{which} operands provided to einstein sum function than specified in the subscripts "
            f"string",
        )
    inputs = [_labels(texts[i], rank, i) for i, rank in enumerate(ranks)]
    every = [x for labels in inputs for x in labels]
    spread = sorted({x for x in every if isinstance(x, int)})
    letters = sorted({x for x in every if isinstance(x, str)})
    if not arrow:
        return inputs, (*spread, *(x for x in letters if every.count(x) == 1))
    if spread and "..." not in after:
        raise failure(
            ShapeError,
            "output has more dimensions than subscripts given in einstein sum, but no '...' "
            "ellipsis provided to broadcast the extra dimensions.",
        )
    kept = _labels(after, len(after.replace("...", "")) + len(spread), None)
    for x in kept:
        if x not in every:
            raise failure(
                ShapeError,
                f"einstein sum subscripts string included output subscript {x!r} which never "
                f"appeared in an input",
            )
        if kept.count(x) > 1:
            raise failure(
                ShapeError,
                f"einstein sum subscripts string includes output subscript {x!r} multiple times",
            )
    return inputs, kept


def _labels(text: str, rank: int, operand: int | None) -> tuple[Label, ...]:
    """The names in one part: letters, and for "..." the negative positions that it stands for."""
    whose = f"operand {operand}" if operand is not None else "the output"
    first, dots, last = text.partition("...")
    for x in first + last:
        if x == ".":
            raise failure(
                ShapeError,
                "einstein sum subscripts string contains a '.' that is not part of an ellipsis "
                f"('...') in {whose}",
            )
        if x not in string.ascii_letters:
            raise failure(
                ShapeError,
                f"invalid subscript {x!r} in einstein sum subscripts string, subscripts must be "
                f"letters",
            )
    hidden = rank - len(first) - len(last)
    if hidden < 0:
        raise failure(
            ShapeError, f"einstein sum subscripts string contains too many subscripts for {whose}"
        )
    if hidden and not dots:
        raise failure(
            ShapeError,
            "operand has more dimensions than subscripts given in einstein sum, but no '...' "
            "ellipsis provided to broadcast the extra dimensions.",
        )
    return (*first, *range(-hidden, 0), *last)
