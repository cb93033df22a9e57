"""An engine that serves coroutines, however it computes: what `AsyncLLM` and the server's client have in common.

Prompts are encoded here, and requests without a seed get theirs here, so that what computes may be replaced, or be
one of several. A request's stream keeps its outputs until they are read.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from threading import Lock
from typing import Any, Literal

from parlay.config import EngineConfig
from parlay.errors import EngineFaultError, ParlayError, RequestError, shown
from parlay.link.protocol import Abort, Add, Delta, EngineReady, Outputs, PromptScores, ProtocolError, plain_params
from parlay.link.stream import Stream
from parlay.link.transport import Link
from parlay.log import logger
from parlay.sampling.seeds import arrival_seed
from parlay.text.chat import ChatOptions, pieces
from parlay.text.tokenizer import TextCodec, check_prompt, encode_prediction
from parlay.types.output import RequestOutput
from parlay.types.params import SamplingParams
from parlay.types.prompt import Messages, Prompt, content_of, salt_of, text_of
from parlay.types.queue_position import check_queue_position
from parlay.types.stats import StatsSnapshot

State = Literal["starting", "ready", "restarting", "closed"]
_LONG = 1 << 15  # characters of a prompt that is encoded beside the event loop instead of on it
_REQUEST_OPTIONS = ("request_id", "priority", "tenant", "timeout", "final_only", "deltas")


class AsyncEngine(ABC):
    """Requests in, streams of outputs out, over a link that the subclass makes and renews."""

    def __init__(self, config: EngineConfig) -> None:
        """Start without a link."""
        self._config = config
        self._link: Link | None = None
        self._facts: EngineReady | None = None
        self._codec: TextCodec | None = None
        self._lock = Lock()  # guards whether requests are accepted, and which are open
        self._streams: dict[int, Stream] = {}
        self._keys_by_name: dict[str, int] = {}  # of open requests with an id of their user's
        self._aborted = set[int]()
        self._arrivals, self._keys = count(), count()

    @property
    @abstractmethod
    def state(self) -> State:
        """`ready` when requests are accepted; otherwise `starting`, `restarting` after a death, or `closed`."""

    @abstractmethod
    def _unavailable(self) -> ParlayError:
        """Return why no request is accepted now."""

    @property
    def model_name(self) -> str:
        """What the model is called: the first `served_model_name`, or else `model`."""
        return self._config.model_name

    @property
    def model_names(self) -> tuple[str, ...]:
        """All its names."""
        return self._config.model_names

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """The model's own sampling parameters, for requests that give none; see `generation_config`."""
        return dict(self.facts.sampling)

    @property
    def numerics_id(self) -> str:
        """Names everything that the bits of a token depend on besides its request: equal ids, equal tokens."""
        return self.facts.numerics_id

    @property
    def max_model_len(self) -> int:
        """Longest sequence, prompt and output together."""
        return self.facts.max_model_len

    @property
    def codec(self) -> TextCodec:
        """The target's tokenizer and chat template, in this process."""
        if self._codec is None:
            raise self._unavailable()
        return self._codec

    @property
    def facts(self) -> EngineReady:
        """What the engine reported when it was ready."""
        if self._facts is None:
            raise self._unavailable()
        return self._facts

    @abstractmethod
    def stats(self) -> StatsSnapshot:
        """Return the newest snapshot, at most about 0.1 s old; it counts from the engine's last start."""

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        tenant: str = "",
        timeout: float | None = None,
        final_only: bool = False,
        deltas: bool = False,
    ) -> AsyncIterator[RequestOutput]:
        """Yield what one prompt's completions have, as they grow; the last output is finished.

        The request is queued when the first output is awaited. It is aborted by `abort`, when the iterator is closed,
        or when the coroutine that awaits it is cancelled. With `best_of` above `n` there is one output, at the end.

        Args:
            prompt: text, token ids, or a mapping with `prompt` or `prompt_token_ids`, and perhaps a `cache_salt`.
            sampling_params: how tokens are chosen; `logits_processors` only where the engine is in this process.
            request_id: the id for `abort` and in the outputs; left out, outputs have a number.
            priority: lower runs first among the waiting.
            tenant: requests of different tenants share no cache; left out, the prompt's `cache_salt`.
            timeout: seconds after which the request is aborted.
            final_only: yield the last output alone, which costs less.
            deltas: completions hold the text, tokens, sources, log-probabilities and rejected nodes since the output
                before, instead of all so far, so that the cost of a token does not grow with the length of the
                answer. Their metrics and everything about the prompt are complete.

        Raises:
            RequestError: the prompt cannot be served, or fails on the way; or another open request has its id.
            EngineDeadError: the engine's process is not there, or died; the same request may be sent again.
            ParlayError: the engine was closed, or has failed.
        """
        key, ordinal = next(self._keys), next(self._arrivals)
        self._check_present()
        check_queue_position(priority, tenant, timeout)
        with self._named(request_id, key):
            tenant = tenant or salt_of(prompt)
            tokens, params = await self._encoded(prompt, sampling_params, ordinal)
            stream = Stream(self.codec, text_of(prompt), tokens, params, deltas=deltas, name=request_id)
            add = Add(key, tokens, plain_params(params), priority, tenant, timeout, final_only)
            if key in self._aborted:
                stream.abort()
            else:
                self._open(key, stream, add)
            try:
                while True:
                    output = await stream.next()
                    yield output
                    if output.finished:
                        return
            finally:
                self._leave(key, stream)

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
        asked, codec = ChatOptions.parse(options), self.codec
        count = pieces(messages, asked.tools)
        text = await codec.run_template(asked.chat_template, lambda: codec.chat(messages, asked), count)
        prompt = {"prompt": text, "prompt_token_ids": self.codec.encode(text, add_special_tokens=False)}
        outputs = self.generate(prompt, sampling_params, **more)
        try:
            async for output in outputs:
                yield output
        finally:
            await outputs.aclose()  # type: ignore[attr-defined]

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; the last output of each has what came so far, with `finish_reason` "abort".

        With `final_only`, or `best_of` above `n`, nothing comes before the end. Ids that no open request has are
        ignored: their requests have finished.

        Args:
            request_id: one or several that `generate` was given.
        """
        ended = {request_id} if isinstance(request_id, str) else {*request_id}
        for key in [self._keys_by_name[name] for name in ended if name in self._keys_by_name]:
            self._aborted.add(key)  # its prompt may still be encoded
            if (stream := self._streams.get(key)) is not None:
                self._leave(key, stream)
                stream.abort()

    @contextmanager
    def _named(self, request_id: str | None, key: int) -> Iterator[None]:
        """Keep an id for a request while it is open.

        Raises:
            RequestError: it is no text, or another open request has it.
        """
        if not isinstance(request_id, str | None):
            raise RequestError(f"request_id is text, not {type(request_id).__name__}", param="request_id")
        if request_id in self._keys_by_name:
            raise RequestError(f"request_id: {shown(request_id)} is that of an open request; give another")
        if request_id is not None:
            self._keys_by_name[request_id] = key
        try:
            yield
        finally:
            self._aborted.discard(key)
            if request_id is not None:
                del self._keys_by_name[request_id]

    # ------------------------------------------------------------------------------------------------- requests

    def _check_present(self) -> None:
        if self.state != "ready":
            raise self._unavailable()

    async def _encoded(
        self, prompt: Prompt, given: SamplingParams | None, ordinal: int
    ) -> tuple[tuple[int, ...], SamplingParams]:
        """Return a prompt's tokens, and parameters whose prediction is encoded and that have a seed."""
        params = SamplingParams.parse(self.sampling_defaults) if given is None else given.clone()
        tokens = await self._tokens(prompt)
        if params.prediction:
            params = replace(params, prediction=await self._predicted(params.prediction))
        if params.seed is None:
            params = replace(params, seed=arrival_seed(self._config.seed, ordinal))
        return tokens, params

    async def _tokens(self, prompt: Prompt) -> tuple[int, ...]:
        content = content_of(prompt)
        if isinstance(content, str):
            encode = self.codec.encode
            content = await asyncio.to_thread(encode, content) if len(content) > _LONG else encode(content)
        return check_prompt(content, self.facts.vocab_size, self.facts.max_model_len)

    async def _predicted(self, given: str | Sequence[int]) -> tuple[int, ...]:
        arguments = self.codec, given, self.facts.vocab_size, self.facts.max_model_len
        long = isinstance(given, str) and len(given) > _LONG
        return await asyncio.to_thread(encode_prediction, *arguments) if long else encode_prediction(*arguments)

    def _open(self, key: int, stream: Stream, add: Add) -> None:
        with self._lock:  # a link that ends now fails this stream too, or it is not opened
            self._check_present()  # encoding may have taken its time
            assert self._link is not None
            self._streams[key] = stream  # first: a thread may answer before this one goes on
            try:
                self._link.send(add)
            except BaseException:  # nothing would ever end the stream
                del self._streams[key]
                raise

    def _leave(self, key: int, stream: Stream) -> None:
        """Forget a request whose reader is gone; the engine forgets it within a step."""
        with self._lock:
            known = self._streams.pop(key, None) is not None
        if known and not stream.ended and self._link is not None:
            self._link.send(Abort(key))

    def _fail_all(self, error: ParlayError) -> None:
        with self._lock:
            streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)

    # ------------------------------------------------------------------------------- what comes, in the link's thread

    def _take_outputs(self, outputs: Outputs) -> None:
        """Pass the engine's outputs to the streams of their requests.

        Raises:
            ProtocolError: they are of something that was not sent.
        """
        news: dict[int, list[Delta | PromptScores]] = {}
        parts: list[Delta | PromptScores] = [*outputs.prompts, *outputs.deltas]
        for one in parts:
            news.setdefault(one.key, []).append(one)
        for key, own in news.items():
            stream = self._streams.get(key)
            if stream is not None:
                self._deliver(key, stream, own)
        for failure in outputs.failures:
            stream = None if failure.key is None else self._streams.get(failure.key)
            if stream is not None:
                stream.fail(failure.error())

    def _deliver(self, key: int, stream: Stream, news: Sequence[Delta | PromptScores]) -> None:
        """Give news to a stream; a fault of this side's is no other request's."""
        try:
            if not stream.add(*news):
                self._leave(key, stream)
        except ProtocolError:
            raise
        except Exception:
            logger.exception("a request's output could not be processed")
            self._leave(key, stream)
            stream.fail(EngineFaultError("the request's output could not be processed; see the log"))
