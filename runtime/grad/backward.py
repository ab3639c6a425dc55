"""Backward graphs: a graph and masks in, the graph of its gradients out, valid for every size.

Its inputs are those of (inputs, results, cotangents of the results) that it uses. A result that is
at hand is not computed again; an input of which only sizes are used is told apart, so that nobody
keeps its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.dtypes import kind_of
from opkiln.ops.record import record
from opkiln.runtime.errors import ArgumentError, TraceError
from opkiln.runtime.grad.reverse import Reverse, same_values, variable
from opkiln.runtime.graph import Graph, Node, const_value, substituted, topological
from opkiln.runtime.infer import graph_input
from opkiln.runtime.rewrite import rewrite
from opkiln.runtime.trace.session import Session, failure
from opkiln.runtime.trace.tracer import Tracer

Array = np.ndarray[Any, np.dtype[Any]]
Mask = tuple[bool, ...]


@record
class Standing(p.Transient):
    """A result or cotangent that will be passed in, in the shape of the result itself."""

    index: int


@record
class Backward:
    """Gradients of a graph as a graph.

    The masks speak of its candidates: the forward inputs, results, and cotangents of the results.
    """

    graph: Graph  # from the candidates in `inputs` to the gradients in `outputs`
    inputs: Mask  # candidates that it takes
    values: Mask  # candidates whose elements it reads; of others that it takes, sizes only
    outputs: Mask  # forward inputs that get a gradient

    def __bool__(self) -> bool:
        return any(self.outputs)

    def precompute(self, *candidates: Any) -> tuple[Array, ...]:
        """The sizes of the candidates of which only sizes are needed: a vector for each."""
        return tuple(
            np.array(np.shape(value), np.int64)
            for value, taken, read in zip(candidates, self.inputs, self.values, strict=True)
            if taken and not read
        )

    def arguments(self, saved: Sequence[Any], sizes: Sequence[Any]) -> list[Any]:
        """What the graph takes, from the candidates in `values` and the sizes of the others.

        These are arrays without memory: one element, repeated.
        """
        values, shapes = iter(saved), iter(sizes)
        kinds = iter(self.graph.inputs)
        found: list[Any] = []
        for taken, read in zip(self.inputs, self.values, strict=True):
            if taken:
                dtype = next(kinds).dtype
                found.append(
                    next(values) if read else np.broadcast_to(np.empty((), dtype), next(shapes))
                )
        return found


def backward_graph(graph: Graph, need: Sequence[bool], has: Sequence[bool]) -> Backward:
    """The gradients of a graph by the inputs in `need`, from cotangents of the outputs in `has`.

    Raises:
        GradientError: an op on the way has no rule, or takes complex values.
    """

    def apply(session: Session, inputs: Sequence[Any]) -> list[Any]:
        known = {node: value.node for node, value in zip(graph.inputs, inputs, strict=True)}
        new = session.substitute(graph.outputs, known)
        for node, place in graph.where.items():
            session.places.setdefault(new.get(node, node), place)
        return [Tracer(session, new[node]) for node in graph.outputs]

    signature = [(node.dtype, node.rank) for node in graph.inputs]
    return backward_of(apply, signature, need, has)


def backward_of(
    apply: Callable[[Session, Sequence[Any]], Sequence[Any]],
    signature: Sequence[tuple[np.dtype[Any], int]],
    need: Sequence[bool],
    has: Sequence[bool],
) -> Backward:
    """As `backward_graph`, of a function over traced arrays of these dtypes and ranks.

    Raises:
        TraceError: the function holds arrays of its own.
    """
    session = Session("backward")
    session.inputs = [graph_input(i, dtype, rank) for i, (dtype, rank) in enumerate(signature)]
    wrt: dict[Node, str] = {}
    given = list(session.inputs)
    for i, (node, wanted) in enumerate(zip(session.inputs, need, strict=True)):
        if wanted and kind_of(node.dtype) == "f":
            given[i] = variable(session, node)
            wrt[given[i]] = f"input {i}"
    outputs = [v.node for v in apply(session, [Tracer(session, n, owned=False) for n in given])]
    if len(session.inputs) != len(given):
        raise failure(
            TraceError,
            "a backward graph of a function that holds arrays",
            fix="pass them as inputs",
        )
    if len(has) != len(outputs):
        raise failure(
            ArgumentError, f"expected a mask of {len(outputs)} results, got one of {len(has)}"
        )
    count = len(given) + len(outputs)
    seeds = [
        (node, session.make(Standing(count + j), node))
        for j, (node, sent) in enumerate(zip(outputs, has, strict=True))
        if sent and kind_of(node.dtype) == "f"
    ]
    found = dict(zip(wrt, Reverse(session, wrt, refuse=False).gradients(seeds), strict=True))
    gradients = [found.get(node) for node in given]
    known = _at_hand(outputs, given, seeds)
    roots = [g for g in gradients if g is not None]
    new = session.substitute(roots, known, finish=True)
    whole = rewrite(Graph((), tuple(new[g] for g in roots)))
    return _encoded(whole.outputs, tuple(g is not None for g in gradients), count + len(outputs))


def _at_hand(
    outputs: Sequence[Node], given: Sequence[Node], seeds: Sequence[tuple[Node, Node]]
) -> dict[Node, Node]:
    """What inputs after the forward ones stand for: results, cotangents, and their extents."""
    known: dict[Node, Node] = {}
    for node, standing in seeds:
        assert isinstance(standing.op, Standing)
        known[standing] = graph_input(standing.op.index, standing.dtype, standing.rank)
        for own, extent in zip(node.shape, known[standing].shape, strict=True):
            if const_value(own) is None:
                known.setdefault(own, extent)
    for j, node in enumerate(outputs):
        result = graph_input(len(given) + j, node.dtype, node.rank)
        for own in same_values(node):
            if own not in given and not isinstance(own.op, p.Constant):
                known.setdefault(own, result)
    return known


def _encoded(gradients: tuple[Node, ...], outputs: Mask, count: int) -> Backward:
    """The graph over those of `count` candidates alone that the gradients use."""
    order = topological(gradients)
    read = {s for n in order if not isinstance(n.op, p.Dim) for s in n.src} | {*gradients}
    used = {n.op.index: n for n in order if isinstance(n.op, p.Input)}
    inputs = [graph_input(i, used[at].dtype, used[at].rank) for i, at in enumerate(sorted(used))]
    known = {used[at]: new for at, new in zip(sorted(used), inputs, strict=True)}
    new = substituted(gradients, known)
    return Backward(
        Graph(tuple(inputs), tuple(new[g] for g in gradients)),
        tuple(at in used for at in range(count)),
        tuple(at in used and used[at] in read for at in range(count)),
        outputs,
    )
