"""Executors: the settings that bound the native pools in, counts over functions and threads out."""

from __future__ import annotations

from collections.abc import Iterable

from opkiln import native
from opkiln.runtime import debug
from opkiln.runtime.config import config

_applied: list[tuple[int, float, int | None]] = []  # what the native side was last told


def apply_limits() -> None:
    """Hand the OPKILN_POOL_* and OPKILN_MAX_THREAD_POOLS settings to the native pools.

    They hold for the calling thread and for threads that start later.
    """
    native.tell_all_misses(debug.enabled(2))
    wanted = (config.pool_cap, config.pool_timeout, config.max_thread_pools)
    if _applied[-1:] == [wanted]:
        return
    cap, timeout, threads = wanted
    native.set_limits(pool_limit=cap, hard_cap=max(cap, 64), timeout_s=timeout)
    native.set_max_thread_pools(threads or 0)
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
