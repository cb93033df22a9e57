"""The other ranks of a tensor-parallel engine, as rank 0 sees them: started, given orders, ended."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from parlay import env
from parlay.engine.rank import Assignment, Ready, differing, other_bits
from parlay.errors import ConfigError, RankError
from parlay.parallel.group import ALONE, Group
from parlay.runner.orders import OnOrder, Order, Refusal, encode, nobody

_LOOK = 2.0
_STARTING = 600.0  # seconds that a rank may take to load its weights


class Ranks:
    """A group of ranks, of which this process is the first; here there is no other.

    Attributes:
        group: rank 0's view of it, once they are started.
        draft_group: its view of those that share a proposer's layers.
        threads: number that this rank computes with.
        beside: ranks that divide this machine's memory, where each counts for itself.
        close: ends the others; so does dropping this.
    """

    close: Callable[[], Any]

    def __init__(self) -> None:
        """Be the only rank."""
        self.group: Group = ALONE
        self.draft_group: Group = ALONE
        self.threads = env.threads()
        self.beside = 1
        self._links: list[Connection[bytes, bytes]] = []
        self.close = lambda: None

    def start(self, first: Assignment) -> None:
        """Have all ranks but this one load their weights, while this one does.

        Args:
            first: this rank's own assignment.

        Raises:
            RankError: one does not start.
        """

    @property
    def on_order(self) -> OnOrder:
        """The function to call with every order for the others."""
        return self._tell if self._links else nobody

    @property
    def looks(self) -> float | None:
        """Seconds between two looks of an idle engine whether all ranks are still there; None without others."""
        return _LOOK if self._links else None

    def look(self) -> None:
        """Make sure that no rank has ended since it has loaded.

        Raises:
            RankError: one has.
        """
        for rank, link in enumerate(self._links, 1):
            if link.poll():  # they send nothing, so this is the end
                raise _ended(rank)

    @property
    def on_call(self) -> OnOrder:
        """The function to call with every order for those that share a proposer's layers."""
        return self._tell_drafters if self.draft_group.size > 1 else nobody

    def wait(self, numerics: Sequence[str]) -> None:
        """Wait until all have loaded their share.

        Args:
            numerics: what the bits of this rank depend on, see `rank.arithmetic`; ranks that read the same files may
                leave out the model's identity, which is the last of them.

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
            if differing(numerics, ready.numerics):
                theirs = other_bits("this rank", ready.numerics, numerics)
                with suppress(OSError):
                    link.send_bytes(encode(Refusal(theirs)))
                raise ConfigError(other_bits(f"rank {rank}", numerics, ready.numerics))

    def _tell(self, order: Order) -> None:
        """Send all other ranks the order that this one is about to carry out.

        Raises:
            RankError: one has ended.
        """
        self._send(order, len(self._links))

    def _tell_drafters(self, order: Order) -> None:
        self._send(order, self.draft_group.size - 1)

    def _send(self, order: Order, count: int) -> None:
        data = encode(order)
        for rank, link in enumerate(self._links[:count], 1):
            try:
                link.send_bytes(data)
            except OSError:
                raise _ended(rank) from None


def _ended(rank: int) -> RankError:
    return RankError(f"rank {rank} of this engine has ended; start the engine again")
