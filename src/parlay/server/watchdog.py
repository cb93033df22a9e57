"""A timeout for messages that are expected."""

import asyncio
from collections.abc import Callable
from time import monotonic


class Watchdog:
    """Expires when no message comes for a while; runs only between `begin` and `end`, on the running event loop."""

    def __init__(self, seconds: float, waiting: Callable[[], bool], expired: Callable[[], None]) -> None:
        """Start nothing yet.

        Args:
            seconds: without a message, after which it expires.
            waiting: whether anything is still expected.
            expired: called when it does.
        """
        self._seconds = seconds
        self._waiting, self._expired = waiting, expired
        self._timer: asyncio.TimerHandle | None = None
        self._heard = 0.0

    def begin(self) -> None:
        """Expect a message from now on, unless one is expected already."""
        if self._timer is None:
            self.hear()
            self._set(self._seconds)

    def hear(self) -> None:
        """Record a message."""
        self._heard = monotonic()

    def end(self) -> None:
        """Expect nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._waiting():
            return
        left = self._heard + self._seconds - monotonic()
        if left > 0:
            self._set(left)
        else:
            self._expired()
