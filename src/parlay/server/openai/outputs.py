"""From prompts to the engine's outputs: many at once, as they grow, and only for connected clients."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from starlette.types import Receive

from parlay.server.errors import ApiError, ClientLeftError

T = TypeVar("T")


async def merge(streams: Sequence[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """Yield what several iterators yield, each with the iterator's number.

    No item is left out; an iterator is asked for its next when the last one is taken.

    Raises:
        Exception: anything that one of them raises; the others are closed.
    """
    if len(streams) == 1:
        try:
            async for item in streams[0]:
                yield 0, item
        finally:
            await _close(streams[0])
        return
    ready: dict[int, T] = {}  # at most one of each, the oldest first
    taken = [asyncio.Event() for _ in streams]
    failed: list[Exception] = []
    wake = asyncio.Event()
    running = len(streams)

    async def pump(number: int) -> None:
        nonlocal running
        try:
            async for item in streams[number]:
                ready[number] = item
                wake.set()
                await taken[number].wait()
                taken[number].clear()
        except Exception as error:
            failed.append(error)
        finally:
            await _close(streams[number])
            running -= 1
            wake.set()

    tasks = [asyncio.create_task(pump(i)) for i in range(len(streams))]
    try:
        while running or ready:
            await wake.wait()
            wake.clear()
            if failed:
                raise failed[0]
            while ready:
                number = next(iter(ready))
                item = ready.pop(number)
                taken[number].set()
                yield number, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _close(stream: AsyncIterator[Any]) -> None:
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()


async def while_wanted(work: Coroutine[Any, Any, T], receive: Receive, cut: asyncio.Event) -> T:
    """Return the result of `work`; cancel it once the client disconnects or the server shuts down.

    Args:
        work: what to do.
        receive: the request's, its body read.
        cut: set when the server ends.

    Raises:
        ClientLeftError: the client disconnected.
        ApiError: the server ends.
    """
    task = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_hung_up(receive))
    ending = asyncio.ensure_future(cut.wait())
    try:
        await asyncio.wait((task, left, ending), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if left.done():
            raise ClientLeftError
        raise ApiError(503, "the server was stopped before the answer was complete; ask again")
    finally:
        for each in (task, left, ending):
            each.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await each


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
