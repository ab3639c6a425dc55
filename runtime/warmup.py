"""Warm-up: descriptions of calls in, their kernels built ahead out; nothing runs.

The calls are traced one after another, then their units are built side by side: the very units
that the calls would ask for, so that later processes find them on disk.
"""

from __future__ import annotations

import functools
import itertools
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from opkiln import native
from opkiln.runtime import batch
from opkiln.runtime.config import config
from opkiln.runtime.errors import (
    ArgumentError,
    NotCached,
    OpkilnError,
    ShapeError,
    ToolchainNotFound,
)
from opkiln.runtime.graph import NOT_ONE
from opkiln.runtime.program import pins_hold
from opkiln.runtime.spec import TensorSpec, Warmed
from opkiln.runtime.trace.session import is_a
from opkiln.runtime.tree import mapped

_NUMBERS = {int: 1, float: 1.0}
SHORT = 2  # makes rows that the native side takes many of at a time


class Call(NamedTuple):
    """A compiled function and what it would be called with."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def call_of(call: Any) -> Call:
    """A call from (function, *args) or functools.partial; a method brings its instance.

    Raises:
        ArgumentError: neither of them, or not of a compiled function.
    """
    function: Any = call
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    if is_a(function, tuple) and function:
        function, *args = function
    while is_a(function, functools.partial):
        args = [*function.args, *args]
        kwargs = {**function.keywords, **kwargs}
        function = function.func
    if is_a(function, types.MethodType):
        args = [function.__self__, *args]
        function = function.__func__
    if not hasattr(function, "warmup"):
        raise ArgumentError(
            f"warmup: expected a compiled function and what to call it with, got {call!r:.80}",
            fix="write warmup((f, spec, ...), (g, spec, ...)), with functions from opkiln.compile",
        )
    return Call(function, tuple(args), kwargs)


def warm(calls: Sequence[Call]) -> tuple[Warmed, ...]:
    """Build what these calls lack.

    Raises:
        OpkilnError: a call cannot be traced or built; the others are built all the same, and a note
            on the error names the call.
    """
    results: dict[int, Warmed] = {}
    traced: dict[int, tuple[Any, list[batch.Want]]] = {}  # by the call's place: what it lacks
    errors: list[Exception] = []
    for at, call in enumerate(calls):
        if not isinstance(call.function, native.Compiled):
            results[at] = call.function.warmup(*call.args, **call.kwargs)
            continue
        try:
            traced[at] = _lacking(call)
        except Exception as error:
            errors.append(_noted(error, call))
    units = [(at, made, want) for at, (made, wants) in traced.items() for want in wants]
    outcomes = batch.build([want for *_, want in units], progress=_progress())
    for (at, made, want), outcome in zip(units, outcomes, strict=True):
        frontend = calls[at].function._frontend
        before = results.get(at, Warmed(frontend.name, 0, "ready", 0.0))
        hit, seconds = before.hit, before.seconds
        if isinstance(outcome, ToolchainNotFound) and not config.assert_cached:
            frontend.without_compiler(made, outcome)
            hit = "interpreted"
        elif isinstance(outcome, (NotCached, ToolchainNotFound)):
            errors.append(_noted(frontend.not_cached(made, outcome), calls[at]))
        elif isinstance(outcome, OpkilnError):
            errors.append(_noted(outcome, calls[at]))
        elif outcome is not None:
            frontend.count(outcome)
            hit = "built" if hit == "built" else outcome.hit
            seconds += outcome.seconds
        results[at] = Warmed(frontend.name, before.kernels + len(want.requests), hit, seconds)
    for at, (made, _) in traced.items():
        calls[at].function._frontend.ahead(
            made, "warmup", results[at].seconds if at in results else 0
        )
    if errors:
        raise errors[0]
    return tuple(results[at] for at in range(len(calls)))


def _lacking(call: Call) -> tuple[Any, list[batch.Want]]:
    """The record of a call and the units that it lacks, whatever the sizes that are left open."""
    specs: list[TensorSpec] = []
    mapped([call.args, call.kwargs], lambda v: specs.append(v) if is_a(v, TensorSpec) else None)
    counts = [spec.shape.count(None) for spec in specs]
    # Sizes are equal, so that arrays broadcast; small where they could overflow.
    size = 64 if max(counts, default=0) <= 8 else 8
    args, kwargs = _stand_ins(call, itertools.repeat(size))
    record, requests = call.function._missing(*args, **kwargs)
    wants = [batch.Want(record.program, tuple(requests))]
    fixed = any(isinstance(size, int) and size != NOT_ONE for *_, size in record.program.pins)
    if fixed or not any(n.kernel.reduced for n in record.program.lowered.launches):
        return record, wants
    known = set(requests)
    for short in _subsets(sum(counts)):  # many short rows have kernels of their own
        sizes = (SHORT if at in short else size for at in itertools.count())
        args, kwargs = _stand_ins(call, sizes)
        _, leaves, kinds = call.function._flatten(*args, **kwargs)
        arrays = [v for v, kind in zip(leaves, kinds, strict=True) if kind == "a"]
        if not pins_hold(record.program.pins, arrays):
            continue  # sizes that are equal in this trace are not
        try:
            found = call.function._missing(*args, **kwargs)[1]
        except ShapeError:
            continue  # these sizes do not fit each other
        more = [r for r in found if r not in known]
        known.update(more)
        wants += [batch.Want(record.program, tuple(more))] if more else []
    return record, wants


def _subsets(count: int) -> Iterator[range | tuple[int, ...]]:
    """The sizes to make short together: all combinations of a few, neighbours of many."""
    every = range(count)
    if count > 6:
        yield from (every[i:j] for i, j in itertools.combinations(range(count + 1), 2))
    else:
        for n in range(1, count + 1):
            yield from itertools.combinations(every, n)


def _stand_ins(call: Call, sizes: Iterator[int]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with arrays without memory for specs, and numbers for int and float."""
    frontend = call.function._frontend
    names = [p.name for p in frontend.parameters] or [""]

    def value(name: str, given: Any) -> Any:
        if name in frontend.options.static:
            return given
        return mapped(given, leaf)

    def leaf(given: Any) -> Any:
        if isinstance(given, TensorSpec):
            return given.stand_in(sizes)
        return _NUMBERS.get(given, given) if isinstance(given, type) else given

    args = [value(names[min(i, len(names) - 1)], given) for i, given in enumerate(call.args)]
    return args, {name: value(name, given) for name, given in call.kwargs.items()}


def _noted(error: Exception, call: Call) -> Exception:
    """The error with a note that says which call it is about."""
    given = [f"{v!r:.60}" for v in call.args]
    given += [f"{name}={v!r:.60}" for name, v in call.kwargs.items()]
    error.add_note(f"while warming up {call.function._frontend.name}({', '.join(given)})")
    kinds: list[
        str
    ] = []  # types are values for x.astype(dtype), and nothing else that a call takes
    mapped(
        [list(call.args), call.kwargs],
        lambda v: kinds.append(v.__name__) if is_a(v, type) and v not in _NUMBERS else None,
    )
    for kind in kinds:
        error.add_note(
            f"the type {kind} was passed as it is, for a dtype: where an array is meant, write "
            f"TensorSpec(shape, {kind!r}), and TensorSpec((), {kind!r}) for a NumPy scalar"
        )
    if isinstance(error, ShapeError) and "None" in str(given):
        error.add_note(
            "each None was tried as one size: write the size where it is a known one, such as "
            "that of an array which the function holds"
        )
    return error


def _progress() -> Callable[[int, int], None] | None:
    """Shows on a terminal how many units are done."""
    stream = sys.stderr
    if stream is None or not stream.isatty():
        return None

    def show(done: int, total: int) -> None:
        stream.write(f"\ropkiln: {done} of {total} built" + "\n" * (done == total))
        stream.flush()

    return show
