"""Several ranks in one process, each a thread; and ranks that join an engine, each a process."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from parlay.kernels.exchange import SharedMemory, make_memory, make_ring, map_memory
from parlay.parallel.group import ALONE, Group, RankPosition

Result = TypeVar("Result")
COMMAND: tuple[str, ...] = (sys.executable, "-m", "parlay.cli.main")


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


def in_stages(
    stages: int, tp_size: int, work: Callable[[Group], Result], room: int = 1 << 20, patience: float = 60.0
) -> list[Result]:
    """Have every rank of every stage do `work`; return what each returned, those of the first stage first."""
    memories = [make_memory(tp_size, room) for _ in range(stages)]
    rings = [make_ring(stages, stages, room) for _ in range(tp_size)]

    def one(rank: int) -> Result:
        position = RankPosition(rank, stages * tp_size, tp_size)
        files = memories[position.stage], rings[position.tp_rank], -1
        exchange, ring, _ = map_memory(files, position, room, room, patience)
        try:
            return work(position.group(exchange, ring))
        except BaseException:
            for way in (exchange, ring):
                if way is not None:
                    way.abandon()
            raise

    with ThreadPoolExecutor(stages * tp_size) as pool:
        found = list(pool.map(one, range(stages * tp_size)))
    for file in (*memories, *rings):
        os.close(file)
    return found


def free_address() -> str:
    """Return an address on the loopback that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextmanager
def joining(address: str, *more: str, ranks: int = 1, **variables: str) -> Iterator[list["subprocess.Popen[str]"]]:
    """Ranks that try to join, with one thread each, and variables of the environment."""
    command = [*COMMAND, "rank", address, *more]
    environment = {**os.environ, "PARLAY_THREADS": "1", **variables}
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) for _ in range(ranks)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()
