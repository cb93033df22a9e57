"""Ranks that join from other machines, as rank 0 sees them."""

import weakref
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from socket import socket
from time import monotonic

import msgspec

from parlay import env
from parlay.engine.joining import admit, listen, parse_address
from parlay.engine.rank import Assignment
from parlay.engine.ranks import Ranks
from parlay.errors import RankError
from parlay.log import logger
from parlay.parallel.gloo import Gloo, make_store
from parlay.parallel.group import Group

_JOINING = 600.0  # seconds until all have to be there


class JoinedRanks(Ranks):
    """A group of ranks of which each has a machine of its own, or a part of one; they are started there by hand."""

    def __init__(self, size: int, address: str) -> None:
        """Listen.

        Args:
            size: ranks in all, this one included.
            address: where the others join, as `HOST:PORT`.

        Raises:
            ConfigError: there is no such address, no key, or an environment variable is off.
        """
        super().__init__()
        self._size, self._address = size, address
        self._key, self._patience = env.rank_key(), env.rank_timeout()
        self._server = listen(parse_address(address))
        self.close = weakref.finalize(self, _close, self._server, self._links)

    def start(self, first: Assignment) -> None:
        """Wait until all have joined, and have them load their weights.

        Raises:
            RankError: they do not come, or do not reach each other.
        """
        until, hosts = monotonic() + _JOINING, []
        for rank in range(1, self._size):
            logger.warning("waiting at %s for rank %d of %d: parlay rank", self._address, rank, self._size)
            try:
                link, host = admit(self._server, self._key, max(0.1, until - monotonic()))
            except TimeoutError:
                raise RankError(
                    f"rank {rank} has not joined at {self._address} within {_JOINING:.0f} s; start it with "
                    f"`parlay rank {self._address}` on its machine"
                ) from None
            self._links.append(link)
            hosts.append(host)
        self._server.close()
        # Kept until all have found each other, and no longer.
        store = make_store(hosts[0])
        for rank, link in enumerate(self._links, 1):
            own = replace(first, rank=rank, size=self._size, store=store.port, patience=self._patience)
            try:
                link.send_bytes(msgspec.msgpack.encode(own))
            except OSError:
                raise RankError(f"rank {rank} has left while others joined; start the engine again") from None
        self._store = store
        self.group = Group(0, self._size, Gloo(store, 0, self._size, hosts[0], self._patience))


def _close(server: socket, links: "list[Connection[bytes, bytes]]") -> None:
    """Have all ranks end this group; they may join another."""
    server.close()
    for link in links:
        with suppress(OSError):
            link.close()
