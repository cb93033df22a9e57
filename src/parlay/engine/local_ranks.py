"""Ranks that are processes of this machine, as rank 0 sees them: started, watched, ended."""

import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import msgspec

from parlay import env
from parlay.engine.rank import Assignment
from parlay.engine.ranks import Ranks
from parlay.errors import ConfigError
from parlay.log import logger
from parlay.parallel.numa import memory_nodes, place_ranks
from parlay.system import allowed_processors, stay_on

if TYPE_CHECKING:
    from parlay.kernels.exchange import SharedMemory, SharedRing

_COMMAND = (sys.executable, "-P", "-m", "parlay.engine.rank")
_ROOM = 1 << 20  # bytes that a rank sends at once; long prompts go in pieces
_ENDING = 5.0  # seconds that a rank may take to end


class LocalRanks(Ranks):
    """The ranks of an engine on this machine, which divide its threads and share memory."""

    def __init__(self, size: int, room: int) -> None:
        """Divide threads and processors; nothing is started yet.

        Args:
            size: number of ranks, this one included.
            room: bytes of the longest row that is exchanged.

        Raises:
            ConfigError: an environment variable is wrong.
        """
        super().__init__()
        self._threads = share_threads(env.threads(), size)
        self.threads = self._threads[0]
        self._places = place_ranks(size, allowed_processors(), memory_nodes())
        self._room, self._timeout = max(_ROOM, room), env.rank_timeout()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._files: list[int] = []
        self._ways: list[SharedMemory | SharedRing] = []
        self._closing = threading.Event()
        own = self._closing, self._ways, self._links, self._processes, self._files
        self.close = weakref.finalize(self, _close, os.getpid(), *own)

    def start(self, first: Assignment) -> None:
        """Start the processes of all ranks but this one; they load while this one does.

        Raises:
            ConfigError: this machine has no memory that processes could share.
        """
        first = replace(first, room=self._room, timeout=self._timeout, share=first.share and first.share.local)
        try:
            from parlay.kernels.exchange import make_memory, make_ring, map_memory

            def kept(file: int) -> int:
                self._files.append(file)
                return file

            position = first.position
            lifeline, _ = map(kept, os.pipe())
            stages = [kept(make_memory(position.tp_size, self._room)) for _ in range(position.stages)]
            count = position.stages
            rings = [kept(make_ring(count, count, first.stage_bytes)) for _ in range(position.tp_size)]
            drafts = kept(make_memory(max(position.draft_tp_size, 1), self._room))
            exchange, ring, among_drafters = map_memory(
                (stages[0], rings[0], drafts), position, self._room, first.stage_bytes, self._timeout
            )
        except (ImportError, AttributeError, OSError) as error:
            raise ConfigError(
                f"{first.size} ranks need the native kernels and shared memory, which this machine lacks "
                f"({error}); leave their number at 1"
            ) from error
        self.group = position.group(exchange, ring, fast=first.fast)
        self.draft_group = position.draft_group(among_drafters)
        stay_on(self._places[0])
        for rank, threads in enumerate(self._threads[1:], 1):
            own = replace(first, rank=rank, processors=sorted(self._places[rank]))
            here, there = Pipe()
            files = there.fileno(), lifeline, stages[own.position.stage], rings[own.position.tp_rank], drafts
            self._links.append(here)
            self._processes.append(
                subprocess.Popen(
                    [*_COMMAND, *map(str, files)],
                    pass_fds=files,
                    stdin=subprocess.DEVNULL,
                    env=env.inherited({"PARLAY_THREADS": str(threads)}),
                )
            )
            there.close()
            here.send_bytes(msgspec.msgpack.encode(own))
        self._ways += [way for way in (exchange, ring, among_drafters) if way is not None]
        watch = _watch, self._processes, self._ways, self._closing
        threading.Thread(target=watch[0], args=watch[1:], name="parlay-ranks", daemon=True).start()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of ranks 1 and up."""
        return tuple(process.pid for process in self._processes)


def share_threads(threads: int, size: int) -> list[int]:
    """Divide threads among ranks, at least one to each."""
    if size > threads:
        logger.warning("%d ranks share %d threads; use at most one rank per thread on one machine", size, threads)
    return [max(1, threads * (rank + 1) // size - threads * rank // size) for rank in range(size)]


def _watch(
    processes: Sequence["subprocess.Popen[bytes]"],
    ways: "Sequence[SharedMemory | SharedRing]",
    closing: threading.Event,
) -> None:
    """End all ranks as soon as one has ended that was not closed."""
    ended = threading.Event()

    def wait(process: "subprocess.Popen[bytes]") -> None:
        process.wait()
        ended.set()

    for process in processes:
        threading.Thread(target=wait, args=(process,), name="parlay-rank", daemon=True).start()
    ended.wait()
    if not closing.is_set():
        for way in ways:
            way.abandon()
        for process in processes:  # some wait for orders, and none is of use any more
            process.kill()


def _close(
    owner: int,
    closing: threading.Event,
    ways: "Sequence[SharedMemory | SharedRing]",
    links: "Sequence[Connection[bytes, bytes]]",
    processes: Sequence["subprocess.Popen[bytes]"],
    files: Sequence[int],
) -> None:
    """End all ranks: those that wait for orders, or for this one, end by themselves. A fork has none to end."""
    if os.getpid() != owner:
        return
    closing.set()
    for way in ways:
        way.abandon()
    for link in links:
        with suppress(OSError):
            link.close()
    for process in processes:
        try:
            process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for file in files:
        with suppress(OSError):
            os.close(file)
