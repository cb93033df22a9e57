"""Grammars compiled beside the engine's thread: a large one takes longer than others should wait for their tokens."""

import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from time import monotonic

from parlay.server.protocol import Add
from parlay.types.params import SamplingParams


class Forms:
    """One thread that compiles, one request after another; llguidance lets other threads run meanwhile."""

    def __init__(self, prepare: Callable[[SamplingParams], None]) -> None:
        """Begin with nothing to do.

        Args:
            prepare: compiles what a request needs; called in the thread.
        """
        self._prepare = prepare
        self._thread = ThreadPoolExecutor(1, "parlay-forms")
        self._wanted: dict[int, float] = {}  # when each came, by the front's key
        self._done: SimpleQueue[tuple[Add, Future[SamplingParams]]] = SimpleQueue()
        self._bell, self._button = socket.socketpair()
        self._bell.setblocking(False)

    def fileno(self) -> int:
        """Return what can be read when something is done."""
        return self._bell.fileno()

    def submit(self, add: Add) -> None:
        """Have a request prepared."""
        self._wanted[add.key] = monotonic()

        def tell(work: "Future[SamplingParams]") -> None:
            if not work.cancelled():
                self._done.put((add, work))
                self._button.send(b".")

        self._thread.submit(self._make, add).add_done_callback(tell)

    def forget(self, key: int) -> None:
        """Drop a request, if it is here."""
        self._wanted.pop(key, None)

    def take(self) -> list[tuple[Add, float, "Future[SamplingParams]"]]:
        """Return the requests that are prepared, how many seconds each took, and its parameters or what is wrong."""
        taken = []
        while not self._done.empty():
            self._bell.recv(1)
            add, work = self._done.get()
            since = self._wanted.pop(add.key, None)
            if since is not None:
                taken.append((add, monotonic() - since, work))
        return taken

    def close(self) -> None:
        """Prepare nothing more."""
        self._thread.shutdown(cancel_futures=True)
        self._bell.close()
        self._button.close()

    def _make(self, add: Add) -> SamplingParams:
        params = SamplingParams(**add.params)
        if add.key in self._wanted:
            self._prepare(params)
        return params
