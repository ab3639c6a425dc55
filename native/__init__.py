"""The native half of opkiln: in go plans and loaded libraries, out comes the type `Compiled`."""

from __future__ import annotations

from os.path import dirname, join

from opkiln.native._core import (
    MISSING,
    Compiled,
    Event,
    Library,
    ManualStream,
    Missing,
    OpSpec,
    Plan,
    Slot,
    dtype_code,
    dtype_of,
    foreign_array,
    get_limits,
    num_threads,
    place_of,
    set_gemm,
    set_helper_ns,
    set_limits,
    set_max_thread_pools,
    set_num_threads,
    set_own_num_threads,
    stop_workers,
    tell_all_misses,
    thread_stats,
    trim,
    usable_cpus,
    use_errstate,
    use_stream,
    worker_stats,
)

__all__ = [
    "MISSING",
    "Compiled",
    "Event",
    "Library",
    "ManualStream",
    "Missing",
    "OpSpec",
    "Plan",
    "Slot",
    "dtype_code",
    "dtype_of",
    "foreign_array",
    "get_limits",
    "include_dir",
    "num_threads",
    "place_of",
    "set_gemm",
    "set_helper_ns",
    "set_limits",
    "set_max_thread_pools",
    "set_num_threads",
    "set_own_num_threads",
    "stop_workers",
    "tell_all_misses",
    "thread_stats",
    "trim",
    "usable_cpus",
    "use_errstate",
    "use_stream",
    "worker_stats",
]


def include_dir() -> str:
    """Return the directory to pass to a compiler as -I for `#include <opkiln/kernel.h>`."""
    return join(dirname(__file__), "include")  # noqa: PTH118, PTH120 - pathlib costs 5 ms to import
