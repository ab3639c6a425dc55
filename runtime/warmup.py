"""Warm-up: descriptions of calls in, their kernels built ahead out; nothing runs.

The calls are traced one after another, then their units are built side by side: the very units
that the calls would ask for, so that later processes find them on disk.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from opkiln import native
from opkiln.ops.record import record
from opkiln.runtime import batch
from opkiln.runtime.config import config
from opkiln.runtime.errors import (
    ArgumentError,
    NotCached,
    OpkilnError,
    ShapeError,
    ToolchainNotFound,
)
from opkiln.runtime.spec import TensorSpec
from opkiln.runtime.trace.session import is_a
from opkiln.runtime.tree import mapped

_NUMBERS = {int: 1, float: 1.0}


@record
class Warmed:
    """What warming up one call found."""

    name: str  #: of the function
    kernels: int  #: that were missing
    hit: str  #: "built", "disk", "ready" (none missing), "interpreted" or "disabled"
    seconds: float  #: spent on compiling or loading


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
    traced: dict[int, tuple[Any, batch.Want]] = {}  # by the call's place: its record, what it lacks
    errors: list[Exception] = []
    for at, call in enumerate(calls):
        if not isinstance(call.function, native.Compiled):
            results[at] = call.function.warmup(*call.args, **call.kwargs)
            continue
        try:
            args, kwargs = _stand_ins(call)
            record, requests = call.function._missing(*args, **kwargs)
        except Exception as error:
            errors.append(_noted(error, call))
            continue
        traced[at] = record, batch.Want(record.program, tuple(requests))
    outcomes = batch.build([want for _, want in traced.values()], progress=_progress())
    for (at, (record, want)), outcome in zip(traced.items(), outcomes, strict=True):
        frontend = calls[at].function._frontend
        hit, seconds = "ready", 0.0
        if isinstance(outcome, ToolchainNotFound) and not config.assert_cached:
            frontend.without_compiler(record, outcome)
            hit = "interpreted"
        elif isinstance(outcome, (NotCached, ToolchainNotFound)):
            errors.append(_noted(frontend.not_cached(record, outcome), calls[at]))
        elif isinstance(outcome, OpkilnError):
            errors.append(_noted(outcome, calls[at]))
        elif outcome is not None:
            frontend.count(outcome)
            hit, seconds = outcome.hit, outcome.seconds
        results[at] = Warmed(frontend.name, len(want.requests), hit, seconds)
    if errors:
        raise errors[0]
    return tuple(results[at] for at in range(len(calls)))


def _stand_ins(call: Call) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with arrays without memory for specs, and numbers for int and float."""
    specs: list[TensorSpec] = []
    mapped(
        [*call.args, call.kwargs], lambda v: specs.append(v) if isinstance(v, TensorSpec) else None
    )
    # One size for every None of a call, so that arrays broadcast; small where it could overflow.
    size = 64 if max((s.shape.count(None) for s in specs), default=0) <= 8 else 8
    frontend = call.function._frontend
    names = [p.name for p in frontend.parameters] or [""]

    def value(name: str, given: Any) -> Any:
        if name in frontend.options.static:
            return given
        return mapped(given, leaf)

    def leaf(given: Any) -> Any:
        if isinstance(given, TensorSpec):
            return given.stand_in(size)
        return _NUMBERS.get(given, given) if isinstance(given, type) else given

    args = [value(names[min(i, len(names) - 1)], given) for i, given in enumerate(call.args)]
    return args, {name: value(name, given) for name, given in call.kwargs.items()}


def _noted(error: Exception, call: Call) -> Exception:
    """The error with a note that says which call it is about."""
    given = [f"{v!r:.60}" for v in call.args]
    given += [f"{name}={v!r:.60}" for name, v in call.kwargs.items()]
    error.add_note(f"while warming up {call.function._frontend.name}({', '.join(given)})")
    if isinstance(error, ShapeError) and "None" in str(given):
        error.add_note("each None was tried as one size: write the size where it is a known one")
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
