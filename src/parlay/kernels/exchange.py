"""Ranks of one machine hand each other columns through memory that they share; see csrc/exchange.h."""

import os

from torch import Tensor

from parlay.kernels import _native


def make_memory(size: int, room: int) -> int:
    """Return the descriptor of memory for a group, which ends with the last process that has it.

    Args:
        size: ranks in the group.
        room: bytes that each may hand over at once; a row has to fit.
    """
    file = os.memfd_create("parlay-ranks")
    os.ftruncate(file, _native.Exchange.footprint(size, room))
    return file


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
