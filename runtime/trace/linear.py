"""Products of traced arrays: NumPy's matmul, dot, tensordot and the like in, contractions out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.table import ELEMENTWISE
from opkiln.runtime.errors import AxisError, ShapeError, TraceError
from opkiln.runtime.graph import Node
from opkiln.runtime.infer import numel
from opkiln.runtime.trace import contraction, reductions, views
from opkiln.runtime.trace.contraction import Label, Term, narrow, wide
from opkiln.runtime.trace.promote import (
    BROADCAST,
    cast,
    elementwise,
    elementwise_operand,
    session_of,
)
from opkiln.runtime.trace.session import ArrayValue, HostValue, Session, failure, is_a
from opkiln.runtime.trace.tracer import Tracer, call_row

DT = np.dtype[Any]
_MISMATCH = (
    "{name}: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature "
    "{signature} (size {{1}} is different from {{0}})"
)


def _operands(*values: Any) -> tuple[Session, list[Node]]:
    """Arguments as nodes."""
    session = session_of([v for v in values if isinstance(v, (ArrayValue, HostValue))])
    return session, [elementwise_operand(session, v) for v in values]


def _contracted(
    session: Session, a: Term, b: Term, kept: tuple[Label, ...], dtype: DT, text: str
) -> Any:
    """The contraction in `dtype` of two operands, whose summed axes must be of one length.

    Raises:
        ShapeError: in the words of `text`, if that is known by now.
    """
    terms = [Term(cast(session, t.node, wide(dtype)), t.labels) for t in (a, b)]
    value = contraction.contract_all(session, terms, kept, text)
    return Tracer(session, narrow(session, value, dtype))


# ---- generalised ufuncs ----


def _loop_dtype(ufunc: np.ufunc, nodes: list[Node]) -> DT:
    """The dtype that NumPy's ufunc computes in.

    Raises:
        TraceError: it has no loop for these dtypes.
    """
    dtypes = [n.dtype for n in nodes]
    if any(d.kind == "V" for d in dtypes):  # bfloat16
        found: DT = np.result_type(*dtypes)
        return found
    try:
        return ufunc.resolve_dtypes((*dtypes, None))[0]
    except TypeError as error:
        raise failure(
            TraceError, f"np.{ufunc.__name__}: {error}", fix="cast the operands first"
        ) from None


def _checked(
    ufunc: np.ufunc, least: tuple[int, int], x1: Any, x2: Any
) -> tuple[Session, Node, Node]:
    """The operands, of ranks that the ufunc takes."""
    session, nodes = _operands(x1, x2)
    for i, (node, rank) in enumerate(zip(nodes, least, strict=True)):
        if node.rank < rank:
            raise failure(
                ShapeError,
                f"{ufunc.__name__}: Input operand {i} does not have enough dimensions (has "
                f"{node.rank}, gufunc core with signature {ufunc.signature} requires {rank})",
                fix=None if node.rank else "write a * b to multiply by a number",
            )
    a, b = nodes
    return session, a, b


def _by_core(
    ufunc: np.ufunc, session: Session, a: Node, b: Node, left: str, right: str, result: str
) -> Any:
    """Two operands whose last axes have these names; those before them broadcast."""
    x, y = (
        Term(node, (*range(len(core) - node.rank, 0), *core))
        for node, core in ((a, left), (b, right))
    )
    batch = range(min(len(left) - a.rank, len(right) - b.rank), 0)
    text = _MISMATCH.format(name=ufunc.__name__, signature=ufunc.signature)
    dtype = _loop_dtype(ufunc, [a, b])
    return _contracted(session, x, y, (*batch, *result), dtype, text)


def _conjugate(session: Session, x: Node) -> Node:
    return elementwise(session, ELEMENTWISE["conjugate"], (x,)) if x.dtype.kind == "c" else x


def matmul(x1: Any, x2: Any) -> Any:
    """np.matmul and @."""
    session, a, b = _checked(np.matmul, (1, 1), x1, x2)
    if a.rank > 1 and b.rank > 1:
        dtype = _loop_dtype(np.matmul, [a, b])
        factors = [cast(session, x, wide(dtype)) for x in (a, b)]
        return Tracer(session, narrow(session, session.make(p.MatMul(), *factors), dtype))
    left, right = "mk"[-a.rank :] if a.rank == 1 else "mk", "kn"[: min(b.rank, 2)]
    kept = "".join(x for x in "mn" if x in left + right)
    return _by_core(np.matmul, session, a, b, left, right, kept)


def matmul_like(x: Any, other: Any) -> Any:
    """`x @ other` in the shape of `x`, which a run checks: in place nothing broadcasts."""
    value = matmul(x, other)
    want, node = x.node.shape, value.node
    if node.rank != len(want):
        raise failure(
            ShapeError,
            f"matmul: a result of rank {node.rank} does not fit into an array of rank {len(want)} "
            f"in place",
            fix="write x = x @ w",
        )
    same = p.HostOp("same")
    shape = [
        d if d is to else x.session.make(same, to, d)
        for d, to in zip(node.shape, want, strict=True)
    ]
    if tuple(shape) == node.shape:
        return value
    return Tracer(x.session, x.session.make(BROADCAST, node, *shape))


def vecdot(x1: Any, x2: Any) -> Any:
    """np.vecdot."""
    session, a, b = _checked(np.vecdot, (1, 1), x1, x2)
    return _by_core(np.vecdot, session, _conjugate(session, a), b, "n", "n", "")


def matvec(x1: Any, x2: Any) -> Any:
    """np.matvec."""
    session, a, b = _checked(np.matvec, (2, 1), x1, x2)
    return _by_core(np.matvec, session, a, b, "mn", "n", "m")


def vecmat(x1: Any, x2: Any) -> Any:
    """np.vecmat."""
    session, a, b = _checked(np.vecmat, (1, 2), x1, x2)
    return _by_core(np.vecmat, session, _conjugate(session, a), b, "n", "nm", "m")


def _linalg_matmul(x1: Any, x2: Any, /) -> Any:
    return matmul(x1, x2)


def _linalg_vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    moved = [views.moveaxis(views.as_array(session_of((x1, x2)), x), axis, -1) for x in (x1, x2)]
    return vecdot(*moved)


# ---- dot and its kin ----


def dot(a: Any, b: Any, out: Any = None) -> Any:
    """np.dot."""
    reductions.refuse_out("dot", out)
    session, (x, y) = _operands(a, b)
    if not x.rank or not y.rank:
        return call_row("multiply", Tracer(session, x), Tracer(session, y))
    left = (*range(x.rank - 1), "k")
    right: tuple[Label, ...] = tuple(range(100, 100 + y.rank))
    right = (*right[:-2], "k", *right[-1:]) if y.rank > 1 else ("k",)
    kept = tuple(label for label in (*left, *right) if label != "k")
    text = f"shapes not aligned: {{0}} (dim {x.rank - 1}) != {{1}} (dim {max(y.rank - 2, 0)})"
    dtype = np.result_type(x.dtype, y.dtype)
    return _contracted(session, Term(x, left), Term(y, right), kept, dtype, text)


def inner(a: Any, b: Any, /) -> Any:
    """np.inner."""
    session, (x, y) = _operands(a, b)
    if not x.rank or not y.rank:
        return call_row("multiply", Tracer(session, x), Tracer(session, y))
    return tensordot(Tracer(session, x), Tracer(session, y), ((-1,), (-1,)))


def vdot(a: Any, b: Any, /) -> Any:
    """np.vdot."""
    session, (x, y) = _operands(a, b)
    flat = [_flat(session, node) for node in (_conjugate(session, x), y)]
    return dot(*(Tracer(session, node) for node in flat))


def _flat(session: Session, node: Node) -> Node:
    """np.ravel."""
    if node.rank == 1:
        return node
    if not node.rank:
        return session.make(p.ExpandDims((0,)), node)
    return session.make(p.Reshape(), node, numel(node.shape))


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """np.tensordot."""
    session, (x, y) = _operands(a, b)
    of_a, of_b = _axes_of(axes, x.rank, y.rank)
    if len(of_a) != len(of_b):
        raise failure(ShapeError, "shape-mismatch for sum")
    left: list[Label] = [("a", i) for i in range(x.rank)]
    right: list[Label] = [("b", i) for i in range(y.rank)]
    for i, (one, other) in enumerate(zip(of_a, of_b, strict=True)):
        left[one] = right[other] = ("k", i)
    kept = tuple(label for label in (*left, *right) if label not in left or label not in right)
    dtype = np.result_type(x.dtype, y.dtype)
    text = "shape-mismatch for sum: {0} and {1}"
    return _contracted(session, Term(x, tuple(left)), Term(y, tuple(right)), kept, dtype, text)


def _axes_of(axes: Any, rank_a: int, rank_b: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes= of tensordot: how many, or which of each operand."""
    if not is_a(axes, tuple, list):
        count = views.whole(axes, "axes", "pass an int, or two sequences of ints")
        if count > min(rank_a, rank_b):
            raise failure(
                AxisError, f"tensordot: {count} axes of operands of rank {rank_a} and {rank_b}"
            )
        return tuple(range(rank_a - count, rank_a)), tuple(range(count))
    of_a, of_b = axes
    return views.many_axes(of_a, rank_a), views.many_axes(of_b, rank_b)


def multi_dot(arrays: Any, *, out: Any = None) -> Any:
    """np.linalg.multi_dot, from left to right: the best order depends on run-time sizes."""
    reductions.refuse_out("multi_dot", out)
    given = list(arrays)
    if len(given) < 2:
        raise failure(ShapeError, "Expecting at least two arrays.")
    result, *rest = given
    for array in rest:
        result = dot(result, array)
    return result


# Norms of vectors by ord=; of a matrix only the Frobenius norm, which is that of its elements.
_NORMS: dict[Any, Callable[[Any, Any, Any], Any]] = {
    2: lambda size, axis, keep: call_row("sqrt", (size * size).sum(axis, keepdims=keep)),
    1: lambda size, axis, keep: size.sum(axis, keepdims=keep),
    np.inf: lambda size, axis, keep: size.max(axis, keepdims=keep),
    -np.inf: lambda size, axis, keep: size.min(axis, keepdims=keep),
}


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: Any = False) -> Any:
    """np.linalg.norm, but for those that take singular values or are no norm."""
    session, (node,) = _operands(x)
    kind = node.dtype.kind
    array = Tracer(session, node if kind in "fc" else cast(session, node, np.dtype(np.float64)))
    axes = None if axis is None else views.many_axes(axis, node.rank)
    count = node.rank if axes is None else len(axes)
    wanted = 2 if ord is None or (ord == "fro" and count == 2) else ord
    matrix = ord is not None and ord != "fro" and count != 1
    if wanted not in _NORMS or matrix:
        raise failure(
            TraceError,
            f"np.linalg.norm: ord={ord!r} over {count} axes cannot be traced yet",
            fix="compute it outside the compiled function; ord= of None, and of 1, 2, inf and -inf "
            "over one axis, can",
        )
    return _NORMS[wanted](abs(array), axes, keepdims)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.dot: dot,
    np.inner: inner,
    np.vdot: vdot,
    np.tensordot: tensordot,
    np.einsum: contraction.einsum,
    np.linalg.matmul: _linalg_matmul,
    np.linalg.vecdot: _linalg_vecdot,
    np.linalg.tensordot: tensordot,
    np.linalg.multi_dot: multi_dot,
    np.linalg.norm: norm,
}
METHODS: dict[str, Callable[..., Any]] = {"dot": dot}
UFUNCS: dict[np.ufunc, Callable[..., Any]] = {
    np.matmul: matmul,
    np.vecdot: vecdot,
    np.matvec: matvec,
    np.vecmat: vecmat,
}
