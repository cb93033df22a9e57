"""Several ranks in one process, each a thread."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from parlay.kernels.exchange import SharedMemory, make_memory
from parlay.parallel.group import ALONE, Group

Result = TypeVar("Result")


def together(size: int, work: Callable[[Group], Result], room: int = 1 << 16, patience: float = 60.0) -> list[Result]:
    """Have every rank of a group do `work`; return what each returned, or raise what the first of them raised."""
    if size == 1:
        return [work(ALONE)]
    memory = make_memory(size, room)
    exchanges = [SharedMemory(memory, rank, size, room, patience) for rank in range(size)]
    os.close(memory)

    def one(rank: int) -> Result:
        try:
            return work(Group(rank, size, exchanges[rank]))
        except BaseException:
            exchanges[rank].abandon()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(one, rank) for rank in range(size)]
        return [future.result() for future in futures]
