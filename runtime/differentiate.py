"""The user's doors to gradients: a function in, a compiled function of its derivatives out.

Each is a plain function that runs the user's on traced values and walks back over what it did;
compiled as any other, it is traced, built and cached as any other, and inlines into other traces.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from opkiln import native
from opkiln.ops import primitives as p
from opkiln.ops.dtypes import kind_of
from opkiln.runtime.compile import callable_of, compile
from opkiln.runtime.errors import ArgumentError, GradientError
from opkiln.runtime.grad import Reverse, leaves, same_values, variable
from opkiln.runtime.graph import Node
from opkiln.runtime.options import checked
from opkiln.runtime.trace import check_traceable
from opkiln.runtime.trace.promote import (
    BROADCAST,
    FLOAT64,
    constant,
    elementwise_operand,
    session_of,
)
from opkiln.runtime.trace.promote import (
    cast as cast_node,
)
from opkiln.runtime.trace.session import ArrayValue, HostValue, Session, failure, is_a
from opkiln.runtime.trace.tracer import Tracer
from opkiln.runtime.tree import mapped

if TYPE_CHECKING:
    from typing import Unpack

    from opkiln.runtime.options import Keywords


def grad(
    fn: Callable[..., Any], /, argnums: int | Sequence[int] = 0, *, has_aux: bool = False,
    **options: Unpack[Keywords],
) -> Any:  # fmt: skip
    """The gradient of a function whose result is one real number: `ok.grad(loss)(w, x)`.

    Args:
        fn: a plain or compiled function whose result has no axes and is a float.
        argnums: which positional argument to differentiate by, or a tuple of several: then the
            result is a tuple too. An argument may be a tree of float arrays: its gradient is the
            same tree. A Python float counts as a float64 array without axes.
        has_aux: whether the function returns a pair, of which the second is only passed on.
        options: as of `ok.compile`; of a compiled function its own hold.

    Returns:
        A compiled function with the arguments of `fn` (and no `out=`).

    Raises:
        ArgumentError: argnums are no integers.
        GradientError: on the call: the result is no real number; an argument is no float; an op has
            no gradient rule; or the result depends on an argument only through ops without
            gradient. Of an argument on which it does not depend the gradient is zeros.
    """
    derive = functools.partial(_value_and_grad, fn, _numbers(argnums), has_aux)

    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, gradients = derive(args, kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return _compiled("grad", fn, gradient, options)


def value_and_grad(
    fn: Callable[..., Any], /, argnums: int | Sequence[int] = 0, *, has_aux: bool = False,
    **options: Unpack[Keywords],
) -> Any:  # fmt: skip
    """As `grad`, a pair of the function's own result and the gradient."""
    derive = functools.partial(_value_and_grad, fn, _numbers(argnums), has_aux)

    def both(*args: Any, **kwargs: Any) -> Any:
        return derive(args, kwargs)

    return _compiled("value_and_grad", fn, both, options)


_PAIR = "__opkiln_vjp__"  # what a function holds for `vjp`: itself, its forms for two programs


def vjp(
    fn: Callable[..., Any], /, *primals: Any, argnums: int | Sequence[int] | None = None
) -> tuple[Any, Callable[[Any], Any]]:
    """The result of `fn(*primals)`, and a function from a cotangent of it to those of the primals.

    The cotangent has the tree of the result, with arrays that broadcast to its arrays, or None for
    none; it is not read where the result is no float. The function may be called often: it holds
    the primals and the result, which it uses in place of computing it again. It is a
    `functools.partial` of a compiled function.

    Args:
        fn: a plain or compiled function.
        primals: its arguments.
        argnums: of which of them to give cotangents, as of `grad`; None means of all, in a tuple.

    Raises:
        ArgumentError, GradientError: as `grad`.
    """
    numbers = None if argnums is None else _numbers(argnums)
    if any(isinstance(leaf, (ArrayValue, HostValue)) for leaf in leaves(primals)):
        session = session_of(leaves(primals))
        args, wrt = _variables(session, fn, primals, _every(numbers, primals))
        value = fn(*args)
        return value, lambda cotangent: _picked(
            numbers, args, _pulled(session, value, cotangent, wrt)
        )
    forward, backward = _pair(fn, numbers)
    value = forward(*primals)
    return value, functools.partial(backward, primals, value)


def _pair(fn: Any, numbers: int | tuple[int, ...] | None) -> tuple[Any, Any]:
    """The compiled function and its compiled pullback: those of a function live as long as it."""
    held = vars(fn) if isinstance(fn, (FunctionType, native.Compiled)) else {}
    made: dict[Any, Any] = {}
    owner, forward, backwards = held.get(_PAIR, (None, None, made))
    if owner is not fn:  # functools.wraps copies what a function holds
        forward, backwards = fn if isinstance(fn, native.Compiled) else compile(fn), made
        held[_PAIR] = fn, forward, backwards
    if numbers not in backwards:
        pull = functools.partial(_pull, fn, numbers)
        backwards[numbers] = _compiled("vjp", fn, pull, {})
    return forward, backwards[numbers]


def _pull(
    fn: Any, numbers: int | tuple[int, ...] | None, primals: tuple[Any, ...], value: Any,
    cotangent: Any,
) -> Any:  # fmt: skip
    """The pullback, traced: with the function's result at hand, which is not computed again."""
    session = session_of(leaves((primals, value, cotangent)))
    given, wrt = _variables(session, fn, primals, _every(numbers, primals))
    found = _pulled_back(session, fn, given, {}, value, cotangent, wrt)
    return _picked(numbers, given, found)


def _every(numbers: int | tuple[int, ...] | None, args: Sequence[Any]) -> Sequence[int]:
    """The numbers of the arguments that are meant: one, several or all."""
    if numbers is None:
        return range(len(args))
    return (numbers,) if isinstance(numbers, int) else numbers


def pulled_back(
    fn: Any, primals: Sequence[Any], kwargs: dict[str, Any], value: Any, cotangent: Any,
    need: Sequence[bool],
) -> tuple[Any, ...]:  # fmt: skip
    """Traced cotangents of those leaves of the primals that `need` says.

    `value` is the result of the function, from an earlier call.
    """
    session = session_of(leaves((primals, value, cotangent)))
    given, wrt = _chosen(session, primals, need)
    return tuple(_pulled_back(session, fn, given, kwargs, value, cotangent, wrt))


def _pulled_back(
    session: Session, fn: Any, given: Sequence[Any], kwargs: dict[str, Any], value: Any,
    cotangent: Any, wrt: Variables,
) -> list[Any]:  # fmt: skip
    """The cotangent of each variable."""
    own = fn(*given, **kwargs)
    seeds: list[tuple[Node, Node]] = []
    _match(session, own, cotangent, "the cotangent", seeds)
    gradients = _gradients(session, seeds, wrt)
    known = {
        node: b.node
        for a, b in zip(leaves(own), leaves(value), strict=True)
        if isinstance(a, ArrayValue) and isinstance(b, ArrayValue)
        for node in same_values(a.node)
    }
    new = session.substitute([g.node for g in gradients], known)
    return [Tracer(session, new[g.node]) for g in gradients]


def _chosen(
    session: Session, primals: Sequence[Any], need: Sequence[bool]
) -> tuple[list[Any], Variables]:
    """The primals with variables in place of some leaves."""
    wrt, wanted = Variables(), iter(need)

    def leaf(value: Any) -> Any:
        if not next(wanted):
            return value
        node = variable(session, _float(session, value, "an argument"))
        wrt[node] = "an argument"
        return Tracer(session, node, owned=False)

    return mapped([*primals], leaf), wrt


def _compiled(door: str, fn: Any, function: Callable[..., Any], options: Any) -> Any:
    """The derivative as a compiled function, named after the door."""
    check_traceable(fn)
    keywords: dict[str, Any] = {"name": f"{door}({_name(fn)})"}
    frontend = getattr(fn, "_frontend", None)
    if frontend is not None:
        own = frontend.options
        keywords |= {n: getattr(own, n) for n in ("static", "opt_level", "errstate")}
    if door != "vjp":
        functools.update_wrapper(function, fn)
        function.__qualname__ = keywords["name"]
    return callable_of(function, checked({**keywords, **options}), derivative=True)


def _name(fn: Any) -> str:
    name: str = getattr(fn, "__qualname__", type(fn).__name__)
    return name


# ---- arguments ----


def _numbers(argnums: Any) -> int | tuple[int, ...]:
    """Checked argument numbers.

    Raises:
        ArgumentError: no integers, none, or one twice.
    """
    many = is_a(argnums, tuple, list)
    given = tuple(argnums) if many else (argnums,)
    if not given or any(type(n) is not int for n in given) or len(set(given)) != len(given):
        raise ArgumentError(
            f"argnums: expected the number of an argument, or a tuple of several, got {argnums!r}",
            fix="write argnums=0 for the first argument, argnums=(0, 1) for the first two",
        )
    return given if many else cast("int", argnums)


def _names(fn: Any, count: int) -> list[str]:
    """What the positional arguments are called in messages."""
    import inspect

    try:
        parameters = [*inspect.signature(fn).parameters.values()]
    except (TypeError, ValueError):
        parameters = []
    named = [q.name for q in parameters if q.kind in (q.POSITIONAL_ONLY, q.POSITIONAL_OR_KEYWORD)]
    rest = next((q.name for q in parameters if q.kind is q.VAR_POSITIONAL), "argument")
    return [*named, *(f"{rest}[{i}]" for i in range(count - len(named)))][:count]


Variables = dict[Node, str]


def _variables(
    session: Session, fn: Any, args: Sequence[Any], numbers: Sequence[int]
) -> tuple[list[Any], Variables]:
    """The arguments with variables in place of the leaves of some, and the variables' names."""
    names, wrt = _names(fn, len(args)), Variables()
    found = list(args)
    for number in numbers:
        if not -len(args) <= number < len(args):
            raise failure(
                GradientError,
                f"argnums: there is no argument {number}, {len(args)} were passed by position",
                fix="pass the arguments to differentiate by position",
            )
        at = number % len(args)
        if found[at] is not args[at]:
            raise failure(
                GradientError,
                f"argnums: {number} is argument {names[at]} once more, of {len(args)} arguments",
                fix="name each argument once",
            )
        found[at] = _with_variables(session, args[at], f"argument {names[at]}", wrt)
    return found, wrt


def _with_variables(session: Session, tree: Any, path: str, wrt: Variables) -> Any:
    if is_a(tree, tuple, list):
        items = [_with_variables(session, v, f"{path}[{i}]", wrt) for i, v in enumerate(tree)]
        return items if is_a(tree, list) else tuple(items)
    if is_a(tree, dict):
        return {k: _with_variables(session, v, f"{path}[{k!r}]", wrt) for k, v in tree.items()}
    node = variable(session, _float(session, tree, path))
    wrt[node] = path
    return Tracer(session, node, owned=False)


def _float(session: Session, value: Any, path: str) -> Node:
    """A leaf to differentiate by, as an array of floats.

    Raises:
        GradientError: it is none.
    """
    if isinstance(value, HostValue) and value.node.dtype is float:
        return cast_node(session, value.node, FLOAT64)
    if isinstance(value, (ArrayValue, np.ndarray, np.generic)) or hasattr(value, "__dlpack__"):
        node = elementwise_operand(session, value)
        if kind_of(node.dtype) == "f":
            return node
        kind = f"an array of {node.dtype.name}"
    elif isinstance(value, HostValue):
        kind = f"a Python {value.node.dtype.__name__}"
    else:
        kind = f"a {type(value).__name__}"
    raise failure(
        GradientError,
        f"the gradient with respect to {path}: expected floats, got {kind}",
        fix="convert it first, for example with x.astype(np.float64), or leave it out of argnums=",
    )


# ---- what is traced ----


def _value_and_grad(
    fn: Any, numbers: int | tuple[int, ...], has_aux: bool, args: Sequence[Any],
    kwargs: dict[str, Any],
) -> tuple[Any, Any]:  # fmt: skip
    """The function's result and its gradient, both traced."""
    session = _session(fn, (args, kwargs))
    new, wrt = _variables(session, fn, args, _every(numbers, args))
    result = fn(*new, **kwargs)
    value = result
    if has_aux:
        if not is_a(result, tuple) or len(result) != 2:
            raise failure(
                GradientError, "has_aux: expected the function to return a pair (value, aux)"
            )
        value = result[0]
    node = _scalar(session, fn, value)
    one = constant(session, 1.0, node.dtype)
    gradients = _gradients(session, [(node, one)], wrt)
    return result, _picked(numbers, new, gradients)


def _picked(
    numbers: int | tuple[int, ...] | None, args: Sequence[Any], gradients: list[Any]
) -> Any:
    """The gradients of the variables as trees of the arguments that they belong to."""
    if isinstance(numbers, int):
        return _filled(args[numbers], gradients)
    return tuple(_filled(args[n], gradients) for n in _every(numbers, args))


def _session(fn: Any, args: Any) -> Session:
    """The trace that is in progress.

    Raises:
        GradientError: nothing that is passed is traced.
    """
    values = leaves(args)
    if not any(isinstance(v, (ArrayValue, HostValue)) for v in values):
        raise failure(
            GradientError,
            f"the gradient of {_name(fn)}: expected arrays or floats as arguments",
            fix="pass an array, not in a static argument",
        )
    return session_of(values)


def _scalar(session: Session, fn: Any, value: Any) -> Node:
    """The result to differentiate.

    Raises:
        GradientError: it is no real number.
    """
    got = f"a {type(value).__name__}"
    if isinstance(value, (ArrayValue, HostValue, np.ndarray, np.generic)) or is_a(
        value, int, float
    ):
        node = elementwise_operand(session, value)
        if kind_of(node.dtype) == "f" and not node.rank:
            return node
        got = f"an array of {node.dtype.name} with {node.rank} axes"
        if not node.rank:
            got = f"a number of {node.dtype.name}"
    raise failure(
        GradientError,
        f"the gradient of {_name(fn)}: expected one float as the result, got {got}",
        fix="reduce it to one number, for example by .sum() or .mean(), or use ok.vjp",
    )


def _gradients(session: Session, seeds: list[tuple[Node, Node]], wrt: Variables) -> list[Any]:
    """The gradient of each variable; zeros where the values do not depend on it."""
    found = Reverse(session, wrt).gradients(seeds)
    return [
        Tracer(session, _zeros(session, node) if gradient is None else gradient)
        for node, gradient in zip(wrt, found, strict=True)
    ]


def _zeros(session: Session, node: Node) -> Node:
    zero = session.make(p.Constant(node.dtype.type(0)))
    return session.make(BROADCAST, zero, *node.shape) if node.rank else zero


def _filled(tree: Any, gradients: list[Any]) -> Any:
    """The argument's tree with gradients in order; they are taken off the list."""
    return mapped(tree, lambda _: gradients.pop(0))


def _pulled(session: Session, value: Any, cotangent: Any, wrt: Variables) -> list[Any]:
    """The cotangents of the variables, from that of the value."""
    seeds: list[tuple[Node, Node]] = []
    _match(session, value, cotangent, "the cotangent", seeds)
    return _gradients(session, seeds, wrt)


def _match(
    session: Session, value: Any, cotangent: Any, path: str, seeds: list[tuple[Node, Node]]
) -> None:
    """Pair the leaves of a result with those of its cotangent.

    Raises:
        GradientError: another tree, or a leaf that does not broadcast.
    """
    if cotangent is None:
        return
    if is_a(value, tuple, list, dict):
        keys = [*value] if is_a(value, dict) else range(len(value))
        same = type(value) is type(cotangent) and len(value) == len(cotangent)
        if not same or (is_a(value, dict) and set(keys) != set(cotangent)):
            raise failure(
                GradientError,
                f"{path}: expected the tree of the result, a {type(value).__name__} of "
                f"{len(value)}, got a {type(cotangent).__name__}",
            )
        for key in keys:
            _match(session, value[key], cotangent[key], f"{path}[{key!r}]", seeds)
        return
    if not isinstance(value, ArrayValue) or kind_of(value.node.dtype) != "f":
        return
    node, given = value.node, elementwise_operand(session, cotangent)
    if given.rank > node.rank or kind_of(given.dtype) not in "biuf":
        raise failure(
            GradientError,
            f"{path}: expected an array of {node.dtype.name} with {node.rank} axes, got "
            f"{given.dtype.name} with {given.rank}",
        )
    given = cast_node(session, given, node.dtype)
    if given.shape != node.shape:
        given = session.make(BROADCAST, given, *node.shape)
    seeds.append((node, given))
