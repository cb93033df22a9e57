"""The asyncio interface: the engine steps in a thread of its own, each request is an asynchronous iterator.

The thread alone touches the engine. It takes commands between steps; outputs go to the event loop that asked. An
output holds everything so far, so that a reader who is slow misses steps but no tokens, and nothing piles up.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from os import PathLike
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Literal

from parlay.config import modernise
from parlay.config.speculative import DEFAULT, Speculation
from parlay.engine.request import Request
from parlay.engine.tokenizer import TextCodec
from parlay.errors import ParlayError
from parlay.llm import LLM
from parlay.log import logger
from parlay.types.output import RequestOutput
from parlay.types.params import SamplingParams
from parlay.types.prompt import Messages, Prompt

_REQUEST_OPTIONS = ("priority", "tenant", "timeout", "final_only")


class AsyncLLM:
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
        """Load a model and start the engine's thread; arguments and errors are those of `LLM`."""
        options, speculative_config = modernise(options, speculative_config, stacklevel=2)
        self._llm = LLM(model, speculative_config=speculative_config, **options)
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = Lock()  # over `_open` and `_end`, which both sides use
        self._open: set[_Stream] = set()
        self._end: str | None = None  # why nothing is accepted any more
        self._by_request: dict[int, _Stream] = {}  # the thread's alone
        self._thread = Thread(target=self._serve, name="parlay-engine", daemon=True)
        self._thread.start()

    @property
    def model_name(self) -> str:
        """What the model is called: the first `served_model_name`, or else `model`."""
        return self._llm.model_name

    @property
    def model_names(self) -> tuple[str, ...]:
        """All its names."""
        return self._llm.model_names

    @property
    def codec(self) -> TextCodec:
        """The target's tokenizer and chat template."""
        return self._llm.engine.codec

    @property
    def max_model_len(self) -> int:
        """Longest sequence, prompt and output together."""
        return self._llm.engine.max_model_len

    @property
    def state(self) -> Literal["ready", "closed"]:
        """Whether requests are taken."""
        with self._lock:
            return "ready" if self._end is None else "closed"

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """The model's own sampling parameters, for requests that give none; see `generation_config`."""
        return self._llm.sampling_defaults

    @property
    def numerics_id(self) -> str:
        """Names everything that the bits of a token depend on besides its request: equal ids, equal tokens."""
        return self._llm.numerics_id

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        tenant: str = "",
        timeout: float | None = None,
        final_only: bool = False,
    ) -> AsyncIterator[RequestOutput]:
        """Yield what one prompt's completions have, as they grow; the last output is finished.

        The request is queued when the first output is awaited. It is aborted when the iterator is closed or the
        coroutine that awaits it is cancelled.

        Args:
            prompt: text, token ids, or a mapping with `prompt` or `prompt_token_ids`.
            sampling_params: how tokens are chosen.
            priority: lower runs first among the waiting.
            tenant: requests of different tenants share no cache.
            timeout: seconds after which the request is aborted.
            final_only: yield the last output alone, which costs less.

        Raises:
            RequestError: the prompt cannot be served, or fails on the way.
            ParlayError: the engine was closed, or has failed.
        """
        stream = _Stream(prompt, asyncio.get_running_loop(), final_only)
        params = sampling_params or SamplingParams.parse(self.sampling_defaults)
        more = {"priority": priority, "tenant": tenant, "timeout": timeout}
        self._submit(lambda: self._begin(stream, params, more), stream)
        try:
            while True:
                output = await stream.next()
                yield output
                if output.finished:
                    return
        finally:
            self._leave(stream)

    async def chat(
        self, messages: Messages, sampling_params: SamplingParams | None = None, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        """Yield what the answers to one conversation have, as they grow; otherwise as `generate`.

        Args:
            messages: mappings with `role` and `content`.
            sampling_params: how tokens are chosen.
            **options: those of `generate`; others as in `LLM.chat_prompt`.
        """
        more = {name: options.pop(name) for name in _REQUEST_OPTIONS if name in options}
        outputs = self.generate(self._llm.chat_prompt(messages, **options), sampling_params, **more)
        try:
            async for output in outputs:
                yield output
        finally:
            await outputs.aclose()  # type: ignore[attr-defined]

    async def close(self) -> None:
        """Stop the engine; iterators that are still open raise `ParlayError`. May be called again."""
        with self._lock:
            if self._end is None:
                self._end = "the engine was closed"
                self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # ------------------------------------------------------------------------------------ on the event loop's side

    def _submit(self, command: Callable[[], None], stream: "_Stream") -> None:
        with self._lock:
            if self._end is not None:
                raise ParlayError(f"{self._end}; start another")
            self._open.add(stream)
            self._commands.put(command)

    def _leave(self, stream: "_Stream") -> None:
        with self._lock:
            self._open.discard(stream)
            if self._end is None:
                self._commands.put(lambda: self._abandon(stream))

    # ----------------------------------------------------------------------------------------- in the engine's thread

    def _serve(self) -> None:
        try:
            while self._obey():
                streams = [self._by_request[r.request_id] for r in self._llm.engine.step()]
                for stream in dict.fromkeys(streams):
                    self._show(stream)
        except BaseException as error:
            logger.exception("the engine has failed")
            with self._lock:
                self._end = f"the engine has failed ({type(error).__name__}: {error})"
        with self._lock:
            left, self._open = self._open, set()
        for stream in left:
            stream.put(ParlayError(f"{self._end}; start another"))

    def _obey(self) -> bool:
        """Run the commands that came in, waiting for one if there is nothing else to do; False to stop."""
        while not self._commands.empty() or not self._llm.engine.busy:
            command = self._commands.get()
            if command is None:
                return False
            command()
        return True

    def _begin(self, stream: "_Stream", params: SamplingParams, more: dict[str, Any]) -> None:
        if stream.left:
            return
        try:
            stream.requests = self._llm.submit(stream.prompt, params, **more)
        except Exception as error:
            # The engine is as it was: only this request is wrong.
            stream.put(error)
            return
        for request in stream.requests:
            self._by_request[request.request_id] = stream

    def _abandon(self, stream: "_Stream") -> None:
        stream.left = True
        for request in stream.requests:
            self._llm.engine.abort(request)
        self._forget(stream)

    def _forget(self, stream: "_Stream") -> None:
        for request in stream.requests:
            self._by_request.pop(request.request_id, None)

    def _show(self, stream: "_Stream") -> None:
        failed = next((r.error for r in stream.requests if r.error is not None), None)
        if failed is not None:
            self._abandon(stream)
            stream.put(failed)
            return
        finished = all(r.finish_reason is not None for r in stream.requests)
        if finished:
            self._forget(stream)
        if finished or (stream.wanted and not stream.final_only):
            stream.put(self._llm.output(stream.prompt, stream.requests))


class _Stream:
    """One request's way from the engine's thread to the event loop that asked.

    Attributes:
        final_only: whether the reader wants no other output than the final one.
        wanted: whether the reader has taken the last output; until then only the final one is worth making.
        left: whether the reader is gone.
    """

    def __init__(self, prompt: Prompt, loop: asyncio.AbstractEventLoop, final_only: bool = False) -> None:
        self.prompt = prompt
        self.final_only = final_only
        self.requests: list[Request] = []
        self.wanted = True
        self.left = False
        self._loop = loop
        self._ready = asyncio.Event()
        self._item: RequestOutput | Exception | None = None

    def put(self, item: RequestOutput | Exception) -> None:
        """Hand over an output, or why there will be none; in place of one that nobody took."""
        self.wanted = False
        try:
            self._loop.call_soon_threadsafe(self._set, item)
        except RuntimeError:  # the loop was closed: whoever asked is gone
            self.left = True

    def _set(self, item: RequestOutput | Exception) -> None:
        self._item = item
        self._ready.set()

    async def next(self) -> RequestOutput:
        """Wait for the next output."""
        await self._ready.wait()
        self._ready.clear()
        item = self._item
        if isinstance(item, Exception):
            raise item
        assert item is not None
        self.wanted = True
        return item
