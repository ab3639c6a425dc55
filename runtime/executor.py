"""Executors: the settings that bound the native pools in, what is in them and was done out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opkiln import native
from opkiln.ops.record import record
from opkiln.runtime import debug, threads
from opkiln.runtime.config import Config, config
from opkiln.runtime.errors import ArgumentError

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
    in_flight: int  #: of these, given back with work that has not finished
    idle: int  #: of these, free for calls of the calling thread
    leased: int  #: of these, in the hands of calls of the calling thread
    waits: int  #: times a call waited for an executor's events
    grew_past_limit: int  #: executors made beyond OPKILN_POOL_CAP, for calls inside calls
    copies: int  #: arguments or results copied for layout, alignment, byte order or overlap
    integer_faults: int  #: calls in which an integer was divided by zero or overflowed in division
    bytes: int  #: memory of the executors, beside workspace
    workspace_bytes: int  #: memory of intermediate results, held by the executors
    evictions: int  #: executors dropped to stay within the bounds of the table


@record
class PoolInfo:
    """The executors of one function and one set of exact layouts, on one thread."""

    function: str | None  #: its name; None when the function is gone or was cleared
    key: str  #: the layouts, as text
    idle: int  #: executors that the next call may take
    leased: int  #: executors in the hands of calls
    in_flight: int  #: executors given back with work that has not finished
    bytes: int  #: memory of the key and its executors, beside workspace


@record
class RuntimeInfo:
    """What the executors of this process have done and hold."""

    totals: Info  #: the counts of all live compiled functions, added up
    threads: int  #: that hold executors
    pools: tuple[PoolInfo, ...]  #: of the calling thread
    events_outstanding: int  #: events that executors and users hold
    events_free: int  #: events kept for reuse
    leaked_executors: int  #: left in memory because their work had not ended with their thread
    streams: int  #: asynchronous streams that exist
    stream_threads: int  #: threads of theirs that run or sleep now
    stream_pending: int  #: calls, records and waits queued on them
    workers: int  #: threads that wait to help with large calls


def apply_limits() -> None:
    """Hand the OPKILN_POOL_* and OPKILN_MAX_THREAD_POOLS settings to the native pools.

    They hold for the calling thread and for threads that start later.
    """
    threads.ready()
    native.tell_all_misses(debug.enabled(2))
    if _applied != [_limits()]:
        _apply()


def _limits() -> tuple[int, float, int | None]:
    return config.pool_cap, config.pool_timeout, config.max_thread_pools


def _apply() -> None:
    cap, timeout, most = limits = _limits()
    _applied[:] = [limits]
    native.set_limits(pool_limit=cap, hard_cap=max(cap, 64), timeout_s=timeout)
    native.set_max_thread_pools(most or 0)


def _tell(_: object) -> None:
    _apply()


for _row in (Config.pool_cap, Config.pool_timeout, Config.max_thread_pools):
    _row.tell, _row.tell_scope = _tell, _apply


def counters(compiled: native.Compiled) -> dict[str, int]:
    """The counts of one compiled function; operands packed inside a call are copies too."""
    counts = compiled._counters()
    counts["copies"] += counts.pop("packs")
    return counts


def info_of(functions: Iterable[native.Compiled]) -> Info:
    """The counts that users see, of several functions added up."""
    counts = [counters(function) for function in functions]
    return Info(**{name: sum(c.get(name, 0) for c in counts) for name in Info.__match_args__})


def runtime_info_of(functions: Sequence[native.Compiled]) -> RuntimeInfo:
    """The counts of several functions added up, and what pools, streams and workers hold."""
    names = {f._id: str(getattr(f, "__qualname__", "function")) for f in functions}
    queues, workers = native.stream_stats(), native.worker_stats()
    stats = native.thread_stats()
    pools = tuple(PoolInfo(names.get(pool[0]), *pool[1:]) for pool in native.list_pools())
    return RuntimeInfo(
        totals=info_of(functions),
        threads=stats["live_tables"],
        pools=pools,
        events_outstanding=stats["events_outstanding"],
        events_free=stats["events_free"],
        leaked_executors=stats["leaked_executors"],
        streams=queues["streams"],
        stream_threads=queues["stream_threads"],
        stream_pending=queues["stream_pending"],
        workers=workers["workers"],
    )


def trim(function: native.Compiled | None = None) -> int:
    """Give back the memory of the calling thread's executors; later calls make new ones.

    Idle executors go at once, those in flight when their work is done. What is not done within
    OPKILN_POOL_TIMEOUT stays.

    Args:
        function: a compiled function, to drop its executors alone.

    Returns:
        How many executors went.

    Raises:
        ArgumentError: `function` is no compiled function.
    """
    if function is None:
        return native.trim()
    identity: int | None = getattr(function, "_id", None)
    if identity is None:
        raise ArgumentError(f"trim(): expected a compiled function or None, got {function!r}")
    return native.trim(identity)
