"""A stream that stands still for as long as a test needs it to, without sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import opkiln as ok
from opkiln import native


@contextmanager
def held(stream: ok.Stream) -> Iterator[Callable[[], None]]:
    """Hold a stream up; the function that is yielded, or the end of the block, lets it go on."""
    clock = native.ManualStream(1, device=stream.device)
    gate = ok.Event(device=stream.device)
    gate.record(clock)
    stream.wait_event(gate)
    try:
        yield lambda: clock.advance(1)
    finally:
        clock.advance(1)


def eventually(holds: Callable[[], bool]) -> bool:
    """Poll for what another thread will make true; False only when it has not within a minute."""
    end = time.monotonic() + 60
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True
