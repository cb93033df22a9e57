"""Grammars compiled outside the engine's thread: a large one takes longer than other requests should wait."""

from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock
from time import monotonic

from parlay.errors import RequestError
from parlay.link.protocol import Add, Failure
from parlay.log import logger
from parlay.types.params import SamplingParams


class GrammarCompiler:
    """One thread that compiles, for one tenant after another; llguidance lets other threads run meanwhile."""

    def __init__(self, prepare: Callable[[SamplingParams, str], None], wake: Callable[[], None]) -> None:
        """Start with an empty queue.

        Args:
            prepare: compiles what a request of a tenant needs; called in the thread.
            wake: called there when a request is done.
        """
        self._prepare, self._wake_engine = prepare, wake
        self._thread = ThreadPoolExecutor(1, "parlay-forms")
        self._queues: OrderedDict[str, deque[Add]] = OrderedDict()  # by tenant, the next one first
        self._lock = Lock()  # guards these
        self._wanted: dict[int, float] = {}  # when each came, by the front's key
        self._done: SimpleQueue[tuple[Add, SamplingParams | Failure]] = SimpleQueue()

    def submit(self, add: Add) -> None:
        """Queue a request to be prepared."""
        self._wanted[add.key] = monotonic()
        with self._lock:
            self._queues.setdefault(add.tenant, deque()).append(add)
        self._thread.submit(self._next)

    def forget(self, key: int) -> None:
        """Drop a request, if it is here."""
        self._wanted.pop(key, None)

    def take(self) -> list[tuple[Add, float, SamplingParams | Failure]]:
        """Return the requests that are prepared, the seconds each took, and its parameters or its error."""
        taken = []
        while not self._done.empty():
            add, found = self._done.get()
            since = self._wanted.pop(add.key, None)
            if since is not None:
                taken.append((add, monotonic() - since, found))
        return taken

    def close(self) -> None:
        """Prepare nothing more."""
        self._thread.shutdown(cancel_futures=True)

    def _next(self) -> None:
        """Prepare a request of the next tenant: they take turns, however many one of them has."""
        with self._lock:
            tenant, queue = self._queues.popitem(last=False)
            add = queue.popleft()
            if queue:
                self._queues[tenant] = queue
        self._make(add)

    def _make(self, add: Add) -> None:
        found: SamplingParams | Failure
        try:
            found = SamplingParams(**add.params)
            if add.key in self._wanted:
                self._prepare(found, add.tenant)
        except Exception as error:
            found = refused(error, add.key)
        self._done.put((add, found))
        self._wake_engine()


def refused(error: Exception, key: int) -> Failure:
    """Return the front's error for a request that cannot be added; the engine is unaffected."""
    if not isinstance(error, RequestError):
        logger.error("a request could not be added", exc_info=error)
    return Failure.of(error, "the engine cannot take this request", key)
