"""Many streams of outputs as one."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, TypeVar

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
