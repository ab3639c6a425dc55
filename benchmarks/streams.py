"""What does a call cost that is queued on a stream, against one that runs at once?

n = 16, float32, four operations. Bursts of calls are queued while the worker is held up by an
event, so that only the enqueuing is timed. Run: python benchmarks/streams.py
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np
from _common import arguments, banner, duration, goals, table

import opkiln as ok
from opkiln import native

RNG = np.random.default_rng(0)
X, Y, Z = (RNG.uniform(0.1, 1.0, 16).astype(np.float32) for _ in range(3))
BURST = 8  # within the limit of executors of one key, beyond which a call waits


@ok.compile
def f(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return np.tanh(x * y + z) * x - y


def inline() -> float:
    f(X, Y, Z)  # the first one after a wait finds cold caches
    begin = time.perf_counter_ns()
    for _ in range(BURST):
        f(X, Y, Z)
    return (time.perf_counter_ns() - begin) * 1e-9 / BURST


def queued(stream: ok.Stream, hold: bool) -> float:
    """Per call: of a burst behind a closed gate, or of one that the worker works off meanwhile."""
    clock = native.ManualStream(1, device="cpu")
    gate = ok.Event()
    gate.record(clock)
    if hold:
        stream.wait_event(gate)
    inline()  # meanwhile the worker wakes up, and stands at the gate
    with stream:
        begin = time.perf_counter_ns()
        futures = [f(X, Y, Z) for _ in range(BURST)]
        spent = time.perf_counter_ns() - begin
    clock.advance(1)
    for future in futures:
        future.result()
    return spent * 1e-9 / BURST


def round_trip(stream: ok.Stream) -> float:
    with stream:
        begin = time.perf_counter_ns()
        f(X, Y, Z).result()
        return (time.perf_counter_ns() - begin) * 1e-9


def main() -> None:
    options = arguments(__doc__)
    banner("Calls on a stream: n = 16, float32, 4 operations; time and ratio to the call itself")
    stream = ok.Stream("cpu")
    ways = {
        "called": inline,
        "queued, worker busy": lambda: queued(stream, True),
        "queued, worker keeps up": lambda: queued(stream, False),
        "queued and waited for": lambda: round_trip(stream),
        "called beside a `with stream:`": inline,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(200 * options.rounds):
        for name, way in ways.items():
            if "beside" in name:
                with stream, ok.Stream.inline():
                    times[name].append(way())
            else:
                times[name].append(way())
    ratio = {
        name: median(t / one for t, one in zip(all_of, times["called"], strict=True))
        for name, all_of in times.items()
    }
    rows = [[name, f"{duration(median(t))} ({ratio[name]:.2f}x)"] for name, t in times.items()]
    table(["way", "time"], rows)
    goals([("queued, worker busy / called", ratio["queued, worker busy"], 6.0, "<=")])


if __name__ == "__main__":
    main()
