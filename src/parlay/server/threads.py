"""Work that would delay other requests runs beside the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# Characters, tokens or bytes. A long input takes longer than a task should delay others; a huge one takes much memory
# too, and is processed one after another.
_LONG, _HUGE = 1 << 12, 1 << 18
_one_by_one = ThreadPoolExecutor(1, "parlay-huge")


async def run_in_thread(size: int, work: Callable[[], T]) -> T:
    """Return the result of `work`; if its input is long, from a thread, so that other requests continue."""
    if size < _LONG:
        return work()
    if size < _HUGE:
        return await asyncio.to_thread(work)
    return await asyncio.get_running_loop().run_in_executor(_one_by_one, work)
