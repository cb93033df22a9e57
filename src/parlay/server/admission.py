"""Admission control: how many completions are open, and how many bytes bodies take, in total and of each key."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from parlay.server.errors import ApiError

_ENDS = "the server is shutting down; retry with another server"


class Admission:
    """Counts open completions; overload is refused at once instead of growing a queue.

    Attributes:
        open: completions being computed or waiting.
        closing: no further requests are accepted.
        cut: set when open requests have had their time.
    """

    def __init__(self, most: int, most_per_key: int | None = None) -> None:
        """Start with nothing open.

        Args:
            most: most completions at once.
            most_per_key: most completions of one key at once; None for no such limit.
        """
        self._most = most
        self._most_per_key = most_per_key or most
        self._per_key: Counter[str] = Counter()
        self.open = 0
        self.closing = False
        self.cut = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def admit(self, key: str) -> Iterator["Admitted"]:
        """Count a request as one open completion while it is prepared; it is widened to all that it has later.

        Raises:
            ApiError: there is no room now.
        """
        admitted = Admitted(key)
        self.widen(admitted, 1)
        try:
            yield admitted
        finally:
            self._count(key, -admitted.count)

    def widen(self, admitted: "Admitted", count: int) -> None:
        """Open as many completions as a request turns out to have.

        Raises:
            ApiError: there is no room now, or never will be.
        """
        key, more = admitted.key, count - admitted.count
        room = min(self._most, self._most_per_key)
        if count > room:
            raise ApiError(400, f"the request asks for {count} completions; the limit is {room}; lower n or split it")
        if self.closing and more == count:  # a request that is prepared already goes on
            raise ApiError(503, _ENDS)
        if self.open + more > self._most:
            raise ApiError(429, "too many open requests; retry later")
        if self._per_key[key] + more > self._most_per_key:
            raise ApiError(429, f"this key has {self._most_per_key} open completions, its limit; retry later")
        self._count(key, more)
        admitted.count = count

    def _count(self, key: str, more: int) -> None:
        self.open += more
        self._per_key[key] += more
        if not self._per_key[key]:
            del self._per_key[key]
        if self.open:
            self._empty.clear()
        else:
            self._empty.set()

    async def close(self, timeout: float) -> None:
        """Admit no more requests, wait for open ones, and after `timeout` seconds end them."""
        self.closing = True
        try:
            async with asyncio.timeout(timeout):
                await self._empty.wait()
        except TimeoutError:
            self.cut.set()


@dataclass(slots=True)
class Admitted:
    """A request's completions among those that are open: whose they are, and how many."""

    key: str
    count: int = 0


class BodyBudget:
    """Bytes that are shared by all keys. A key may hold as many as are still free, so that none can take all."""

    def __init__(self, most: int) -> None:
        """Start with nothing used; `most` bytes are the limit."""
        self._most = most
        self._of: Counter[str] = Counter()
        self.used = 0

    def acquire(self, key: str, count: int) -> None:
        """Reserve further bytes for a key.

        Raises:
            ApiError: the key would hold more than would be left.
        """
        if self._of[key] + count > self._most - self.used - count:
            raise ApiError(429, "too many bytes of open requests; retry later")
        self.used += count
        self._of[key] += count

    def release(self, key: str, count: int) -> None:
        """Release that many."""
        self.used -= count
        self._of[key] -= count
        if not self._of[key]:
            del self._of[key]
