"""Work that would delay other requests runs beside the event loop, with a turn for each key."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from parlay.server.garbage import give_memory_back
from parlay.server.turns import Turns
from parlay.text.tokenizer import TextCodec

T = TypeVar("T")

# Characters, tokens or bytes. A long input takes longer than a task should delay others; a huge one takes much memory
# too, and is processed one after another, half of the time: decoding it keeps other requests from the interpreter.
LONG, _HUGE = 1 << 12, 1 << 18
_AT_ONCE = 4  # long inputs


class Threads:
    """Threads for long and for huge inputs, and turns at the processes of chat templates."""

    def __init__(self) -> None:
        """Start no thread yet."""
        self._long, self._huge = ThreadPoolExecutor(_AT_ONCE, "parlay-long"), ThreadPoolExecutor(1, "parlay-huge")
        self._long_turns, self._huge_turns = Turns(_AT_ONCE), Turns(rests=True)
        self._template_turns: dict[str, Turns] = {}

    async def run(self, key: str, size: int, work: Callable[[], T]) -> T:
        """Return the result of `work`; if its input is long, from a thread, so that other requests continue.

        Args:
            key: whose turn it takes.
            size: of the input, in characters, tokens or bytes.
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
                give_memory_back()

        return await self._huge_turns.run(key, lambda: loop.run_in_executor(self._huge, huge))

    async def beside(self, key: str, codec: TextCodec, template: str | None, count: int, work: Callable[[], T]) -> T:
        """Return the result of `work`, which runs a chat template, when it is the key's turn there.

        Args:
            key: whose turn it takes.
            codec: runs the template.
            template: a client's; None for the model's own.
            count: as in `TextCodec.beside`.
            work: as there.
        """
        turns = self._template_turns.setdefault(codec.lane(template, count), Turns())
        return await turns.run(key, lambda: codec.beside(template, work, count))
