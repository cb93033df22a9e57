"""Ranks of one machine hand each other columns and states through memory that they share; see csrc/exchange.h."""

from parlay import system
from parlay.kernels import _native
from parlay.parallel.group import RankPosition


def make_memory(size: int, room: int) -> int:
    """Return the descriptor of memory for a group, which ends with the last process that has it.

    Args:
        size: ranks in the group.
        room: bytes that each may hand over at once; a row has to fit.
    """
    return system.shared_memory(_native.Exchange.footprint(size, room))


def make_ring(size: int, places: int, room: int) -> int:
    """Return the descriptor of memory for a ring, which ends with the last process that has it.

    It takes real memory only as far as messages reach: the first bytes of each place, mostly.

    Args:
        size: ranks in the ring.
        places: messages that may be under way from each.
        room: bytes of the longest.
    """
    return system.shared_memory(_native.Ring.footprint(size, places, room))


def map_memory(
    files: "tuple[int, int, int]", position: RankPosition, room: int, stage_bytes: int, timeout: float
) -> "tuple[SharedMemory | None, SharedRing | None, SharedMemory | None]":
    """Return how a rank reaches those of its stage, the stages before and after, and those that share a proposer.

    Args:
        files: descriptors from `make_memory` and `make_ring`, one for each of the three groups; those of groups
            without this rank are not read. They may be closed afterwards.
        position: the rank's position.
        room: bytes that a rank may hand over at once.
        stage_bytes: bytes of the longest message to the next stage.
        timeout: seconds after which a rank that does not come is given up.
    """
    exchange = ring = drafts = None
    if position.tp_size > 1:
        exchange = SharedMemory(files[0], position.tp_rank, position.tp_size, room, timeout)
    if position.stages > 1:
        ring = SharedRing(files[1], position.stage, position.stages, position.stages, stage_bytes, timeout)
    if position.draft_tp_size:
        drafts = SharedMemory(files[2], position.rank, position.draft_tp_size, room, timeout)
    return exchange, ring, drafts


class SharedMemory(_native.Exchange):
    """An `Exchange` of this machine's ranks, which recordings repeat.

    Made of the descriptor from `make_memory`, which may be closed afterwards, this process's rank, `size` and `room`
    as there, and the seconds after which a rank that does not come is given up. `abandon`, in any thread, has every
    rank that waits, or will, give up.
    """

    recordable = True


class SharedRing(_native.Ring):
    """A `Channel` of this machine's ranks, made from what `make_ring` returns.

    This process sends to the next rank and receives from the one before.
    """
