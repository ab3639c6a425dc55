"""Tracing: a function and one call's arguments in, its graph and the tree of its result out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from opkiln.ops import primitives as p
from opkiln.ops.record import record
from opkiln.runtime.errors import OpkilnError, TraceError
from opkiln.runtime.graph import Graph, Node, Pin, make
from opkiln.runtime.trace import captured, equal, functions, indexing, nesting
from opkiln.runtime.trace.captured import Captured
from opkiln.runtime.trace.host import HostTracer
from opkiln.runtime.trace.nesting import Nested
from opkiln.runtime.trace.session import (
    ArrayValue,
    HostValue,
    Session,
    failure,
    is_a,
    place_text,
)
from opkiln.runtime.trace.tracer import Tracer, call_row
from opkiln.runtime.tree import mapped

__all__ = [
    "Captured",
    "HostTracer",
    "Nested",
    "Out",
    "Traced",
    "Tracer",
    "apply_row",
    "check_traceable",
    "labels_of",
    "random_state",
    "same_random",
    "trace",
]

# Loaded now, though tracer.py names them at call time: an import during a trace would hold its lock
# over a fork by another thread, and the child would wait for it for ever.
_LATE = (functions, indexing)
_POSITIONAL, _VAR_POSITIONAL, _KEYWORD_ONLY, _VAR_KEYWORD = (0, 1), 2, 3, 4  # inspect's values
_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80 | 0x100, 0x200  # inspect's CO_ flags


@record
class Out:
    """A leaf of the result: the graph's output of this number."""

    index: int


@record
class Traced:
    """What one trace found. It keeps the captured arrays alive."""

    graph: Graph
    out_tree: Any  # nested tuple, list, dict; Out(i) is output i, anything else a constant
    captures: tuple[np.ndarray[Any, Any], ...]  # inputs that follow the array leaves
    pins: tuple[Pin, ...]  # sizes that the trace holds for
    pin_places: tuple[str, ...] = ()  # the user's line of each pin
    captured: tuple[Captured, ...] = ()  # where the function has each capture from


# What stands above another decorator must stand below it: it decides what the function is given.
_INSTEAD: dict[type, str] = {
    classmethod: "write @classmethod above @ok.compile",
    staticmethod: "write @staticmethod above @ok.compile",
    property: "write @property above @ok.compile",
}


def check_traceable(fn: Any) -> None:
    """Refuse, when decorating, what can never be traced.

    Raises:
        TraceError: not callable, a class, a generator or an async function, or a decorator's
            result that must stand outside.
    """
    got = f"the class {fn.__name__}" if is_a(fn, type) else fn.__class__.__name__
    advice = _INSTEAD.get(fn.__class__)
    if advice is None and is_a(fn, type):
        advice = "compile its methods, or a function that makes what is needed"
    if advice is not None or not callable(fn):
        raise failure(TraceError, f"compile: expected a function, got {got}", fix=advice)
    inner = fn
    while True:
        step = getattr(inner, "__func__", None) or getattr(inner, "func", None)
        if step is None or step is inner:
            break
        inner = step
    code = getattr(inner, "__code__", None)
    if code is None:  # an object that is called through its class
        code = getattr(vars(inner.__class__).get("__call__"), "__code__", None)
    flags = code.co_flags if code is not None else 0
    name = getattr(inner, "__name__", inner.__class__.__name__)
    if flags & (_COROUTINE | _ASYNC_GENERATOR):
        raise failure(
            TraceError,
            f"{name} is an async function and cannot be traced",
            fix="compile the plain function that does the arithmetic, and call that from here",
        )
    if flags & _GENERATOR:
        raise failure(
            TraceError,
            f"{name} is a generator and cannot be traced",
            fix="return a tuple or list of the values instead of yielding them",
        )


def apply_row(name: str, *args: Any) -> Any:
    """A row of the op table on traced values or real arrays; for functions that NumPy lacks."""
    if any(isinstance(a, (ArrayValue, HostValue)) for a in args):
        return call_row(name, *args)
    from opkiln.ops.table import ELEMENTWISE

    row = ELEMENTWISE[name]
    # Weak is nothing that derives from these: np.float64 has a dtype.
    weak = [type(a) in (int, float, complex) for a in args]
    arrays: list[Any] = [a if w else np.asarray(a) for a, w in zip(args, weak, strict=True)]
    types: tuple[Any, ...] = tuple(
        [cast("Any", type(a)) if w else a.dtype for a, w in zip(arrays, weak, strict=True)]
    )
    wanted, _ = row.signature(row, types)
    with np.errstate(all="ignore"):
        result = row.numpy(*(np.asarray(a, d) for a, d in zip(arrays, wanted, strict=True)))
    return np.asarray(result)[()]


def trace(
    fn: Callable[..., Any], names: Sequence[str], param_kinds: Sequence[int], tree: tuple[Any, ...],
    leaves: Sequence[Any], kinds: str, *, name: str = "function",
) -> Traced:  # fmt: skip
    """Call `fn` on symbolic values and record what it does.

    `tree` has one entry per parameter, with leaf numbers in it; `kinds` has a letter per leaf:
    a array, i u f weak scalar, s static (passed as it is).

    Raises:
        TraceError: the function needs a value that only a run has; the text names the line.
    """
    session = Session(name)
    values: list[Any] = []
    labels = labels_of(names, tree)
    weak = 0
    for at, (leaf, kind) in enumerate(zip(leaves, kinds, strict=True)):
        if kind == "a":
            values.append(Tracer(session, session.add_input(leaf), owned=False))
            session.arguments += 1
        elif kind == "s":
            values.append(leaf)
        else:
            session.labels.append(labels[at])
            values.append(HostTracer(session, make(p.HostArg(weak, kind))))
            weak += 1
    args, kwargs = _bind(names, param_kinds, tree, values)
    random = random_state()
    try:
        result = fn(*args, **kwargs)
        if not same_random(random, random_state()):
            raise TraceError(
                f"{name} draws from NumPy's global random state while it is traced, so each call "
                f"would get the same numbers ({_first_line(fn)})",
                fix="draw outside and pass the array as an argument",
            )
        outputs: dict[Node, int] = {}
        out_tree = _collect(session, result, outputs)
        inputs = equal.joined(session, outputs)
        if session.transient or inputs:
            out_tree, outputs = _finished(session, out_tree, outputs, inputs)
        given = tuple([inputs.get(node, node) for node in session.inputs])
        graph = Graph(given, tuple(outputs), session.where(outputs))
        pinned: list[tuple[Any, Any]] = [
            *sorted(session.pins.items(), key=lambda item: item[0]),
            *sorted(session.equal.items(), key=lambda item: item[0]),
        ]
        pins = tuple((*at, value) for at, (value, _) in pinned)
        places = tuple(place_text(place) for _, (_, place) in pinned)
        static = [(labels[i][1], leaves[i]) for i, kind in enumerate(kinds) if kind == "s"]
        found = captured.find(fn, static, session.owners)
        for capture, (owner, place) in zip(found, session.owners, strict=True):
            if not capture.name:  # what has a name outside may be written by others meanwhile
                session.require_unchanged(owner, place)
        return Traced(graph, out_tree, tuple(session.captures), pins, places, found)
    except (TypeError, AttributeError, ValueError) as error:
        told = error.__cause__
        if isinstance(told, OpkilnError):  # NumPy's words for what it was told
            raise told from None
        if not is_a(error, OpkilnError, ValueError):
            _note_lists(error, names, tree)
        raise
    except RecursionError:  # of plain functions; those that are compiled are counted
        raise TraceError(
            f"{name} recurses deeper than Python allows while it is traced ({_first_line(fn)})",
            fix=nesting.FIX,
        ) from None
    finally:
        session.close()


def _note_lists(error: Exception, names: Sequence[str], tree: tuple[Any, ...]) -> None:
    """Python's own error may come of a list of numbers where an array was meant."""
    for parameter, part in zip(names, tree, strict=True):
        if is_a(part, list):
            error.add_note(
                f"opkiln: argument {parameter!r} is a list, and stays one in the function: where "
                f"an array is meant, pass np.asarray({parameter})"
            )


def labels_of(names: Sequence[str], tree: tuple[Any, ...]) -> dict[int, tuple[str, str]]:
    """The parameter of each leaf, and the expression that gives it, such as y[0]."""
    labels: dict[int, tuple[str, str]] = {}
    for parameter, part in zip(names, tree, strict=True):
        _label(part, parameter, parameter, labels)
    return labels


def _label(part: Any, parameter: str, path: str, labels: dict[int, tuple[str, str]]) -> None:
    if isinstance(part, int):
        labels[part] = parameter, path
        return
    for key, item in part.items() if is_a(part, dict) else enumerate(part):
        _label(item, parameter, f"{path}[{key!r}]", labels)


def _bind(
    names: Sequence[str], param_kinds: Sequence[int], tree: tuple[Any, ...], values: list[Any]
) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for parameter, kind, part in zip(names, param_kinds, tree, strict=True):
        value = _filled(part, values)
        if kind in _POSITIONAL:
            args.append(value)
        elif kind == _VAR_POSITIONAL:
            args.extend(value)
        elif kind == _KEYWORD_ONLY:
            kwargs[parameter] = value
        else:
            kwargs.update(value)
    return args, kwargs


def _filled(part: Any, values: list[Any]) -> Any:
    """Values for leaf numbers. No closure: one that names itself would outlive the trace."""
    if isinstance(part, int):
        return values[part]
    if is_a(part, dict):
        return {key: _filled(item, values) for key, item in part.items()}
    return type(part)(_filled(item, values) for item in part)


def _first_line(fn: Any) -> str:
    code = getattr(fn, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(fn)


def random_state() -> Any:
    """NumPy's global generator, when anything has loaded it."""
    module = sys.modules.get("numpy.random")
    return None if module is None else module.get_state(legacy=False)


def same_random(before: Any, after: Any) -> bool:
    """Whether nothing was drawn between two looks at NumPy's global generator."""
    if after is None or after["bit_generator"] != "MT19937":
        return True
    pos = after["state"]["pos"]
    if before is None:
        return bool(
            pos >= 623
        )  # loaded meanwhile: a fresh generator stands at the end of its block
    same = before["state"]["pos"] == pos and before["has_gauss"] == after["has_gauss"]
    return bool(same and np.array_equal(before["state"]["key"], after["state"]["key"]))


def _collect(session: Session, value: Any, outputs: dict[Node, int]) -> Any:
    """The result with Out(i) for every traced leaf; `outputs` numbers the nodes."""
    kind: Any = cast("Any", type(value))
    if kind is tuple or kind is list:
        items: Any = [_collect(session, item, outputs) for item in value]
        return items if kind is list else tuple(items)
    if kind is dict:
        return {key: _collect(session, value[key], outputs) for key in value}
    if isinstance(value, (ArrayValue, HostValue)):
        if value.session is not session:
            raise failure_at_return(
                session, "a value of another trace is returned", "return this call's own values"
            )
        node = value.node
    elif kind is np.ndarray or kind is np.memmap:
        node = session.capture(np.asarray(value), owner=value)
    elif isinstance(value, (np.ndarray, tuple, list, dict, set, frozenset)) or hasattr(
        kind, "__dataclass_fields__"
    ):
        raise failure_at_return(
            session,
            f"a {kind.__name__} is returned",
            "return arrays in plain tuples, lists and dicts, and build other objects outside",
        )
    elif hasattr(kind, "__dlpack__"):
        node = session.capture_foreign(value)
    elif hasattr(value, "__next__") or hasattr(value, "__await__"):
        raise failure_at_return(
            session, f"a {kind.__name__} is returned", "return a tuple or list of its values"
        )
    else:
        return value
    return Out(outputs.setdefault(node, len(outputs)))


def _finished(
    session: Session, out_tree: Any, outputs: dict[Node, int], inputs: dict[Node, Node]
) -> tuple[Any, dict[Node, int]]:
    """The outputs over other inputs and without Transient nodes: those that become one are one."""
    new = session.substitute(outputs, inputs, finish=True, remake=equal.remake)
    finished: dict[Node, int] = {}
    index = [finished.setdefault(new[node], len(finished)) for node in outputs]
    tree = mapped(out_tree, lambda v: Out(index[v.index]) if isinstance(v, Out) else v)
    return tree, finished


def failure_at_return(session: Session, message: str, fix: str) -> Exception:
    """The function has returned, so the line is that of its last traced operation."""
    last = next(reversed(session.places.values()), None)
    return failure(TraceError, f"{session.name}: {message}", fix=fix, place=last)
