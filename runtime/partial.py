"""Partial evaluation: a graph and what is known of its inputs in; what follows for its nodes out.

None stands for what is not known. Nothing is allocated but small values, nothing is built, no event
is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from opkiln.ops import primitives as p
from opkiln.runtime.describe import SMALL_VALUE_NUMEL, Shape, TensorDesc
from opkiln.runtime.errors import OpkilnError, ShapeError
from opkiln.runtime.graph import Graph, Node, topological
from opkiln.runtime.infer import guards
from opkiln.runtime.reference import checked, compute, host_function

Number = int | float


def broadcast(sizes: Sequence[Any]) -> int | None:
    """The size that axes broadcast to: the known one that is not 1 wins, and is checked later.

    Raises:
        ShapeError: two known sizes differ, and neither is 1.
    """
    decided = {n for n in sizes if n not in (None, 1)}
    if len(decided) > 1:
        raise ShapeError("operands could not be broadcast together")
    if decided:
        return decided.pop()  # type: ignore[no-any-return]
    return None if None in sizes else 1


def _host(fn: str, args: list[Any]) -> Number | None:
    if fn == "bcast":
        return broadcast(args)
    if fn == "nonempty":
        return None if args[0] is None else checked(host_function(fn)(args[0]))
    if None not in args:
        return checked(host_function(fn)(*args))
    if fn == "same":  # one is known: so is the other, once the run has checked it
        return next((n for n in args if n is not None), None)
    return 0 if fn == "mul" and 0 in args else None


class Known:
    """What is known of the nodes of one graph."""

    def __init__(self, descs: Sequence[TensorDesc]) -> None:
        self.descs = descs
        self.numbers: dict[Node, Number | None] = {}
        self.values: dict[Node, Any] = {}

    def number(self, root: Node) -> Number | None:
        """The value of a host node."""
        if root not in self.numbers:
            for node in topological([root]):
                if node.is_host and node not in self.numbers:
                    self.numbers[node] = self._number(node)
        return self.numbers[root]

    def _number(self, node: Node) -> Number | None:
        match node.op:
            case p.HostConst(value=value):
                return value
            case p.Dim(axis=axis):
                source = node.src[0].op
                assert isinstance(source, p.Input)
                shape = self.descs[source.index].shape
                return None if shape is None else shape[axis]
            case p.HostOp(fn=fn):
                args: list[Any] = [self.numbers[s] for s in node.src]
                if node.dtype is float:
                    args = [None if a is None else float(a) for a in args]
                return _host(fn, args)
            case _:
                raise TypeError(f"no host value for {node!r}")

    def shape(self, node: Node) -> tuple[Any, ...]:
        """The sizes of an array node.

        Raises:
            ShapeError: what is known contradicts itself; names the op and its operands.
        """
        try:
            sizes = tuple(self.number(dim) for dim in node.shape)
            for guard in guards(node):
                self.number(guard)
        except OpkilnError as error:
            raise self._named(node, error) from None
        return sizes

    def _named(self, node: Node, error: OpkilnError) -> OpkilnError:
        shapes = " ".join(
            "(" + ",".join("?" if n is None else str(n) for n in map(self.number, s.shape)) + ")"
            for s in node.src
            if not s.is_host
        )
        name = p.op_text(node.op)[0]
        return type(error)(f"{name}: {error}, operands {shapes}" if shapes else f"{name}: {error}")

    def value(self, node: Node, shape: tuple[Any, ...]) -> Any:
        """The small value of an array node, or None; those of its sources are there."""
        if isinstance(node.op, p.Input):
            return self.descs[node.op.index].value
        unknown = None in shape or isinstance(node.op, p.CustomCall)
        if unknown or prod(shape) > SMALL_VALUE_NUMEL:
            return None
        args = [self.number(s) if s.is_host else self.values.get(s) for s in node.src]
        if any(a is None for a in args):
            return None
        try:
            with np.errstate(all="ignore"):
                return np.asarray(compute(node, args))
        except OpkilnError:  # of the data, such as an integer to a negative power: a run will tell
            return None


def infer(
    graph: Graph, descs: Sequence[TensorDesc], device: str
) -> tuple[tuple[TensorDesc, ...], bool]:
    """Descriptions of the outputs, and whether every node has a known shape.

    Raises:
        ShapeError: what is known contradicts itself.
    """
    known = Known(descs)
    shapes: dict[Node, Shape] = {}
    for node in graph.nodes:
        if not node.is_host:
            shape = known.shape(node)
            shapes[node] = shape
            known.values[node] = known.value(node, shape)
    validated = all(None not in shape for shape in shapes.values() if shape is not None)
    outputs = tuple(
        TensorDesc(node.dtype, shapes[node], device, value=known.values[node])
        for node in graph.outputs
    )
    return outputs, validated
