"""The asyncio interface: the engine steps in a separate thread, each request is an asynchronous iterator."""

import asyncio
from os import PathLike
from typing import Any

from parlay.config import SERVING, modernise
from parlay.config.speculative import DEFAULT, Speculation
from parlay.errors import ParlayError
from parlay.link.engine import AsyncEngine, State
from parlay.link.engine_server import describe_engine
from parlay.link.protocol import Outputs, Stop
from parlay.link.thread import ThreadLink
from parlay.llm import LLM
from parlay.types.stats import StatsSnapshot


class AsyncLLM(AsyncEngine):
    """A target model that serves many requests at once to coroutines. Close it, or use it as a context manager.

    Example:
        >>> async with AsyncLLM("tiny-code", speculative_config={"method": "ngram"}) as llm:
        ...     async for output in llm.generate("def fibonacci(n):", SamplingParams(max_tokens=32)):
        ...         print(output.outputs[0].text)
    """

    def __init__(
        self,
        model: str | PathLike[str] = "tiny-code",
        *,
        speculative_config: Speculation = DEFAULT,
        **options: Any,
    ) -> None:
        """Load a model and start the engine's thread; arguments, errors and defaults but SERVING as in `LLM`."""
        options, speculative_config = modernise({**SERVING, **options}, speculative_config, stacklevel=2)
        self._llm = LLM(model, speculative_config=speculative_config, **options)
        engine = self._llm.engine
        super().__init__(engine.config)
        self._facts, self._codec = describe_engine(engine), engine.codec
        self._stats = StatsSnapshot()
        self._end: str | None = None  # why nothing is accepted any more
        self._link: ThreadLink = ThreadLink(engine, self._take, self._ended)

    @property
    def state(self) -> State:
        """Whether requests are taken: `ready` or `closed`."""
        return "ready" if self._end is None else "closed"

    def stats(self) -> StatsSnapshot:
        """Return the newest snapshot, at most about 0.1 s old."""
        return self._stats

    def _unavailable(self) -> ParlayError:
        return ParlayError(f"{self._end}; start another")

    async def close(self) -> None:
        """Stop the engine; iterators that are still open raise `ParlayError`. May be called again."""
        self._finish("the engine was closed")
        self.codec.close()
        self._link.send(Stop())
        await asyncio.to_thread(self._link.thread.join)

    def _take(self, outputs: Outputs) -> None:
        """Receive the engine's outputs, in its thread."""
        if outputs.stats is not None:
            self._stats = outputs.stats
        self._take_outputs(outputs)

    def _ended(self, error: BaseException | None) -> None:
        """The thread is about to end."""
        if error is not None:
            self._finish(f"the engine has failed ({type(error).__name__}: {error})")

    def _finish(self, why: str) -> None:
        """Accept nothing any more, and fail what is open."""
        with self._lock:
            if self._end is None:
                self._end = why
        self._fail_all(self._unavailable())

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
