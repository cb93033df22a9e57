"""A stream of server-sent events, which is never silent for long."""

import asyncio
from contextlib import suppress
from typing import Self

from starlette.types import Send

QUIET = 10.0  # seconds without a byte, which proxies and clients bear: many give up after 60
_PING = b": ping\n\n"  # a comment, which clients skip
_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would keep events until it has some kilobytes
)


class Events:
    """Writes events to a client; while it is entered, a comment where there was none for `quiet` seconds.

    The head is sent with the first event or comment, so that what is refused until then still gets a status.
    """

    def __init__(self, send: Send, quiet: float = QUIET) -> None:
        """Send nothing yet."""
        self._send, self._quiet = send, quiet
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._started = self._writing = False

    async def __aenter__(self) -> Self:
        self._pings = self._loop.create_task(self._ping())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._pings.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self._pings

    async def write(self, body: bytes, *, more: bool = True) -> None:
        """Send events, perhaps none; without `more` they are the last."""
        self._writing = True
        try:
            if not self._started:
                self._started = True
                await self._send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            if body or not more:
                await self._send({"type": "http.response.body", "body": body, "more_body": more})
        finally:
            self._writing, self._last = False, self._loop.time()

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(self._last + self._quiet - self._loop.time())
            silent = self._loop.time() >= self._last + self._quiet
            if silent and not self._writing:  # a client that takes nothing needs nothing more
                await self.write(_PING)
            elif silent:
                self._last = self._loop.time()
