"""Admission: a bounded number of completions at once, in total and of each key, and none while closing."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from parlay.server.errors import ApiError

_ENDS = "the server is shutting down; ask another one"


class Gate:
    """Counts open completions; overload is refused at once instead of growing a queue.

    Attributes:
        open: completions being computed or waiting.
        closing: no further requests are accepted.
        cut: set when open requests have had their time.
    """

    def __init__(self, most: int, most_per_key: int | None = None) -> None:
        """Begin with nothing open.

        Args:
            most: completions at once.
            most_per_key: the same of one key; None for no such limit.
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
    def admit(self, key: str) -> Iterator["Seat"]:
        """Count a request as one open completion while it is prepared; its seat is then widened to as many as it has.

        Raises:
            ApiError: there is no room now.
        """
        seat = Seat(self, key)
        seat.widen(1)
        try:
            yield seat
        finally:
            self._count(key, -seat.count)

    def take(self, key: str, count: int, more: int) -> None:
        """Open `more` completions of a request that has `count` then.

        Raises:
            ApiError: there is no room now, or never will be.
        """
        room = min(self._most, self._most_per_key)
        if count > room:
            raise ApiError(400, f"the request asks for {count} completions and may for {room}; lower n or split it")
        if self.closing and more == count:  # a request that is prepared already goes on
            raise ApiError(503, _ENDS)
        if self.open + more > self._most:
            raise ApiError(429, "the server has as many requests as it takes; retry a little later")
        if self._per_key[key] + more > self._most_per_key:
            raise ApiError(429, f"this key has its {self._most_per_key} completions open; wait for one of them")
        self._count(key, more)

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


class Seat:
    """A request's completions among those that are open.

    Attributes:
        count: how many.
    """

    def __init__(self, gate: Gate, key: str) -> None:
        """Begin with none."""
        self._gate, self._key = gate, key
        self.count = 0

    def widen(self, count: int) -> None:
        """Open as many completions as a request turns out to have.

        Raises:
            ApiError: there is no room now, or never will be.
        """
        self._gate.take(self._key, count, count - self.count)
        self.count = count
