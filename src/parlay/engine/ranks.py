"""The other ranks of a tensor-parallel engine, as rank 0 sees them: started, given orders, ended."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import msgspec

from parlay import env
from parlay.engine.rank import Assignment, RankReady, differing, other_bits
from parlay.errors import ConfigError, RankError
from parlay.parallel.group import ALONE, Group
from parlay.runner.orders import Broadcast, Order, Refusal, encode, no_broadcast

_ENDED = "rank {} of this engine has ended"
_POLL = 2.0
_STARTING = 600.0  # seconds that a rank may take to load its weights


class Orders:
    """Sends orders to the other ranks. A call returns a context manager, within which this rank does the same work.

    If that block raises, the ranks may be in the middle of a pass and out of step, so every later order raises
    `RankError`.
    """

    def __init__(self, links: "Sequence[Connection[bytes, bytes]]") -> None:
        """Create without orders; ranks may still be added to `links`."""
        self._links, self._process = links, os.getpid()
        self._doing, self._why = False, "this engine was interrupted while its ranks computed together"

    def __call__(self, order: Order, count: int | None = None) -> "Orders":
        """Send an order to the first `count` of the others, or to all; return the context in which to carry it out.

        Raises:
            RankError: a rank has ended, or an earlier order's block has raised.
        """
        if os.getpid() != self._process:
            raise RankError("the ranks of this engine belong to the process that started it, not to a fork of that")
        if self._doing:
            raise RankError(f"{self._why}; start the engine again")
        self._doing, data = True, encode(order)
        for rank, link in enumerate(self._links[:count], 1):
            try:
                link.send_bytes(data)
            except OSError:
                self._why = _ENDED.format(rank)
                raise RankError(f"{self._why}; start the engine again") from None
        return self

    def __enter__(self) -> None:
        """Enter the block in which this rank carries the order out."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Allow the next order if this one was carried out."""
        if kind is None:
            self._doing = False
        elif isinstance(error, RankError):
            self._why = str(error).removesuffix("; start the engine again")


class Ranks:
    """A group of ranks, of which this process is rank 0; in this class the only one.

    Attributes:
        group: rank 0's view of it, once they are started.
        draft_group: rank 0's view of the ranks that share a proposer's layers.
        threads: number of threads that this rank computes with.
        memory_shares: number of ranks among which this machine's memory is divided, where each counts for itself.
        close: function that ends the other ranks; so does dropping this object.
    """

    close: Callable[[], Any]

    def __init__(self) -> None:
        """Create a group of one rank."""
        self.group: Group = ALONE
        self.draft_group: Group = ALONE
        self.threads = env.threads()
        self.memory_shares = 1
        self._links: list[Connection[bytes, bytes]] = []
        self._orders = Orders(self._links)
        self.close = lambda: None

    def start(self, first: Assignment) -> None:
        """Have all ranks but this one load their weights, while this one does.

        Args:
            first: this rank's own assignment.

        Raises:
            RankError: one does not start.
        """

    @property
    def on_order(self) -> Broadcast:
        """The function to call with every order for the others."""
        return self._orders if self._links else no_broadcast

    @property
    def poll_interval(self) -> float | None:
        """Seconds after which an idle engine checks whether all ranks are alive; None without others."""
        return _POLL if self._links else None

    def check_alive(self) -> None:
        """Check that all ranks are alive.

        Raises:
            RankError: one has ended.
        """
        for rank, link in enumerate(self._links, 1):
            if link.poll():  # they send nothing, so this is the end
                raise RankError(f"{_ENDED.format(rank)}; start the engine again")

    @property
    def on_call(self) -> Broadcast:
        """The function to call with every order for those that share a proposer's layers."""
        count = self.draft_group.size - 1
        return (lambda order: self._orders(order, count)) if count else no_broadcast

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
                ready = msgspec.msgpack.decode(link.recv_bytes(), type=RankReady)
            except (EOFError, OSError):
                raise RankError(f"rank {rank} ended while it started; there may be too little memory") from None
            if ready.error:
                raise RankError(f"rank {rank} could not start: {ready.error}")
            if differing(numerics, ready.numerics):
                theirs = other_bits("this rank", ready.numerics, numerics)
                with suppress(OSError):
                    link.send_bytes(encode(Refusal(theirs)))
                raise ConfigError(other_bits(f"rank {rank}", numerics, ready.numerics))
