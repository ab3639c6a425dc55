"""Gradients that the user defines: a function with a rule of its own in, its marked results out.

What the function does for its results is hidden from the reverse walk, which calls the rule in its
place. The marks stand for the results themselves in the finished graph.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from opkiln.ops import primitives as p
from opkiln.ops.dtypes import kind_of
from opkiln.ops.record import record
from opkiln.runtime.errors import GradientError
from opkiln.runtime.graph import Node
from opkiln.runtime.trace.promote import BROADCAST, elementwise_operand, session_of
from opkiln.runtime.trace.session import ArrayValue, Session, failure, is_a
from opkiln.runtime.trace.tracer import Tracer
from opkiln.runtime.tree import mapped

F = TypeVar("F", bound=Callable[..., Any])
Rule = Callable[[tuple[Any, ...], tuple[Any, ...]], Sequence[Any]]
_numbers = itertools.count()


@record
class CustomOutput(p.Transient):
    """The `index`-th result of a function with its own rule. Sources: the result, the operands."""

    number: int
    index: int


@record
class Custom:
    """A rule: (operands, cotangents of the results) to cotangents of the operands or None."""

    name: str
    rule: Rule
    outputs: tuple[Node, ...]  # as computed; cotangents come in their dtypes and shapes

    def gradients(
        self, session: Session, operands: Sequence[Node], sent: dict[int, Node]
    ) -> list[Any]:
        """What the rule gives to the operands; `sent` has the cotangents that results got.

        Raises:
            GradientError: the rule gave something else than an array, a number or None for each.
        """
        cotangents = [
            Tracer(session, _whole(session, sent.get(i), output))
            for i, output in enumerate(self.outputs)
        ]
        given = self.rule(tuple(Tracer(session, s) for s in operands), tuple(cotangents))
        if len(given) != len(operands):
            raise failure(
                GradientError,
                f"the gradient rule of {self.name} gave {len(given)} gradients for "
                f"{len(operands)} operands",
            )
        return [self._array(session, g, s) for g, s in zip(given, operands, strict=True)]

    def _array(self, session: Session, gradient: Any, operand: Node) -> Any:
        """A gradient as a traced array that broadcasts to its operand."""
        if gradient is None:
            return None
        node = elementwise_operand(session, gradient)
        if kind_of(node.dtype) in "biuf" and node.rank <= operand.rank:
            return Tracer(session, node)
        raise failure(
            GradientError,
            f"the gradient rule of {self.name} gave an array of {node.dtype.name} with "
            f"{node.rank} axes for one of {operand.dtype.name} with {operand.rank}",
        )


def custom_of(session: Session, node: Node) -> Custom:
    """The rule behind a CustomOutput."""
    assert isinstance(node.op, CustomOutput)
    found: Custom = session.custom[node.op.number]
    return found


def with_rule(
    name: str, operands: Sequence[Any], results: Sequence[Any], rule: Rule
) -> tuple[Any, ...]:
    """The results as they are, with `rule` for their gradients by the operands.

    All are traced arrays. The rule may be called several times, also on other values equal to the
    operands, and is itself differentiated if higher derivatives are taken. A cotangent that nothing
    sent is zeros like its result.
    """
    session = session_of([*operands, *results])
    number = next(_numbers)
    src = tuple(v.node for v in operands)
    session.transient = True
    session.custom[number] = Custom(name, rule, tuple(v.node for v in results))
    return tuple(
        Tracer(session, session.make(CustomOutput(number, i), v.node, *src))
        for i, v in enumerate(results)
    )


def custom_gradient(fn: F, /) -> F:
    """A function whose gradient is the one that it defines itself; use as a decorator.

    `fn` is a generator function that yields its result, is sent the cotangent of that, and yields
    the cotangents of its positional arguments: one, or a tuple, with None for no gradient. Or it
    returns its result and a function that makes the latter of the former. Cotangents have the tree
    of what they belong to::

        @ok.custom_gradient
        def clipped(x):  # the identity, whose gradient is kept small
            g = yield x
            yield np.clip(g, -1, 1)

    On arrays the function runs as it is. The gradient is itself differentiated for higher orders.

    Raises:
        GradientError: when the gradient is taken: what is yielded does not fit the arguments, or
            the function reads a value, not passed to it, on which the gradient would depend.
    """
    generator = inspect.isgeneratorfunction(fn)
    name: str = getattr(fn, "__qualname__", type(fn).__name__)

    def run(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Callable[[Any], Any]]:
        """The result, and what makes the arguments' cotangents of its cotangent."""
        if generator:
            steps = fn(*args, **kwargs)
            result = _sent(name, steps, None, "yields nothing")
            return result, functools.partial(_pulled, name, steps)
        made: Any = fn(*args, **kwargs)
        if not is_a(made, tuple) or len(made) != 2 or not callable(made[1]):
            raise failure(
                GradientError,
                f"custom_gradient: {name} returned a {type(made).__name__}",
                fix="return (result, function of its cotangent), or write a generator",
            )
        result, pull = made
        return result, pull

    @functools.wraps(fn)
    def function(*args: Any, **kwargs: Any) -> Any:
        result, _ = run(args, kwargs)
        operands = [v for v in leaves(args) if _is_float(v)]
        results = [v for v in leaves(result) if _is_float(v)]
        if not operands or not results:
            return result

        def rule(operands: tuple[Any, ...], cotangents: tuple[Any, ...]) -> Sequence[Any]:
            again = _replaced(args, operands)
            result, pull = run(again, kwargs)
            given = pull(_replaced(result, cotangents))
            return _flat(name, args, given)

        return _replaced(result, with_rule(name, operands, results, rule))

    return cast("F", function)


_FIX = "write `g = yield result`, then `yield` the cotangents of the arguments"


def _sent(name: str, steps: Any, value: Any, end: str) -> Any:
    """What a generator yields next.

    Raises:
        GradientError: it ended; `end` says what it did.
    """
    try:
        return steps.send(value)
    except StopIteration:
        raise failure(GradientError, f"custom_gradient: {name} {end}", fix=_FIX) from None


def _pulled(name: str, steps: Any, cotangent: Any) -> Any:
    given = _sent(name, steps, cotangent, "yields its result and nothing else")
    for _ in steps:
        raise failure(GradientError, f"custom_gradient: {name} yields more than twice", fix=_FIX)
    return given


def leaves(tree: Any) -> list[Any]:
    """The leaves of a tree, in order."""
    found: list[Any] = []
    mapped(tree, found.append)
    return found


def _is_float(value: Any) -> bool:
    return isinstance(value, ArrayValue) and kind_of(value.node.dtype) == "f"


def _replaced(tree: Any, values: Sequence[Any]) -> Any:
    """The tree with other values for its traced floats."""
    new = iter(values)
    return mapped(tree, lambda v: next(new) if _is_float(v) else v)


def _flat(name: str, args: Sequence[Any], given: Any) -> list[Any]:
    """The cotangents of the traced floats among the arguments, of what a rule gave.

    Raises:
        GradientError: it does not have the tree of the arguments.
    """
    if not is_a(given, tuple, list) or (len(args) == 1 and len(given) != 1):
        given = (given,)
    if len(given) != len(args):
        raise failure(
            GradientError,
            f"custom_gradient: {name} gave {len(given)} cotangents for {len(args)} arguments",
            fix="give one for each positional argument, None for no gradient",
        )
    found: list[Any] = []
    for i, (arg, own) in enumerate(zip(args, given, strict=True)):
        wanted = leaves(arg)
        values = [None] * len(wanted) if own is None else leaves(own)
        if len(values) != len(wanted):
            raise failure(
                GradientError,
                f"custom_gradient: {name} gave {len(values)} cotangents for the {len(wanted)} "
                f"arrays of argument {i}",
                fix="give the cotangents in the tree of the argument",
            )
        found += [v for v, leaf in zip(values, wanted, strict=True) if _is_float(leaf)]
    return found


def _whole(session: Session, cotangent: Node | None, output: Node) -> Node:
    """A cotangent in the whole shape of its result; zeros if there is none."""
    if cotangent is None:
        cotangent = session.make(p.Constant(output.dtype.type(0)))
    if cotangent.shape == output.shape:
        return cotangent
    return session.make(BROADCAST, cotangent, *output.shape)
