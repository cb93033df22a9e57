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
from parlay.parallel.group import Group
from parlay.parallel.numa import allowed_processors, memory_nodes, place_ranks, stay_on

if TYPE_CHECKING:
    from parlay.kernels.exchange import SharedMemory

_COMMAND = (sys.executable, "-P", "-m", "parlay.engine.rank")
_ROOM = 1 << 20  # bytes that a rank sends at once; long prompts go in pieces
_ENDING = 5.0  # seconds that a rank may take to end


class LocalRanks(Ranks):
    """A group of ranks on this machine, which divide its threads and share memory."""

    def __init__(self, size: int, widest: int, drafters: int = 1) -> None:
        """Prepare the exchange; nothing is started yet.

        Args:
            size: how many, this one included.
            widest: bytes of the longest row that is exchanged.
            drafters: how many of them share a proposer's layers.

        Raises:
            ConfigError: this machine has no memory that processes could share, or an environment variable is wrong.
        """
        super().__init__()
        self._threads = share_threads(env.threads(), size)
        self.threads = self._threads[0]
        self._places = place_ranks(size, allowed_processors(), memory_nodes())
        self._room, self._patience = max(_ROOM, widest), env.rank_timeout()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._files: list[int] = []
        self._closing = threading.Event()
        self.close = weakref.finalize(self, _close, self._closing, self._links, self._processes, self._files)
        self._exchanges: list[SharedMemory] = []
        self.group = Group(0, size, self._share(size))
        self._files += os.pipe()
        if drafters > 1:
            self.draft_group = Group(0, drafters, self._share(drafters))

    def _share(self, size: int) -> "SharedMemory":
        try:
            from parlay.kernels.exchange import SharedMemory, make_memory

            memory = make_memory(size, self._room)
        except (ImportError, AttributeError, OSError) as error:
            raise ConfigError(
                f"{size} ranks need the native kernels and memory that processes share, which this "
                f"machine does not give ({error}); leave their number at 1"
            ) from error
        self._files.append(memory)
        self._exchanges.append(SharedMemory(memory, 0, size, self._room, self._patience))
        return self._exchanges[-1]

    def start(self, first: Assignment) -> None:
        """Start the processes of all ranks but this one; they load while this one does."""
        memory, lifeline, _, *drafts = self._files
        self.group = replace(self.group, fast=first.fast, stages=first.stages)
        stay_on(self._places[0])
        for rank, threads in enumerate(self._threads[1:], 1):
            here, there = Pipe()
            files = there.fileno(), lifeline, memory, *(drafts or [memory])
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
            own = replace(
                first,
                rank=rank,
                size=self.group.size,
                room=self._room,
                patience=self._patience,
                processors=sorted(self._places[rank]),
                share=first.share and first.share.found,
            )
            here.send_bytes(msgspec.msgpack.encode(own))
        watch = _watch, self._processes, self._exchanges, self._closing
        threading.Thread(target=watch[0], args=watch[1:], name="parlay-ranks", daemon=True).start()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of ranks 1 and up."""
        return tuple(process.pid for process in self._processes)


def share_threads(threads: int, size: int) -> list[int]:
    """Divide threads among ranks, at least one to each."""
    if size > threads:
        logger.warning(
            "%d ranks share %d threads; a rank a thread is the most that is of use on one machine", size, threads
        )
    return [max(1, threads * (rank + 1) // size - threads * rank // size) for rank in range(size)]


def _watch(
    processes: Sequence["subprocess.Popen[bytes]"], exchanges: "Sequence[SharedMemory]", closing: threading.Event
) -> None:
    """End all ranks as soon as one has ended that was not told to."""
    ended = threading.Event()

    def wait(process: "subprocess.Popen[bytes]") -> None:
        process.wait()
        ended.set()

    for process in processes:
        threading.Thread(target=wait, args=(process,), name="parlay-rank", daemon=True).start()
    ended.wait()
    if not closing.is_set():
        for exchange in exchanges:
            exchange.abandon()
        for process in processes:  # some wait for orders, and none is of use any more
            process.kill()


def _close(
    closing: threading.Event,
    links: "Sequence[Connection[bytes, bytes]]",
    processes: Sequence["subprocess.Popen[bytes]"],
    files: Sequence[int],
) -> None:
    """End all ranks: those that wait for orders end by themselves."""
    closing.set()
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
