"""The other ranks of a tensor-parallel engine, as rank 0 sees them: started, told, watched, ended."""

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
from parlay.engine.rank import Assignment, Ready
from parlay.errors import ConfigError, RankError
from parlay.log import logger
from parlay.parallel.group import ALONE, Group
from parlay.parallel.numa import allowed_processors, memory_nodes, place_ranks, stay_on
from parlay.runner.orders import OnOrder, Order, encode, nobody

if TYPE_CHECKING:
    from parlay.kernels.exchange import SharedMemory

_COMMAND = (sys.executable, "-P", "-m", "parlay.engine.rank")
_ROOM = 1 << 20  # bytes that a rank hands over at once; long prompts go in pieces
_STARTING = 600.0  # seconds that a rank may take to load its weights
_ENDING = 5.0  # seconds that it may take to end


class Ranks:
    """A group of ranks on this machine, of which this process is the first; often there is no other.

    Attributes:
        group: rank 0's view of it.
        threads: that each rank computes with.
    """

    def __init__(self, size: int, widest: int) -> None:
        """Take note, and prepare the exchange; nothing is started yet.

        Args:
            size: how many, this one included.
            widest: bytes of the longest row that is exchanged.

        Raises:
            ConfigError: this machine has no memory that processes could share, or an environment variable is off.
        """
        self.group = ALONE
        self.threads = share_threads(env.threads(), size)
        self._places = place_ranks(size, allowed_processors(), memory_nodes())
        self._room, self._patience = max(_ROOM, widest), env.rank_timeout()
        self._links: list[Connection[bytes, bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._files: list[int] = []
        self._closing = threading.Event()
        self.close = weakref.finalize(self, _close, self._closing, self._links, self._processes, self._files)
        if size > 1:
            self.group = Group(0, size, self._share(size))

    def _share(self, size: int) -> "SharedMemory":
        try:
            from parlay.kernels.exchange import SharedMemory, make_memory

            memory = make_memory(size, self._room)
        except (ImportError, AttributeError, OSError) as error:
            raise ConfigError(
                f"tensor_parallel_size={size} needs the native kernels and memory that processes share, which this "
                f"machine does not give ({error}); leave it at 1"
            ) from error
        self._files += [memory, *os.pipe()]
        self._exchange = SharedMemory(memory, 0, size, self._room, self._patience)
        return self._exchange

    def start(self, first: Assignment) -> None:
        """Start the processes of all ranks but this one; they load while this one does.

        Args:
            first: what this rank would be told.
        """
        if self.group.size == 1:
            return
        memory, lifeline, _ = self._files
        stay_on(self._places[0])
        for rank, threads in enumerate(self.threads[1:], 1):
            here, there = Pipe()
            files = there.fileno(), lifeline, memory
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
            )
            here.send_bytes(msgspec.msgpack.encode(own))
        watch = _watch, self._processes, self._exchange, self._closing
        threading.Thread(target=watch[0], args=watch[1:], name="parlay-ranks", daemon=True).start()

    @property
    def on_order(self) -> OnOrder:
        """What is to be told of everything that the others are to do."""
        return nobody if self.group.size == 1 else self._tell

    def wait(self, numerics: Sequence[str]) -> None:
        """Wait until all have loaded their share.

        Args:
            numerics: what the bits of this rank depend on, see `rank.arithmetic`.

        Raises:
            RankError: one could not start.
            ConfigError: one computes with other bits.
        """
        for rank, link in enumerate(self._links, 1):
            try:
                if not link.poll(_STARTING):
                    raise RankError(
                        f"rank {rank} has not loaded its weights within {_STARTING:.0f} s; look at its log"
                    )
                ready = msgspec.msgpack.decode(link.recv_bytes(), type=Ready)
            except (EOFError, OSError):
                raise RankError(f"rank {rank} ended while it started; there may be too little memory") from None
            if ready.error:
                raise RankError(f"rank {rank} could not start: {ready.error}")
            if ready.numerics != tuple(numerics):
                pairs = zip(numerics, ready.numerics, strict=True)
                differing = [f"{own} here, {other} there" for own, other in pairs if own != other]
                raise ConfigError(
                    f"rank {rank} would compute other bits than rank 0: {'; '.join(differing)}; give all ranks the "
                    "same kernels, instruction set and torch"
                )

    def _tell(self, order: Order) -> None:
        """Have all other ranks do what this one is about to do.

        Raises:
            RankError: one has ended.
        """
        data = encode(order)
        for rank, link in enumerate(self._links, 1):
            try:
                link.send_bytes(data)
            except OSError:
                raise RankError(f"rank {rank} of this engine has ended; start the engine again") from None

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
    processes: Sequence["subprocess.Popen[bytes]"], exchange: "SharedMemory", closing: threading.Event
) -> None:
    """Have everybody give up, and end, as soon as a rank has ended that was not told to."""
    ended = threading.Event()

    def wait(process: "subprocess.Popen[bytes]") -> None:
        process.wait()
        ended.set()

    for process in processes:
        threading.Thread(target=wait, args=(process,), name="parlay-rank", daemon=True).start()
    ended.wait()
    if not closing.is_set():
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
