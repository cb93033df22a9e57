"""Admission: a bounded number of completions at once, in total and of each key, and none while closing."""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from parlay.server.errors import ApiError

T = TypeVar("T")
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
        self._shut = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def admit(self, key: str, count: int) -> Iterator[None]:
        """Reserve `count` completions for a request.

        Raises:
            ApiError: there is no room now, or never will be.
        """
        room = min(self._most, self._most_per_key)
        if count > room:
            raise ApiError(400, f"the request asks for {count} completions and may for {room}; lower n or split it")
        if self.closing:
            raise ApiError(503, _ENDS)
        if self.open + count > self._most:
            raise ApiError(429, "the server has as many requests as it takes; retry a little later")
        if self._per_key[key] + count > self._most_per_key:
            raise ApiError(429, f"this key has its {self._most_per_key} completions open; wait for one of them")
        self.open += count
        self._per_key[key] += count
        self._empty.clear()
        try:
            yield
        finally:
            self.open -= count
            self._per_key[key] -= count
            if not self._per_key[key]:
                del self._per_key[key]
            if not self.open:
                self._empty.set()

    async def outside(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work` for a request not yet admitted; refuse it once the gate is closing.

        Raises:
            ApiError: it is.
            Exception: anything that `work` raises.
        """
        made, shut = asyncio.ensure_future(work), asyncio.ensure_future(self._shut.wait())
        try:
            await asyncio.wait({made, shut}, return_when=asyncio.FIRST_COMPLETED)
            if not made.done():
                raise ApiError(503, _ENDS)
            return made.result()
        finally:
            shut.cancel()
            made.cancel()

    async def close(self, timeout: float) -> None:
        """Admit no more requests, wait for open ones, and after `timeout` seconds end them."""
        self.closing = True
        self._shut.set()
        try:
            async with asyncio.timeout(timeout):
                await self._empty.wait()
        except TimeoutError:
            self.cut.set()
