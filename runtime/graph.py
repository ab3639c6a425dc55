"""Graph: ops and their sources in, interned SSA nodes out.

A node has a dtype, a symbolic shape, and a digest that is the same in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from opkiln.ops.defs import OpDef, digest_of
from opkiln.ops.primitives import HOST_OPS, Dim, HostConst, HostOp, Input, Transient, op_text
from opkiln.ops.rules import RULES
from opkiln.runtime.errors import HostRangeError

_INTERNED: WeakValueDictionary[tuple[OpDef, tuple[Node, ...]], Node] = WeakValueDictionary()

HostType = type[int] | type[float]
NOT_ONE = -1  # as the size that a trace holds for: any but 1
# A size that a trace holds for: an input and its axis, and the size or the axis that it equals.
Pin = tuple[int, int, int | tuple[int, int]]


class Node:
    """One value: op, sources, dtype, shape. Equal (op, sources) are one object: `is` is equality.

    `dtype` is a NumPy dtype, or the Python type int or float for a host scalar. `shape` holds one
    host node per axis; a host scalar's shape is ().
    """

    __slots__ = ("__weakref__", "_digest", "dtype", "op", "shape", "src")

    op: OpDef
    src: tuple[Node, ...]
    dtype: Any
    shape: tuple[Node, ...]
    _digest: bytes | None

    def __init__(
        self, op: OpDef, src: tuple[Node, ...], dtype: Any, shape: tuple[Node, ...]
    ) -> None:
        self.op, self.src, self.dtype, self.shape, self._digest = op, src, dtype, shape, None

    @property
    def is_host(self) -> bool:
        """Whether the value lives on the host: sizes and weak scalars."""
        return isinstance(self.op, HOST_OPS)

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def digest(self) -> bytes:
        """128 bits over op and sources; the same in every process."""
        stack = [self] if self._digest is None else []
        while stack:  # only where digests are missing, so that a growing graph is walked once
            node = stack[-1]
            missing = [s for s in node.src if s._digest is None]
            stack += missing
            if not missing:
                stack.pop()
                node._digest = digest_of((node.op.digest, *(s._digest or b"" for s in node.src)))
        assert self._digest is not None
        return self._digest

    def __repr__(self) -> str:
        return f"<{' '.join(filter(None, op_text(self.op)))}: {type_text(self)}>"


def make(op: OpDef, *src: Node) -> Node:
    """The node of `op` over `src`, checked and interned.

    Raises:
        TypeError, ValueError: the op's infer rule refuses these sources.
    """
    key = (op, src)
    node = _INTERNED.get(key)
    if node is None:
        dtype, shape = RULES.find("infer", op)(op, src)
        node = Node(op, src, dtype, shape)
        # Two threads may both get here: setdefault makes one of the two nodes the only one.
        node = _INTERNED.setdefault(key, node)
    return node


def host_const(value: int | float) -> Node:
    """A host scalar known now.

    Raises:
        HostRangeError: an integer that int64 does not hold.
    """
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise HostRangeError(f"a size, an index or arithmetic on sizes overflows int64: {value}")
    return make(HostConst(value))


def const_value(node: Node) -> int | float | None:
    """The value of a host constant, else None."""
    return node.op.value if isinstance(node.op, HostConst) else None


def is_one(node: Node) -> bool:
    """Whether an extent is known to be 1."""
    return const_value(node) == 1


def topological(roots: Iterable[Node], *, stop: frozenset[Node] = frozenset()) -> list[Node]:
    """Nodes reachable through sources, each after its sources; no recursion, so depth is free.

    Nodes in `stop` are listed but not entered. Shapes are not followed: extents are reached
    through `Node.shape` by whoever needs them.
    """
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, Iterator[Node]]] = []
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        stack.append((root, iter(() if root in stop else root.src)))
        while stack:
            node, sources = stack[-1]
            for source in sources:
                if source not in seen:
                    seen.add(source)
                    stack.append((source, iter(() if source in stop else source.src)))
                    break
            else:
                stack.pop()
                order.append(node)
    return order


def substituted(
    roots: Iterable[Node], known: Mapping[Node, Node], *, finish: bool = False,
    remake: Callable[..., Node] = make,
) -> dict[Node, Node]:  # fmt: skip
    """What becomes of each node that the roots need when those in `known` are replaced.

    An extent of a replaced input is that of its replacement; `remake` makes all other nodes. With
    `finish`, no Transient is left.
    """
    new = dict(known)
    for node in topological(roots, stop=frozenset(known)):
        if node in new:
            continue
        src = tuple([new[s] for s in node.src])
        if finish and isinstance(node.op, Transient):
            new[node] = src[0]
        elif src == node.src:
            new[node] = node
        elif isinstance(node.op, Dim):
            new[node] = src[0].shape[node.op.axis]
        else:
            new[node] = remake(node.op, *src)
    return new


Names = Mapping[Node, str]  # for printing: what to call inputs, scalars and sizes
_NO_NAMES: Names = {}


class Graph:
    """A traced function: the input nodes, in leaf order, and the output nodes.

    `where` maps a node to the user's "file:line" that made it; it is not part of the identity.
    """

    __slots__ = ("_digest", "inputs", "outputs", "where")

    def __init__(
        self,
        inputs: tuple[Node, ...],
        outputs: tuple[Node, ...],
        where: dict[Node, str] | None = None,
    ) -> None:
        for i, node in enumerate(inputs):
            if not isinstance(node.op, Input) or node.op.index != i:
                raise TypeError(f"graph input {i}: expected Input({i}, ...), got {node!r}")
        self.inputs = inputs
        self.outputs = outputs
        self.where = where or {}
        self._digest: bytes | None = None

    @property
    def nodes(self) -> list[Node]:
        """All nodes that the outputs need, in topological order."""
        return topological(self.outputs)

    @property
    def digest(self) -> bytes:
        """128 bits over inputs and outputs; the same in every process."""
        if self._digest is None:
            parts = tuple(n.op.digest for n in self.inputs), tuple(n.digest for n in self.outputs)
            self._digest = digest_of(parts)
        return self._digest

    def with_outputs(self, outputs: tuple[Node, ...]) -> Graph:
        """The same inputs and locations with other outputs."""
        return Graph(self.inputs, outputs, self.where)

    def __str__(self) -> str:
        return self.text({})

    def text(self, names: Names) -> str:
        """One line per node, in columns."""
        known: dict[Node, str] = {}
        rows: list[tuple[str, str, str]] = []
        for node in topological([*self.inputs, *self.outputs]):
            if node.is_host and node not in self.outputs:
                known[node] = size_text(node, names)
                continue
            known[node] = f"%{len(rows)}"
            name, props = op_text(node.op)
            parts = [names.get(node, name), *(known[s] for s in node.src), props]
            at = self.where.get(node)
            rows.append(
                (
                    f"{known[node]} = {' '.join(filter(None, parts))}",
                    type_text(node, names),
                    f"  # {at}" if at else "",
                )
            )
        wide = [max((len(row[i]) for row in rows if len(row[i]) <= 60), default=0) for i in (0, 1)]
        lines = [f"{what:<{wide[0]}} : {kind:<{wide[1]}}{at}".rstrip() for what, kind, at in rows]
        return "\n".join([*lines, "return " + " ".join(known[o] for o in self.outputs)])


def type_text(node: Node, names: Names = _NO_NAMES) -> str:
    """Dtype and extents of a value, for printing."""
    kind = node.dtype.__name__ if node.is_host else np.dtype(node.dtype).name
    return f"{kind}[{', '.join(size_text(dim, names) for dim in node.shape)}]"


def size_text(node: Node, names: Names = _NO_NAMES) -> str:
    """A host scalar as a short expression, for printing; long ones are cut."""
    if node in names:
        return names[node]
    value = const_value(node)
    if value is not None:
        return repr(value)
    if isinstance(node.op, HostOp):
        text = f"{node.op.fn}({', '.join(size_text(s, names) for s in node.src[:4])})"
        return text if len(text) <= 80 else f"{node.op.fn}(...)"
    if node.src:
        return f"arg{getattr(node.src[0].op, 'index', '?')}.shape[{getattr(node.op, 'axis', '?')}]"
    return f"scalar{getattr(node.op, 'index', '?')}"
