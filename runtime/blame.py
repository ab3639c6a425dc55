"""Blame: what went wrong while a program ran in, a typed error that names op and line out.

The graph is the rewritten one with the calling function's own lines.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NoReturn

from opkiln.native import dtype_of
from opkiln.ops.defs import OpDef
from opkiln.ops.elementwise.presets import DIVISION_BY_ZERO, DIVISION_OVERFLOW
from opkiln.ops.primitives import (
    BroadcastTo,
    Diagonal,
    FromHost,
    HostOp,
    Input,
    MatMul,
    Reduce,
    Reshape,
    Slice,
    Squeeze,
    UpdateSlices,
)
from opkiln.ops.table import ELEMENTWISE, REDUCTIONS
from opkiln.runtime.errors import (
    BoundsError,
    CustomOpError,
    HostDivisionError,
    HostRangeError,
    IntegerDivisionError,
    IntegerPowerError,
    NotYet,
    OpkilnError,
    ShapeError,
)
from opkiln.runtime.graph import Graph, Node, topological
from opkiln.runtime.infer import guards
from opkiln.runtime.reference import RAISED, division_faults, evaluate_host, misfit

_NAMES: dict[type[OpDef], str] = {BroadcastTo: "broadcast_to", MatMul: "matmul"}

# What NumPy says of each fault bit.
_FAULTS = {DIVISION_BY_ZERO: "divide by zero", DIVISION_OVERFLOW: "overflow"}

# What the native side reports of a failed computation: its operands a and b, and the shapes of the
# graph's inputs, or nothing where they are not at hand.
Shapes = tuple[tuple[int, ...], ...]
Values = tuple[int, int, Shapes]

# What to say, as {kind: (error, text)}, where there is nothing better.
_HOST_ERRORS: dict[str, tuple[type[OpkilnError], str]] = {
    "broadcast": (ShapeError, "operands could not be broadcast together: extents {a} and {b}"),
    "same": (ShapeError, "an extent does not fit its target: expected {a}, got {b}"),
    "range": (HostRangeError, "Python integer {a} is out of bounds for {dtype}"),
    "overflow": (HostRangeError, "arithmetic on sizes or Python numbers is out of range"),
    "zero_division": (HostDivisionError, "division of a size or Python number by zero"),
    "index": (BoundsError, "index {a} is out of bounds for an axis of size {b}"),
    "negative_power": (IntegerPowerError, "Python integer to a negative power; use a float"),
    "domain": (
        NotYet,
        "a negative Python number to a fractional power is complex; np.power of an array gives nan",
    ),
}

# Ops whose operands need not broadcast: what does not fit is one extent.
_OF_ONE_EXTENT = (Diagonal, Slice, Squeeze, UpdateSlices)


def host_error(graph: Graph, kind: str, node: Node | None, values: Values) -> NoReturn:
    """Raise what a failed size or scalar computation, that of `node`, means.

    Raises:
        ShapeError, HostRangeError, HostDivisionError, IntegerPowerError, NotYet.
    """
    if kind == "empty_reduction":
        found = next((n for n in graph.nodes if _refuses(n, node)), None)
        op, at = place(graph, lambda n: n is found)
        text = REDUCTIONS[op].empty if found is not None else "nothing to reduce"
        raise ShapeError(f"{op}: {text}{at}")
    found = _first(graph, lambda n: node is not None and node in _host_nodes(n))
    op, at = _named(graph, found)
    a, b, shapes = values
    if kind == "same" and found is not None and _sums_over(found):
        raise ShapeError(f"{_CORE.format(a=a, b=b)}{at}")
    misfit = _misfit(found, shapes) if kind in ("broadcast", "same") else ""
    if misfit:
        raise ShapeError(f"{op}: {misfit}{at}")
    error, text = _HOST_ERRORS.get(kind, (ShapeError, kind + " ({a}, {b})"))
    dtype = dtype_of(b).name if kind == "range" else ""
    raise error(f"{op}: {text.format(a=a, b=b, dtype=dtype)}{at}")


# Of axes that a product sums over.
_CORE = (
    "matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature "
    "(n?,k),(k,m?)->(n?,m?) (size {b} is different from {a})"
)


def _sums_over(node: Node) -> bool:
    """Whether it is a matrix product, or checks an axis for a product with a vector."""
    checks = isinstance(node.op, BroadcastTo) and any(
        isinstance(n.op, HostOp) and n.op.fn == "same" for n in node.src[1:]
    )
    return checks or isinstance(node.op, MatMul)


def _misfit(node: Node | None, shapes: Shapes) -> str:
    """What does not fit what, by whole shapes as NumPy has them; "" if they cannot be known."""
    if node is None or not shapes:
        return ""
    try:
        known = [
            tuple(evaluate_host(s.shape, shapes)) for s in node.src if not s.is_host and s.shape
        ]
        if isinstance(node.op, _OF_ONE_EXTENT):
            return ""
        if not isinstance(node.op, (BroadcastTo, Reshape)):
            return misfit(known)
        target = tuple(int(n) for n in evaluate_host(node.src[1:], shapes))
    except (OpkilnError, IndexError):  # a size that comes from a Python number
        return ""
    if isinstance(node.op, Reshape):
        size, text = prod(int(n) for n in known[0]), str(target).replace(" ", "")
        return f"cannot reshape array of size {size} into shape {text}"
    return f"an array of shape {known[0]} cannot be broadcast to shape {target}"


def _refuses(node: Node, guard: Node | None) -> bool:
    """Whether the node is a reduction that `guard` guards; equal ones share a guard."""
    if not isinstance(node.op, Reduce) or node.op.seeded or not REDUCTIONS[node.op.row].empty:
        return False
    return guard is None or guard in guards(node)


def op_error(graph: Graph, call: Node | None, said: str) -> NoReturn:
    """Raise what a custom op says of its call, which is this node of the graph.

    Raises:
        CustomOpError: always.
    """
    op, at = _named(graph, call)
    raise CustomOpError(f"{op}: {said}{at}")


def fault(graph: Graph, bits: int, namespace: dict[str, Any], *, raises: bool) -> None:
    """Raise or warn for kernels that met data on which NumPy raises or warns.

    Warnings are NumPy's, at the user's line; `namespace` is where those given are remembered.

    Raises:
        IntegerPowerError, ChoiceError: what always raises, whatever `raises` says.
        IntegerDivisionError: an integer division fault, with `raises`.
    """
    for bit, (error, text) in RAISED.items():
        if bits & bit:
            op, at = place(graph, lambda n, bit=bit: bool(_faults(n) & bit))  # type: ignore[misc]
            raise error(f"{op}: {text}{at}")
    for bit, what in _FAULTS.items():
        found = divisions(graph, bit) if bits & bit else []
        if raises and found:
            where = " or ".join(f"{op} ({at})" if at else op for op, at in found)
            raise IntegerDivisionError(
                f"{what} encountered in {where}",
                fix="keep zeros out, for example with np.where(y == 0, 1, y), or use "
                'ok.errstate(integer_divide="ignore") for NumPy\'s value',
            )
        if found:
            import warnings

            file, _, line = found[0][1].rpartition(":")
            names = " or ".join(dict.fromkeys(op for op, _ in found))
            warnings.warn_explicit(
                f"{what} encountered in {names}",
                RuntimeWarning,
                file or "<unknown>",
                int(line or 0),
                registry=namespace.setdefault("__warningregistry__", {}),
            )


def divisions(graph: Graph, bits: int) -> list[tuple[str, str]]:
    """Name and "file:line" (or "") of each op that may report one of these fault bits."""
    found = ((n.op.name, graph.where.get(n, "")) for n in graph.nodes if division_faults(n) & bits)
    return list(dict.fromkeys(found))


def _faults(node: Node) -> int:
    """The fault bits of an integer row."""
    row = ELEMENTWISE.get(node.op.name) if node.dtype.kind in "iu" else None
    return row.faults if row else 0


def place(graph: Graph, wanted: Callable[[Node], bool]) -> tuple[str, str]:
    """Name of the first op that fits, and " (file:line)" where the user wrote it."""
    return _named(graph, _first(graph, wanted))


def _first(graph: Graph, wanted: Callable[[Node], bool]) -> Node | None:
    found: Node | None = None
    for node in graph.nodes:
        if node.is_host or isinstance(node.op, Input):
            continue
        # A Python number enters by a conversion; the user knows the op that it feeds.
        if found is not None and isinstance(found.op, FromHost):
            found = node if found in node.src else found
        elif wanted(node):
            found = node
        if found is not None and not isinstance(found.op, FromHost):
            break
    return found


def _named(graph: Graph, found: Node | None) -> tuple[str, str]:
    if found is None:
        return "call", ""
    at = graph.where.get(found)
    return _NAMES.get(type(found.op), found.op.name), f" ({at})" if at else ""


def _host_nodes(node: Node) -> list[Node]:
    """The sizes and Python numbers that a node directly depends on."""
    return topological([*node.shape, *guards(node), *(s for s in node.src if s.is_host)])
