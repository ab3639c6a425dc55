"""Rewriting: a graph in, an equal smaller graph out, by named rule tables that change no bit.

A rule is one line of a table: its name, the ops it looks at, and a function from a node to its
replacement, or None. The engine refuses a replacement of another dtype or symbolic shape, so
run-time shape guards survive. Equal nodes are one object already (graph.make interns them), which
is the whole of common subexpression elimination; dead nodes are those that no output reaches. Rules
that may change bits, such as x + 0.0 -> x (wrong for -0.0), have no place here: they belong to
math="fast", to come.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.defs import OpDef
from opkiln.ops.dtypes import is_half, kind_of, lossless
from opkiln.ops.table import ELEMENTWISE
from opkiln.runtime.errors import OpkilnError
from opkiln.runtime.graph import (
    Graph,
    Node,
    const_value,
    host_const,
    is_one,
    make,
    topological,
)
from opkiln.runtime.infer import guards
from opkiln.runtime.reference import evaluate_host, interpret, scalar
from opkiln.runtime.reshapes import READ, reshape_operands

Rule = Callable[[Node], Node | None]
DT = np.dtype[Any]


def _row(node: Node) -> str | None:
    return node.op.row if isinstance(node.op, p.Elementwise) else None


def _constant(node: Node) -> np.generic | None:
    return node.op.value if isinstance(node.op, p.Constant) else None


# ---- fold: constants, by the reference interpreter ----


def _fold_host(node: Node) -> Node | None:
    """A host op on known numbers; one that raises is left to raise when it runs."""
    if not isinstance(node.op, p.HostOp) or any(const_value(s) is None for s in node.src):
        return None
    try:
        return host_const(evaluate_host([node], ())[0])
    except OpkilnError:
        return None


def _fold_from_host(node: Node) -> Node | None:
    if not isinstance(node.op, p.FromHost):
        return None
    value = const_value(node.src[0])
    if value is None:
        return None
    try:
        return make(p.Constant(scalar(value, node.op.dtype, node.op.mode)))
    except OpkilnError:
        return None


def _settled(value: np.generic, node: Node) -> bool:
    """Whether every kernel has NumPy's bits: NaN's are not gated, nor some rows' signs of zero."""
    if kind_of(value.dtype) in "fc" and value != value:  # noqa: PLR0124
        return False
    gated = not ELEMENTWISE[_row(node) or ""].ungated
    return gated or bool(value != 0) or kind_of(value.dtype) != "f"


def _fold_elementwise(node: Node) -> Node | None:
    """Rows of exact bits; one that faults is left to do so when it runs."""
    name = _row(node)
    if name is None or any(_constant(s) is None for s in node.src):
        return None
    if ELEMENTWISE[name].exactness_of(node.src[0].dtype.kind) != "exact":
        return None
    faults: list[int] = []
    try:
        value = interpret(Graph((), (node,)), (), on_fault=faults.append)[0]
    except OpkilnError:
        return None
    return make(p.Constant(value)) if not faults and _settled(value, node) else None


def _fold_cast(node: Node) -> Node | None:
    """In-range casts; NaN or out of range to integer differs by machine."""
    if not isinstance(node.op, p.Cast):
        return None
    value = _constant(node.src[0])
    if value is None or (kind_of(value.dtype) in "fc" and value != value):  # noqa: PLR0124
        return None
    if kind_of(value.dtype) in "fc" and kind_of(node.dtype) in "iu":
        info = np.iinfo(node.dtype)
        real = value.real
        if not info.min <= int(real) <= info.max if np.isfinite(real) else True:
            return None
    return make(p.Constant(interpret(Graph((), (node,)), ())[0]))


# ---- simplify: each proved for every value, special ones included ----


def _cast_same(node: Node) -> Node | None:
    return node.src[0] if isinstance(node.op, p.Cast) and node.src[0].dtype == node.dtype else None


def _cast_chain(node: Node) -> Node | None:
    """cast(cast(x, wide), d) -> cast(x, d), when x fits wide. Never a narrowing pair: it rounds.

    Through a float to an integer only where the value fits: a float out of range has no fixed bits.
    """
    if not isinstance(node.op, p.Cast) or not isinstance(node.src[0].op, p.Cast):
        return None
    middle, source = node.src[0], node.src[0].src[0]
    if not lossless(source.dtype, middle.dtype):
        return None
    through_float = (
        kind_of(middle.dtype) in "fc"
        and kind_of(node.dtype) in "iu"
        and kind_of(source.dtype) not in "fc"
    )
    if through_float and not lossless(source.dtype, node.dtype):
        return None
    return source if source.dtype == node.dtype else make(node.op, source)


def _positive(node: Node) -> Node | None:
    """+x, and the conjugate of a real value."""
    real = _row(node) == "conjugate" and node.dtype.kind != "c"
    return node.src[0] if real or _row(node) == "positive" else None


_INVOLUTIONS = {"negative", "invert", "logical_not", "conjugate"}
_IDEMPOTENT = {"floor", "ceil", "trunc", "rint", "absolute", "sign"}
_SAME_OPERANDS = {"maximum", "minimum", "bitwise_and", "bitwise_or", "logical_and", "logical_or"}


def _twice(node: Node) -> Node | None:
    """-(-x), ~~x, not not b."""
    name = _row(node)
    return node.src[0].src[0] if name in _INVOLUTIONS and _row(node.src[0]) == name else None


def _idempotent(node: Node) -> Node | None:
    """floor(floor(x)), abs(abs(x)) and the like."""
    name = _row(node)
    if name == "sign" and node.dtype.kind == "c":  # which rounds
        return None
    return node.src[0] if name in _IDEMPOTENT and _row(node.src[0]) == name else None


def _same_operands(node: Node) -> Node | None:
    """max(x, x), x & x and the like."""
    return node.src[0] if _row(node) in _SAME_OPERANDS and node.src[0] is node.src[1] else None


def _is(value: float, *, negative_zero: bool = False) -> Callable[[np.generic], bool]:
    def check(constant: np.generic) -> bool:
        if constant != value:
            return False
        return (
            value != 0
            or kind_of(constant.dtype) != "f"
            or bool(np.signbit(constant)) == negative_zero
        )

    return check


def _all_bits(constant: np.generic) -> bool:
    return bool(np.invert(constant) == 0) if kind_of(constant.dtype) != "b" else bool(constant)


# (row, operand kinds, test of the right constant, whether it may stand on the left too).
# Missing on purpose: x + 0.0 and 0 - x change -0.0; x * 0.0 changes NaN and -0.0.
_NEUTRAL: tuple[tuple[str, str, Callable[[np.generic], bool], bool], ...] = (
    ("multiply", "iuf", _is(1), True),
    ("multiply", "b", _is(1), True),
    ("divide", "f", _is(1), False),
    ("add", "biu", _is(0), True),
    ("add", "f", _is(0, negative_zero=True), True),
    ("subtract", "iu", _is(0), False),
    ("subtract", "f", _is(0), False),
    ("floor_divide", "iu", _is(1), False),
    ("bitwise_and", "biu", _all_bits, True),
    ("bitwise_or", "biu", _is(0), True),
    ("bitwise_xor", "biu", _is(0), True),
    ("logical_and", "b", _is(1), True),
    ("logical_or", "b", _is(0), True),
    ("logical_xor", "b", _is(0), True),
    ("left_shift", "iu", _is(0), False),
    ("right_shift", "iu", _is(0), False),
)
_NEUTRAL_BY_ROW: dict[str, list[tuple[str, Callable[[np.generic], bool], bool]]] = {}
for _name, _kinds, _test, _both in _NEUTRAL:
    _NEUTRAL_BY_ROW.setdefault(_name, []).append((_kinds, _test, _both))


def _neutral(node: Node) -> Node | None:
    """Constants that leave the other operand as it is: x * 1, x / 1, integer x + 0."""
    for kinds, test, both in _NEUTRAL_BY_ROW.get(_row(node) or "", ()):
        if kind_of(node.src[0].dtype) not in kinds:
            continue
        for i in (1, 0) if both else (1,):
            constant = _constant(node.src[i])
            if constant is not None and test(constant):
                return node.src[1 - i]
    return None


_OPPOSITE = {"equal": "not_equal", "not_equal": "equal"}


def _not_equal(node: Node) -> Node | None:
    """Negated equality, which holds for NaN too; not (a < b) -> a >= b does not."""
    if _row(node) not in {"logical_not", "invert"}:
        return None
    opposite = _OPPOSITE.get(_row(node.src[0]) or "")
    return make(p.Elementwise(opposite), *node.src[0].src) if opposite else None


def _where_same(node: Node) -> Node | None:
    return node.src[1] if _row(node) == "where" and node.src[1] is node.src[2] else None


def _where_constant(node: Node) -> Node | None:
    if _row(node) != "where":
        return None
    condition = _constant(node.src[0])
    return None if condition is None else node.src[1 if condition else 2]


def _transposed(node: Node) -> Node | None:
    """No permutation at all, and two after each other."""
    if not isinstance(node.op, p.Transpose):
        return None
    source = node.src[0]
    if node.op.perm == tuple(range(node.rank)):
        return source
    if isinstance(source.op, p.Transpose):
        perm = tuple(source.op.perm[i] for i in node.op.perm)
        return make(p.Transpose(perm), source.src[0])
    return None


def _expanded(node: Node) -> Node | None:
    """No axis at all, and two insertions after each other."""
    if not isinstance(node.op, p.ExpandDims):
        return None
    source = node.src[0]
    if not node.op.axes:
        return source
    if isinstance(source.op, p.ExpandDims):
        kept = [i for i in range(node.rank) if i not in node.op.axes]
        inner = {kept[i] for i in source.op.axes}
        return make(p.ExpandDims(tuple(sorted(inner | set(node.op.axes)))), source.src[0])
    return None


def _broadcast(node: Node) -> Node | None:
    """A broadcast to the shape that is there."""
    if isinstance(node.op, p.BroadcastTo) and node.src[0].shape == node.src[1:]:
        return node.src[0]
    return None


def _broadcast_operand(node: Node) -> Node | None:
    """An operand need not be broadcast by itself where the others broadcast it as far."""
    if _row(node) is None:
        return None
    for i, source in enumerate(node.src):
        expanded = isinstance(source.op, p.ExpandDims) and not source.src[0].shape
        if expanded or isinstance(source.op, p.BroadcastTo):
            found = make(node.op, *node.src[:i], source.src[0], *node.src[i + 1 :])
            if found.shape == node.shape:
                return found
    return None


def _squeezed(node: Node) -> Node | None:
    """No axis at all, and the axes that were inserted before."""
    if not isinstance(node.op, p.Squeeze):
        return None
    source = node.src[0]
    inserted = isinstance(source.op, p.ExpandDims) and source.op.axes == node.op.axes
    return source.src[0] if inserted else None if node.op.axes else source


def _sliced(node: Node) -> Node | None:
    """All of each axis."""
    if not isinstance(node.op, p.Slice) or any(step != 1 for step in node.op.steps):
        return None
    starts = all(const_value(start) == 0 for start in node.src[1::2])
    return node.src[0] if starts and node.shape == node.src[0].shape else None


def _reshaped(node: Node) -> Node | None:
    """To the shape that is there, twice, of one value, and where axes of length 1 come or go."""
    if not isinstance(node.op, p.Reshape):
        return None
    source, target = node.src[0], node.src[1:]
    if source.shape == target:
        return source
    if isinstance(source.op, p.Reshape) and not guards(source):
        return make(node.op, source.src[0], *target)
    if isinstance(source.op, p.BroadcastTo) and not source.src[0].rank and not guards(node):
        return make(source.op, source.src[0], *target)
    if [d for d in source.shape if not is_one(d)] != [d for d in target if not is_one(d)]:
        return None
    old, new = (tuple(i for i, d in enumerate(s) if is_one(d)) for s in (source.shape, target))
    found = make(p.Squeeze(old), source) if old else source
    return make(p.ExpandDims(new), found) if new else found


_MOST_PIECES = 64  # so that a long chain of updates takes no more than linear time to merge


def _merged(node: Node) -> Node | None:
    """An update of the whole of another update, as one of the pieces of both."""
    op, rank = node.op, node.rank
    if not isinstance(op, p.UpdateSlices):
        return None
    (first, starts, steps), *rest = op.parts(node.src)
    if not isinstance(first.op, p.UpdateSlices) or first.shape != node.shape:
        return None
    if len(first.op.steps) >= _MOST_PIECES:
        return None
    if any(const_value(start) != 0 for start in starts) or any(step != 1 for step in steps):
        return None
    pieces = [*first.op.parts(first.src), *rest]
    src = [part for value, at, _ in pieces for part in (value, *at)]
    merged = p.UpdateSlices(op.dtype, tuple([by for _, _, by in pieces]), False)
    return make(merged, *node.src[:rank], *src)


# ---- unroll: short reductions ----

_MOST_READ, _MOST_COMPUTED = 16, 4  # places: the source is printed as often
_STEPS = {
    "sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum", "any": "logical_or",
    "all": "logical_and", **{row: row for row in ("logical_xor", "bitwise_and", "bitwise_or",
    "bitwise_xor")},
}  # fmt: skip


def _unrolled(node: Node) -> Node | None:
    """A reduction over a few places, known while tracing, as an elementwise op on slices.

    A loop over them is too short, and where an axis that stays is inside it, packs what it reads.
    Rows of the last axes alone have a loop for short ones, and programs of rows need them whole.
    """
    op = node.op
    if not isinstance(op, p.Reduce) or op.seeded or op.row not in _STEPS or node.dtype != op.dtype:
        return None
    source = node.src[0]
    extents = [const_value(source.shape[axis]) or 0 for axis in op.axes]
    inner = op.axes == tuple(range(source.rank - len(op.axes), source.rank))
    rounds = op.row in {"sum", "prod"} and (node.dtype.kind == "c" or is_half(node.dtype))
    most = _MOST_READ if isinstance(_viewed(source).op, READ) else _MOST_COMPUTED
    if inner or rounds or not 1 < math.prod(extents) <= most:
        return None
    steps, one = (1,) * len(op.axes), host_const(1)
    terms: list[Node] = []
    for place in itertools.product(*(range(int(n)) for n in extents)):
        bounds = [bound for start in place for bound in (host_const(start), one)]
        term = make(p.Slice(op.axes, steps), source, *bounds)
        terms.append(term if op.keepdims else make(p.Squeeze(op.axes), term))
    half = _MOST_READ
    while half := half // 2:  # the order of a fold's accumulators
        for at, other in enumerate(terms[half:]):
            terms[at] = make(p.Elementwise(_STEPS[op.row]), terms[at], other)
        del terms[half:]
    return _settled_fold(op.row, terms[0])


def _settled_fold(row: str, value: Node) -> Node:
    """The total as loops give it: no -0.0 for a float's sum, max or min, one NaN for the latter."""
    if kind_of(value.dtype) != "f" or row == "prod":
        return value
    nan, zero = (make(p.Constant(value.dtype.type(x))) for x in (np.nan, 0))
    result = make(p.Elementwise("add"), value, zero)
    if row == "sum":
        return result
    return make(p.Elementwise("where"), make(p.Elementwise("not_equal"), value, value), nan, result)


def _viewed(node: Node) -> Node:
    """What the views are of."""
    while isinstance(node.op, p.VIEWS):
        node = node.src[0]
    return node


_EVERY_ROW = tuple(ELEMENTWISE)
_Where = type[OpDef] | Collection[str]  # what a rule looks at: an op type, or rows of the op table

FOLD: tuple[tuple[str, _Where, Rule], ...] = (
    ("fold_host", p.HostOp, _fold_host),
    ("fold_from_host", p.FromHost, _fold_from_host),
    ("fold_elementwise", _EVERY_ROW, _fold_elementwise),
    ("fold_cast", p.Cast, _fold_cast),
)
SIMPLIFY: tuple[tuple[str, _Where, Rule], ...] = (
    ("cast_same", p.Cast, _cast_same),
    ("cast_chain", p.Cast, _cast_chain),
    ("positive", ("positive",), _positive),
    ("twice", _INVOLUTIONS, _twice),
    ("idempotent", _IDEMPOTENT, _idempotent),
    ("same_operands", _SAME_OPERANDS, _same_operands),
    ("neutral", _NEUTRAL_BY_ROW, _neutral),
    ("not_equal", ("logical_not", "invert"), _not_equal),
    ("where_same", ("where",), _where_same),
    ("where_constant", ("where",), _where_constant),
    ("transpose", p.Transpose, _transposed),
    ("expand_dims", p.ExpandDims, _expanded),
    ("broadcast", p.BroadcastTo, _broadcast),
    ("squeeze", p.Squeeze, _squeezed),
    ("slice", p.Slice, _sliced),
    ("reshape", p.Reshape, _reshaped),
    ("broadcast_operand", _EVERY_ROW, _broadcast_operand),
)
UNROLL: tuple[tuple[str, _Where, Rule], ...] = (("short_reduction", p.Reduce, _unrolled),)
RESHAPE_OPERANDS = "reshape_operands"  # the pass of runtime/reshapes.py, from level 2 on
TABLES: dict[str, tuple[tuple[str, _Where, Rule], ...]] = {
    "fold": FOLD,
    "simplify": SIMPLIFY,
    "unroll": UNROLL,
}
MERGE = "merge_updates"  # of values that only one update reads, which no single node can tell
_Index = dict[Any, list[tuple[str, Rule]]]


def _active(disabled: frozenset[str]) -> _Index:
    """The rules that are switched on, by op type or row."""
    known = {
        *TABLES,
        RESHAPE_OPERANDS,
        MERGE,
        *(name for table in TABLES.values() for name, _, _ in table),
    }
    if unknown := disabled - known:
        raise ValueError(f"rewrite: no rule or table {sorted(unknown)}; there are {sorted(known)}")
    index: _Index = {}
    for table, rules in TABLES.items():
        for name, at, rule in rules:
            if table not in disabled and name not in disabled:
                for key in (at,) if isinstance(at, type) else at:
                    index.setdefault(key, []).append((name, rule))
    return index


def rewrite(
    graph: Graph, *, opt_level: int = 2, disabled: frozenset[str] = frozenset(),
    fired: dict[str, int] | None = None,
) -> Graph:  # fmt: skip
    """The graph after every rule has run out; level 0 leaves it as traced.

    `disabled` names rules or whole tables; `fired` receives how often each rule was used.
    """
    if opt_level <= 0:
        return graph
    rules = _active(disabled)
    where = dict(graph.where)
    new: dict[Node, Node] = {n: n for n in graph.inputs}
    order = topological(graph.outputs, stop=frozenset(graph.inputs))
    uses = Counter(source for node in order for source in node.src)
    uses.update(graph.outputs)
    for node in order:
        if node in new:
            continue
        src = tuple([new[s] for s in node.src])
        current = node if src == node.src else make(node.op, *src)
        if current.shape != node.shape:  # a source lost a guard that this node's shape relied on
            current = node
        read_once = isinstance(node.op, p.UpdateSlices) and uses[node.src[node.rank]] == 1
        merged = _merged(current) if read_once and MERGE not in disabled else None
        steps = _steps(current, rules) if merged is None else [(MERGE, merged)]
        for name, replacement in steps:
            current = replacement
            if fired is not None:
                fired[name] = fired.get(name, 0) + 1
        new[node] = current
        if node in where:
            where.setdefault(current, where[node])
    result = Graph(graph.inputs, tuple(new[o] for o in graph.outputs), where)
    if opt_level < 2 or RESHAPE_OPERANDS in disabled:
        return result
    return reshape_operands(result)


def _steps(node: Node, rules: _Index) -> Iterator[tuple[str, Node]]:
    """Replacements one after the other; each rule makes a node smaller or its sources shallower."""
    changed = True
    while changed:
        changed = False
        for name, rule in rules.get(_row(node) or type(node.op), ()):
            found = rule(node)
            if found is None or found is node:
                continue
            if found.dtype != node.dtype or found.shape != node.shape:
                continue
            node, changed = found, True
            yield name, node
            break
