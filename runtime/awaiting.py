"""`await future`: a native future in, the event loop woken once it is done, its result out."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opkiln.native import Future


async def settled(future: Future) -> Any:
    """The result, once it is there; cancelling the task does not cancel the work."""
    if not future.done():
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        future._on_done(partial(_wake, loop, waiter))  # pyright: ignore[reportPrivateUsage]
        await waiter
    return future.result()


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    """On the stream's thread: no thread of the program's waits."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
        loop.call_soon_threadsafe(_settle, waiter)


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():  # it may have been cancelled
        waiter.set_result(None)
