"""Signals that come while something must not be left half done: their handlers run when it is done."""

import signal

# The functions that `signal` wraps: its enumerations take ten times as long.
from _signal import getsignal  # type: ignore[import-not-found]
from _signal import signal as install
from collections.abc import Callable
from threading import get_ident, main_thread
from types import FrameType, TracebackType
from typing import Any

# Signals whose handlers often raise: Ctrl-C, what ends a process, and what limits the time of a call.
_NAMES = ("SIGINT", "SIGTERM", "SIGALRM")
_NUMBERS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
_AT_ONCE = int(signal.SIGINT)  # if it comes again: what the region waits for may never come
_Handler = Callable[[int, FrameType | None], Any]


class DeferredSignals:
    """A region in which Python's signal handlers wait. Made once, entered as often, though not within itself.

    They run in the main thread alone, so elsewhere the region does nothing. A second Ctrl-C does not wait.
    """

    def __init__(self) -> None:
        self._inside = False
        self._handlers: dict[int, _Handler] = {}  # that this one stands in for
        self._came: dict[int, FrameType | None] = {}
        self._stand_in = self._wait  # one object, to be known again

    def __enter__(self) -> None:
        if get_ident() != main_thread().ident:
            return
        stand_in = self._stand_in
        for number in _NUMBERS:
            handler = getsignal(number)
            if handler is not stand_in and callable(handler):
                self._handlers[number] = handler
                install(number, stand_in)
        self._inside = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._inside or get_ident() != main_thread().ident:
            return
        self._inside = False  # from here on the stand-in passes signals on
        for number, handler in self._handlers.items():
            if getsignal(number) is self._stand_in:
                install(number, handler)
        if self._came:
            came, self._came = self._came, {}
            for number, frame in came.items():
                self._handlers[number](number, frame)

    def _wait(self, number: int, frame: FrameType | None) -> None:
        if self._inside and not (number == _AT_ONCE and number in self._came):
            self._came[number] = frame
        else:
            self._handlers[number](number, frame)
