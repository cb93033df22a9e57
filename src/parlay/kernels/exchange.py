"""Ranks of one machine hand each other columns and states through memory that they share; see csrc/exchange.h."""

import os

from torch import Tensor

from parlay.kernels import _native
from parlay.parallel.group import RankPosition


def make_memory(size: int, room: int) -> int:
    """Return the descriptor of memory for a group, which ends with the last process that has it.

    Args:
        size: ranks in the group.
        room: bytes that each may hand over at once; a row has to fit.
    """
    return _make(_native.Exchange.footprint(size, room))


def make_ring(size: int, places: int, room: int) -> int:
    """Return the descriptor of memory for a ring, which ends with the last process that has it.

    It takes real memory only as far as messages reach: the first bytes of each place, mostly.

    Args:
        size: ranks in the ring.
        places: messages that may be under way from each.
        room: bytes of the longest.
    """
    return _make(_native.Ring.footprint(size, places, room))


def _make(size: int) -> int:
    file = os.memfd_create("parlay-ranks")
    os.ftruncate(file, size)
    return file


def map_memory(
    files: "tuple[int, int, int]", seat: RankPosition, room: int, handed: int, patience: float
) -> "tuple[SharedMemory | None, SharedRing | None, SharedMemory | None]":
    """Return how a rank reaches those of its stage, the stages before and after, and those that share a proposer.

    Args:
        files: of the three groups, as far as the rank has such; from `make_memory` and `make_ring`. They may be
            closed afterwards.
        seat: of the rank.
        room: bytes that a rank may hand over at once.
        handed: bytes of the longest message to the next stage.
        patience: seconds after which a rank that does not come is given up.
    """
    exchange = ring = drafts = None
    if seat.sharing > 1:
        exchange = SharedMemory(files[0], seat.place, seat.sharing, room, patience)
    if seat.stages > 1:
        ring = SharedRing(files[1], seat.stage, seat.stages, seat.stages, handed, patience)
    if seat.drafters:
        drafts = SharedMemory(files[2], seat.rank, seat.drafters, room, patience)
    return exchange, ring, drafts


class SharedMemory:
    """An `Exchange` of this machine's ranks, which recordings repeat."""

    recordable = True

    def __init__(self, file: int, rank: int, size: int, room: int, patience: float) -> None:
        """Map the memory.

        Args:
            file: from `make_memory`; it may be closed afterwards.
            rank: of this process.
            size: as in `make_memory`.
            room: likewise.
            patience: seconds after which a rank that does not come is given up.
        """
        self._exchange = _native.Exchange(file, rank, size, room, patience)

    def gather(self, own: Tensor, out: Tensor, bounds: tuple[int, ...]) -> None:
        """See `parlay.parallel.group.Exchange`."""
        self._exchange.gather(own, out, bounds)

    def abandon(self) -> None:
        """Have every rank that waits, or will, give up; any thread may."""
        self._exchange.abandon()


class SharedRing:
    """A `Channel` of this machine's ranks."""

    def __init__(self, file: int, rank: int, size: int, places: int, room: int, patience: float) -> None:
        """Map the memory.

        Args:
            file: from `make_ring`; it may be closed afterwards.
            rank: of this process, which sends to the next and receives from the one before.
            size: as in `make_ring`.
            places: likewise.
            room: likewise.
            patience: seconds after which a rank that does not come is given up.
        """
        self._ring = _native.Ring(file, rank, size, places, room, patience)

    def send(self, states: Tensor) -> None:
        """See `parlay.parallel.pipeline.Channel`."""
        self._ring.send(states)

    def receive(self, states: Tensor) -> None:
        """See `parlay.parallel.pipeline.Channel`."""
        self._ring.receive(states)

    def abandon(self) -> None:
        """Have every rank that waits, or will, give up; any thread may."""
        self._ring.abandon()
