"""Work that would keep other requests waiting goes beside the event loop."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LONG = 4096  # characters, tokens or bytes that take longer than a task should keep others waiting


async def apart(size: int, work: Callable[[], T]) -> T:
    """Return what `work` returns; if its input is long, from a thread, so that other requests go on."""
    return work() if size < _LONG else await asyncio.to_thread(work)
