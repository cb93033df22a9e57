"""Fair queues: a scarce worker serves one key after another, however much one of them has waiting.

Work that would delay other requests runs beside the event loop, in threads and processes with such queues.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from parlay.garbage_collection import trim_memory
from parlay.text.tokenizer import TextCodec

T = TypeVar("T")

# Characters, tokens or bytes. A long input takes longer than a task should delay others; a huge one takes much memory
# too, and is processed one after another, half of the time: decoding it keeps other requests from the interpreter.
LONG, _HUGE = 1 << 12, 1 << 18
_AT_ONCE = 4  # long inputs


class FairQueue:
    """A semaphore that is fair among keys (round-robin), not among calls. Used on one event loop.

    A key that has many calls waiting gets one turn, then every other key that waits gets one.
    """

    def __init__(self, places: int = 1, *, rests: bool = False) -> None:
        """Start with all places free.

        Args:
            places: calls that may run at once.
            rests: a place stays empty for as long as its last call took, so that calls take half of the time at most:
                the rest is for what shares the interpreter with them.
        """
        self._free, self._rests = places, rests
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by key, the next one first

    async def run(self, key: str, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `work`, begun when it is the key's turn.

        A call that is cancelled while it waits never begins. One that has begun keeps its place until it has ended:
        a thread cannot be stopped.

        Raises:
            Exception: anything that `work` raises.
        """
        await self._turn(key)
        task, began = asyncio.ensure_future(work()), time.monotonic()
        task.add_done_callback(lambda done: self._done(done, time.monotonic() - began))
        await asyncio.wait((task,))  # which, cancelled, leaves the task alone
        return task.result()

    async def _turn(self, key: str) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            return
        called = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(called)
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():  # called and cancelled at once
                self._leave()
            else:
                self._forget(key, called)
            raise

    def _done(self, task: "asyncio.Future[Any]", seconds: float) -> None:
        if not task.cancelled():
            task.exception()  # the caller may be gone; the exception counts as retrieved
        if self._rests:
            task.get_loop().call_later(seconds, self._leave)
        else:
            self._leave()

    def _leave(self) -> None:
        """Give a free place to the next key."""
        self._free += 1
        while self._free and self._waiting:
            key, calls = self._waiting.popitem(last=False)
            called = calls.popleft()
            if calls:
                self._waiting[key] = calls  # behind all other keys
            self._free -= 1
            called.set_result(None)

    def _forget(self, key: str, called: "asyncio.Future[None]") -> None:
        calls = self._waiting[key]
        calls.remove(called)
        if not calls:
            del self._waiting[key]


class Threads:
    """Threads for long and for huge inputs, and turns at the processes of chat templates."""

    def __init__(self) -> None:
        """Start no thread yet."""
        self._long, self._huge = ThreadPoolExecutor(_AT_ONCE, "parlay-long"), ThreadPoolExecutor(1, "parlay-huge")
        self._long_turns, self._huge_turns = FairQueue(_AT_ONCE), FairQueue(rests=True)
        self._template_turns: dict[str, FairQueue] = {}

    async def run(self, key: str, size: int, work: Callable[[], T]) -> T:
        """Return the result of `work`; if its input is long, from a thread, so that other requests continue.

        Args:
            key: the key whose turn it takes.
            size: length of the input, in characters, tokens or bytes.
            work: what to do; its time is proportional to the size.
        """
        loop = asyncio.get_running_loop()
        if size < LONG:
            return work()
        if size < _HUGE:
            return await self._long_turns.run(key, lambda: loop.run_in_executor(self._long, work))

        def huge() -> T:
            try:
                return work()
            finally:
                trim_memory()

        return await self._huge_turns.run(key, lambda: loop.run_in_executor(self._huge, huge))

    async def run_template(
        self, key: str, codec: TextCodec, template: str | None, count: int, work: Callable[[], T]
    ) -> T:
        """Return the result of `work`, which runs a chat template, when it is the key's turn there.

        Args:
            key: the key whose turn it takes.
            codec: runs the template.
            template: a client's; None for the model's own.
            count: pieces that the template is given, see `TextCodec.run_template`.
            work: runs the template, in a thread; see `TextCodec.run_template`.
        """
        turns = self._template_turns.setdefault(codec.lane(template, count), FairQueue())
        return await turns.run(key, lambda: codec.run_template(template, work, count))
