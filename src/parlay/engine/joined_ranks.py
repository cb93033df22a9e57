"""Ranks that join from other machines, as rank 0 sees them."""

import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from socket import socket
from time import monotonic

import msgspec
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # its stubs lack it

from parlay import env
from parlay.engine.joining import RankListener, listen, parse_address
from parlay.engine.rank import Assignment
from parlay.engine.ranks import Ranks
from parlay.errors import RankError
from parlay.log import logger
from parlay.parallel.gloo import Gloo, GlooRing, connect_ranks, connect_store, make_store

_JOINING = 600.0  # seconds within which all ranks have to join
_POLL = 1.0  # seconds between two checks whether missing ranks may still join


class JoinedRanks(Ranks):
    """A group of ranks of which each has a machine, or a part of one; they are started with rank 0's address."""

    def __init__(self, size: int, server: socket, key: bytes) -> None:
        """Create a group that waits for the other ranks at a socket.

        Args:
            size: number of ranks, this one included.
            server: socket at which the other ranks join.
            key: secret that the other ranks know too.

        Raises:
            ConfigError: an environment variable is wrong.
        """
        super().__init__()
        self._size, self._key, self._timeout = size, key, env.rank_timeout()
        self._host, self._port = server.getsockname()[:2]
        self._address = f"{self._host}:{self._port}"
        self._entrance, self._ways = RankListener(server, key), list[Gloo | GlooRing]()
        self._store: TCPStore | None = None
        self.close = weakref.finalize(self, end, os.getpid(), self._entrance, self._links, self._ways)

    @classmethod
    def at(cls, size: int, address: str) -> "JoinedRanks":
        """Return a group whose ranks are started by hand and join at `HOST:PORT`.

        Raises:
            ConfigError: there is no such address, no key, or an environment variable is wrong.
        """
        key = env.rank_key()
        logger.warning("waiting at %s for %d ranks: start each with parlay rank %s", address, size - 1, address)
        return cls(size, listen(parse_address(address)), key)

    def start(self, first: Assignment) -> None:
        """Wait until all have joined, and have them load their weights.

        Raises:
            RankError: some do not come, or do not reach each other.
        """
        until, hosts = monotonic() + _JOINING, []
        for rank in range(1, self._size):
            link, host = self._next(rank, until)
            self._links.append(link)
            hosts.append(host)
        self._entrance.close()
        self._store = store = make_store(self._host)
        for rank, link in enumerate(self._links, 1):
            own = replace(first, rank=rank, store=store.port, timeout=self._timeout)
            try:
                link.send_bytes(msgspec.msgpack.encode(own))
            except OSError:
                raise RankError(f"rank {rank} has left while others joined; start the engine again") from None
        own_store = connect_store(hosts[0], store.port)  # this client may outlive the store that listens
        ways = exchange, ring, drafts = connect_ranks(own_store, hosts[0], first.position, self._timeout)
        self._ways += [way for way in ways if way is not None]
        self.group = first.position.group(exchange, ring, fast=first.fast)
        self.draft_group = first.position.draft_group(drafts)

    def wait(self, numerics: Sequence[str]) -> None:
        """See `Ranks.wait`; from then on, nothing listens here."""
        super().wait(numerics)
        self._store = None

    def _next(self, rank: int, until: float) -> tuple["Connection[bytes, bytes]", str]:
        """Return a connection to the next rank that joins, and this machine's address on it."""
        while True:
            self._check()
            try:
                return self._entrance.next(_POLL)
            except TimeoutError:
                if monotonic() > until:
                    raise RankError(
                        f"rank {rank} has not joined at {self._address} within {_JOINING:.0f} s; start it with "
                        f"`parlay rank {self._address}` on its machine"
                    ) from None

    def _check(self) -> None:
        """Check whether the missing ranks may still join.

        Raises:
            RankError: they cannot.
        """


def end(
    owner: int,
    entrance: RankListener,
    links: "list[Connection[bytes, bytes]]",
    ways: "list[Gloo | GlooRing]",
) -> None:
    """End this group on all ranks; they may join another. A fork has none to end."""
    if os.getpid() != owner:
        return
    entrance.close()
    for link in links:
        with suppress(OSError):
            link.close()
    for way in ways:
        way.close()
