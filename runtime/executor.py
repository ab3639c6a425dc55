"""Executors: the settings that bound the native pools in, counts over functions and threads out."""

from __future__ import annotations

from collections.abc import Iterable

from opkiln import native
from opkiln.ops.record import record
from opkiln.runtime import debug, threads
from opkiln.runtime.config import config

_applied: list[tuple[int, float, int | None]] = []  # what the native side was last told


@record
class Info:
    """Counts of one compiled function since it was made."""

    calls: int  #: calls whose arguments fitted the signature
    hits: int  #: calls served by an executor of this thread
    misses: int  #: calls for which this thread had no executor
    traces: int  #: runs of the Python function with symbols
    programs: int  #: programs made; functions with equal graphs share one
    builds: int  #: translation units compiled
    disk_hits: int  #: translation units found in the cache directory
    fallbacks: int  #: calls run by the interpreter for want of a compiler
    executors: int  #: live, over all threads
    in_flight: int  #: executors given back whose work has not finished
    waits: int  #: times a call waited for an executor's events
    copies: int  #: arguments or results copied for layout, alignment, byte order or overlap
    integer_faults: int  #: calls in which an integer was divided by zero or overflowed in division
    bytes: int  #: memory of the executors, beside workspace
    workspace_bytes: int  #: memory of intermediate results, held by the executors
    evictions: int  #: executors dropped to stay within the bounds of the table


def apply_limits() -> None:
    """Hand the OPKILN_POOL_* and OPKILN_MAX_THREAD_POOLS settings to the native pools.

    They hold for the calling thread and for threads that start later.
    """
    threads.ready()
    native.tell_all_misses(debug.enabled(2))
    wanted = (config.pool_cap, config.pool_timeout, config.max_thread_pools)
    if _applied[-1:] == [wanted]:
        return
    cap, timeout, most = wanted
    native.set_limits(pool_limit=cap, hard_cap=max(cap, 64), timeout_s=timeout)
    native.set_max_thread_pools(most or 0)
    _applied[:] = [wanted]


def counters(compiled: native.Compiled) -> dict[str, int]:
    """The counts of one compiled function; operands packed inside a call are copies too."""
    counts = compiled._counters()
    counts["copies"] += counts.pop("packs")
    return counts


def totals(functions: Iterable[native.Compiled]) -> dict[str, int]:
    """The counts of several functions, added up."""
    result: dict[str, int] = {}
    for function in functions:
        for name, count in counters(function).items():
            result[name] = result.get(name, 0) + count
    return result
