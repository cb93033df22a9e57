"""Signals that come while something must not be left half done: their handlers run when it is done."""

import _signal  # type: ignore[import-not-found]  # without the enumerations of `signal`, which take ten times as long
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

# Those whose handlers may raise: Ctrl-C, what ends a process, and what limits the time of a call.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
_NUMBERS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
_AT_ONCE = int(signal.SIGINT)  # if it comes again: what the region waits for may never come
_Handler = Callable[[int, FrameType | None], Any]


class Deferred:
    """A region in which Python's signal handlers wait. Made once, entered as often, though not within itself.

    They run in the main thread alone, so elsewhere the region does nothing. A second Ctrl-C does not wait.
    """

    def __init__(self) -> None:
        self._inside = False
        self._handlers: dict[int, _Handler] = {}  # that this one stands in for
        self._came: dict[int, FrameType | None] = {}
        self._stand_in = self._wait  # one object, to be known again

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        for number in _NUMBERS:
            handler = _signal.getsignal(number)
            if callable(handler) and handler is not self._stand_in:
                self._handlers[number] = handler
                _signal.signal(number, self._stand_in)
        self._inside = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._inside or threading.get_ident() != threading.main_thread().ident:
            return
        self._inside = False  # from here on the stand-in passes signals on
        handlers = dict(self._handlers)
        for number, handler in handlers.items():
            if _signal.getsignal(number) is self._stand_in:
                _signal.signal(number, handler)
        if self._came:
            came, self._came = self._came, {}
            for number, frame in came.items():
                handlers[number](number, frame)

    def _wait(self, number: int, frame: FrameType | None) -> None:
        if self._inside and not (number == _AT_ONCE and number in self._came):
            self._came[number] = frame
        else:
            self._handlers[number](number, frame)
