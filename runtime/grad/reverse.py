"""Reverse mode: values and their cotangents in, the gradients of nodes that they depend on out.

One walk from the values back to the variables. What an op passes on is a rule of its type
("backward"), a function over traced values: the gradients are ordinary nodes of the same graph,
which every later stage rewrites and fuses, and which can be differentiated again.

A cotangent may have fewer elements than its node, as long as it broadcasts to it: that of a sum
stays one number until it meets an array.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.dtypes import kind_of
from opkiln.ops.record import record
from opkiln.ops.rules import RULES, NoRule
from opkiln.runtime.errors import GradientError
from opkiln.runtime.grad import rules
from opkiln.runtime.grad.custom import CustomOutput, custom_of
from opkiln.runtime.graph import Node, topological
from opkiln.runtime.trace.promote import BROADCAST, session_of
from opkiln.runtime.trace.session import ArrayValue, Session, failure
from opkiln.runtime.trace.tracer import Tracer
from opkiln.runtime.tree import mapped

_ADD = p.Elementwise("add")
_numbers = itertools.count()


@record
class Variable(p.Transient):
    """A value with respect to which one gradient is taken, apart from all others equal to it."""

    number: int


def variable(session: Session, node: Node) -> Node:
    """A node that stands for `node`, on which nothing depends yet."""
    session.transient = True
    return session.make(Variable(next(_numbers)), node)


@record
class Stopped(p.Transient):
    """A value that counts as a constant."""


def same_values(node: Node) -> Iterator[Node]:
    """The node, and those that it is a mark of: what a rule computes has them, not the mark."""
    yield node
    while isinstance(node.op, (CustomOutput, Stopped)):
        node = node.src[0]
        yield node


def stop_gradient(tree: Any, /) -> Any:
    """The values as they are, as constants of every gradient; also a tree of values.

    Their gradient is 0, not an error. On arrays, which no trace knows, it does nothing.
    """

    def leaf(value: Any) -> Any:
        if not isinstance(value, ArrayValue):
            return value
        session = session_of([value])
        session.transient = True
        return Tracer(session, session.make(Stopped(), value.node), owned=False)

    return mapped(tree, leaf)


class Reverse:
    """One walk: what each node has been sent so far, and where paths ended.

    `wrt` maps the variables to their names in messages. Unless `refuse`, a variable may have no
    gradient although the values depend on it.
    """

    def __init__(self, session: Session, wrt: Mapping[Node, str], *, refuse: bool = True) -> None:
        self.session = session
        self.refuse = refuse
        self.wrt = wrt
        self.cotangents: dict[Node, list[Node]] = {}
        self.active: set[Node] = set()  # what depends on a variable
        self.ends: list[Node] = []  # ops that pass nothing on to what depends on a variable

    def gradients(self, seeds: Sequence[tuple[Node, Node]]) -> list[Node | None]:
        """The gradient of each variable, in its shape; None where there is none.

        `seeds` are values with their cotangents.

        Raises:
            GradientError: no rule, a complex value, or all paths to a variable end before it.
        """
        order = topological(node for node, _ in seeds)
        for node in order:
            if isinstance(node.op, Stopped):
                continue
            if node in self.wrt or any(source in self.active for source in node.src):
                self.active.add(node)
        for node, cotangent in seeds:
            if node in self.active:
                self.cotangents.setdefault(node, []).append(cotangent)
        groups: dict[Any, dict[int, Node]] = {}
        for node in order:
            if isinstance(node.op, CustomOutput):
                groups.setdefault((node.op.number, node.src[1:]), {})[node.op.index] = node
        for node in reversed(order):
            with self.session.at(self.session.places.get(node)):
                if isinstance(node.op, CustomOutput):
                    group = groups[node.op.number, node.src[1:]]
                    if node is next(iter(group.values())):  # now all of them have what they get
                        self._visit_custom(node, group)
                elif node in self.cotangents and node not in self.wrt:
                    self._visit(node)
        return [self._gradient(node) for node in self.wrt]

    def _gradient(self, node: Node) -> Node | None:
        """The sum of what a variable was sent, in its shape."""
        if node not in self.cotangents:
            if self.refuse:
                self._check_ends(node)
            return None
        found = self._sum(node)
        if not self._covers(found, node):
            found = self.session.make(BROADCAST, found, *node.shape)
        self.session.derived.add(found)
        return found

    def _claimed(self, cotangent: Node, node: Node) -> Node:
        """A cotangent with as many elements as the node has, under the node's own extents.

        What runs is the same; but extents that have the same name are known to be equal.
        """
        if cotangent.shape != node.shape and self._covers(cotangent, node):
            return self.session.make(BROADCAST, cotangent, *node.shape)
        return cotangent

    def _covers(self, gradient: Node, node: Node) -> bool:
        """Whether the gradient has all elements of the node, and not just some to broadcast.

        An extent that broadcasts with another is that other's too, unless it is 1.
        """
        if gradient.rank != node.rank:
            return False
        return all(
            have is want or (_broadcasts(want, have) and self.session.is_one(want) is False)
            for have, want in zip(gradient.shape, node.shape, strict=True)
        )

    def _sum(self, node: Node) -> Node:
        first, *others = self.cotangents[node]
        for other in others:
            first = self.session.make(_ADD, first, other)
        return first

    def _visit(self, node: Node) -> None:
        """Pass the node's cotangent on to its sources."""
        for source in node.src:
            if source in self.active and kind_of(source.dtype) == "c":
                raise self._failure(
                    node,
                    f"the gradient of {node.op.name} of {source.dtype.name}: gradients are of real "
                    f"numbers",
                    "write the function over real and imaginary parts that are arguments",
                )
        passed = self._passed(node, self._claimed(self._sum(node), node))
        if len(passed) != len(node.src):
            raise self._failure(
                node,
                f"the gradient rule of {node.op.name} gave {len(passed)} gradients for "
                f"{len(node.src)} operands",
            )
        self._send(node, node.src, passed)

    def _visit_custom(self, node: Node, group: dict[int, Node]) -> None:
        """Pass on the cotangents of all results of a function with its own rule, by that rule."""
        if self.cotangents.keys().isdisjoint(group.values()):
            return
        session, operands = self.session, node.src[1:]
        custom = custom_of(session, node)
        inside = topological((n.src[0] for n in group.values()), stop=frozenset(operands))
        for found in inside:
            if found in self.wrt and found not in operands:
                raise self._failure(
                    node,
                    f"the gradient with respect to {self.wrt[found]}: {custom.name} defines its "
                    f"own gradient and reads it, but it is no argument of it",
                    "pass it as an argument",
                )
        sent = {i: self._sum(n) for i, n in group.items() if n in self.cotangents}
        self._send(node, operands, custom.gradients(session, operands, sent))

    def _send(self, node: Node, sources: Sequence[Node], gradients: Sequence[Any]) -> None:
        for source, gradient in zip(sources, gradients, strict=True):
            if source not in self.active or source.is_host:
                continue
            if gradient is None or kind_of(source.dtype) != "f":
                self.ends.append(node if kind_of(source.dtype) == "f" else source)
                continue
            fitted = rules.fitted(gradient, source)
            self.cotangents.setdefault(source, []).append(fitted)

    def _passed(self, node: Node, cotangent: Node) -> Sequence[Any]:
        session = self.session
        try:
            rule = RULES.find("backward", node.op)
        except NoRule:
            raise self._failure(
                node,
                f"the gradient of {node.op.name}: there is no rule for it",
                "define one by ok.custom_gradient, or leave the argument out of argnums=",
            ) from None
        sources = [_operand(session, source) for source in node.src]
        with np.errstate(all="ignore"):  # of rules on the numbers of the source
            found: Sequence[Any] = rule(
                node.op, Tracer(session, cotangent), Tracer(session, node), *sources
            )
        return found

    def _check_ends(self, node: Node) -> None:
        """Refuse a variable on which the values depend, but only through ops without gradient.

        Raises:
            GradientError: names such an op and the user's line.
        """
        for end in self.ends:
            if self.session.derived.isdisjoint(self.active) and node in topological([end]):
                raise self._failure(
                    end,
                    f"the gradient with respect to {self.wrt[node]}: the result depends on it only "
                    f"through {self._name(end)}, which has no gradient",
                    "leave the argument out of argnums=, or define the gradient that is meant by "
                    "ok.custom_gradient",
                )

    def _name(self, node: Node) -> str:
        """The op's name; of a function with its own rule that function's."""
        custom = isinstance(node.op, CustomOutput)
        return custom_of(self.session, node).name if custom else node.op.name

    def _failure(self, node: Node, message: str, fix: str | None = None) -> Exception:
        return failure(GradientError, message, fix=fix, place=self.session.places.get(node))


def _broadcasts(extent: Node, into: Node) -> bool:
    """Whether `into` is what `extent` and others broadcast to."""
    if not isinstance(into.op, p.HostOp) or into.op.fn != "bcast":
        return False
    is_set = isinstance(extent.op, p.HostOp) and extent.op.fn == "bcast"
    return set(extent.src if is_set else (extent,)) <= set(into.src)


def _operand(session: Session, node: Node) -> Any:
    """What a rule is given for a source."""
    if node.is_host:
        return node
    return node.op.value if isinstance(node.op, p.Constant) else Tracer(session, node)
