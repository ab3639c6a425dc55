"""Batches: what many calls lack in, their kernels built and registered out.

Units are built side by side. Alone, a call's kernels make the unit that the call itself would have
asked for, so that a later process finds it on disk; packed, many calls share a unit, which costs a
third of the time and serves this process only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from threading import Thread
from typing import NamedTuple, TypeVar

from opkiln.runtime import jit
from opkiln.runtime.emit_cpp import lanes
from opkiln.runtime.errors import CompileFailed, OpkilnError
from opkiln.runtime.program import Program, Request, unit_of, vector_bytes

T = TypeVar("T")
Outcome = jit.Loaded | OpkilnError | None  # None: nothing was missing any more


class Want(NamedTuple):
    """Kernels of one program."""

    program: Program
    requests: tuple[Request, ...]


def build(
    wanted: Sequence[Want], *, pack: int = 1, progress: Callable[[int, int], None] | None = None
) -> list[Outcome]:
    """Build what is wanted, each unit once; the outcome of each want, in order.

    Args:
        wanted: may name the same program, and the same kernel, several times.
        pack: kernels that a unit should hold at least; 1 gives each want a unit of its own.
        progress: told the units done and their number, from the thread that calls.
    """
    maker: dict[tuple[int, Request], int] = {}  # the first that wants a kernel has it built
    fresh: list[Want] = []
    for at, (program, requests) in enumerate(wanted):
        for request in requests:
            maker.setdefault((id(program), request), at)
        own = [r for r in dict.fromkeys(requests) if maker[id(program), r] == at]
        fresh.append(Want(program, tuple(r for r in own if r not in program.built)))
    results = side_by_side(
        [partial(_build, fresh, unit) for unit in _packed(fresh, pack)], progress
    )
    outcomes = {at: result for unit in results for at, result in unit.items()}
    for at, (program, requests) in enumerate(wanted):
        others = [outcomes.get(maker[id(program), r]) for r in requests]
        failed = next((o for o in others if isinstance(o, OpkilnError)), None)
        outcomes[at] = failed or outcomes.get(at)
    return [outcomes[at] for at in range(len(wanted))]


def _packed(wanted: Sequence[Want], least: int) -> list[list[int]]:
    """Positions of wants by unit. Kernels that share one have vectors of one width, as if alone."""
    open_units: dict[int, list[int]] = {}  # by width
    units: list[list[int]] = []
    for at, (program, requests) in enumerate(wanted):
        if not requests:
            continue
        kernels = [program.lowered.launches[i].kernel for i, _ in requests]
        width = min(lanes(kernel, vector_bytes()) for kernel in kernels)
        unit = open_units.get(width)
        if unit is None or sum(len(wanted[i].requests) for i in unit) >= least:
            unit = open_units[width] = []
            units.append(unit)
        unit.append(at)
    return units


def _build(wanted: Sequence[Want], unit: Sequence[int]) -> dict[int, Outcome]:
    parts = [wanted[at] for at in unit]
    try:
        if len(parts) == 1:
            loaded = next(iter(parts[0].program.build(list(parts[0].requests))), None)
        else:
            loaded = _build_shared(parts)
    except CompileFailed as error:
        if len(parts) == 1:
            return {unit[0]: error}
        alone = {at: _build(wanted, [at])[at] for at in unit}
        if any(isinstance(result, OpkilnError) for result in alone.values()):
            return alone  # the culprit has the error, all others have their kernels
        raise
    except OpkilnError as error:
        return dict.fromkeys(unit, error)
    return dict.fromkeys(unit, loaded)


def _build_shared(parts: Sequence[Want]) -> jit.Loaded:
    text, symbols = unit_of(parts)
    loaded = jit.build_or_load(text, symbols, name="kernel")
    left = iter(symbols)
    for program, requests in parts:
        program.register(requests, [next(left) for _ in requests], loaded)
    return loaded


def side_by_side(
    tasks: Sequence[Callable[[], T]], progress: Callable[[int, int], None] | None = None
) -> list[T]:
    """The results of `tasks`, run by as many threads as compilers may run at once.

    The calling thread is one of them. When a task raises, no other is begun, and the error is
    raised here once those under way are done.
    """
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    todo = deque(enumerate(tasks))

    def take() -> tuple[int, Callable[[], T]] | None:
        try:
            return todo.popleft()
        except IndexError:
            return None

    def work(tell: Callable[[int, int], None] | None = None) -> None:
        try:
            for at, task in iter(take, None):
                results[at] = task()
                if tell:
                    tell(len(results), len(tasks))
        except BaseException as error:
            todo.clear()
            errors.append(error)

    helpers = _helpers(len(tasks), work)
    try:
        work(progress)
        for helper in helpers:
            helper.join()
    finally:
        todo.clear()
    if errors:
        raise errors[0]
    if progress and helpers:
        progress(len(results), len(tasks))
    return [results[at] for at in range(len(tasks))]


def _helpers(tasks: int, work: Callable[[], None]) -> list[Thread]:
    if tasks < 2:
        return []
    from opkiln.runtime.jit.ninja import jobs

    # Each in the caller's context: a new thread would see none of its `config.scope(...)`.
    helpers = [
        Thread(target=copy_context().run, args=(work,), daemon=True)
        for _ in range(min(tasks, jobs()) - 1)
    ]
    for helper in helpers:
        helper.start()
    return helpers
