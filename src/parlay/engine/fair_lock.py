"""One thread at a time, and the next one in turn, even where an interrupt may come at any moment."""

from collections.abc import Callable
from threading import Lock, RLock, get_ident
from typing import TypeVar

from parlay.errors import ParlayError

Result = TypeVar("Result")


class FairLock:
    """Runs what threads must not run at the same time.

    A plain lock would be taken again and again by a thread that steps in a loop, while others wait; here a thread
    that waits comes before one that comes back. Both locks are taken and released by single calls of C, so that
    Ctrl-C never leaves one taken.
    """

    def __init__(self) -> None:
        """Create a lock that no thread holds."""
        self._next, self._inside = Lock(), RLock()
        self._thread: int | None = None  # the thread that is inside

    def run(self, work: Callable[[], Result]) -> Result:
        """Run something alone, as soon as no other thread is inside.

        Raises:
            ParlayError: this thread is inside already.
        """
        if self._thread == get_ident():
            raise ParlayError("an LLM cannot be used from within its own step; call it when the step has ended")
        try:
            with self._next:
                self._inside.acquire()
            return self._run(work)
        finally:
            try:  # noqa: SIM105  # an interrupt could come before what `suppress` guards
                self._inside.release()
            except RuntimeError:  # it was not acquired
                pass

    def run_if_free(self, work: Callable[[], object]) -> bool:
        """Run something alone if no thread is inside, this one included; return whether it ran."""
        if self._thread == get_ident():
            return False
        try:
            free = self._inside.acquire(blocking=False)
            if free:
                self._run(work)
            return free
        finally:
            try:  # noqa: SIM105
                self._inside.release()
            except RuntimeError:
                pass

    def _run(self, work: Callable[[], Result]) -> Result:
        try:
            self._thread = get_ident()
            return work()
        finally:
            self._thread = None
