"""One request as the front sees it: what was told of it, put together again.

A reader gets everything so far, whenever it asks. One that is slow misses steps but no tokens, and keeps nothing
waiting.
"""

from asyncio import Future, get_running_loop

from parlay.engine.tokenizer import TextCodec, logprob_tables
from parlay.errors import ParlayError
from parlay.server.protocol import Delta, PromptScores
from parlay.types.output import CompletionOutput, FinishReason, Logprob, Rejected, RequestMetrics, RequestOutput
from parlay.types.params import SamplingParams
from parlay.types.plan import TokenLogprobs


class Stream:
    """Collects one request's deltas for one reader.

    Attributes:
        ended: whether nothing more will come.
    """

    def __init__(self, codec: TextCodec, text: str | None, prompt: tuple[int, ...], params: SamplingParams) -> None:
        """Begin with nothing.

        Args:
            codec: for the text of tokens that log-probabilities name.
            text: the prompt's, if it was given as text.
            prompt: token ids.
            params: how tokens are chosen.
        """
        self._codec = codec
        self._prompt = prompt
        self._text = text
        self._request_id: int | None = None
        self._completions = [_Completion(params) for _ in range(params.n)]
        self._scores: tuple[dict[int, Logprob] | None, ...] | None = None
        self._error: ParlayError | None = None
        self._fresh = False
        self._reader: Future[None] | None = None
        self.ended = False

    def add(self, delta: Delta) -> None:
        """Take what is new of one completion; `wake` the reader after the last of a message."""
        self._request_id = delta.request_id
        self._completions[delta.index].add(delta, self._codec)
        self.ended = all(completion.finish_reason is not None for completion in self._completions)

    def add_scores(self, scores: PromptScores) -> None:
        """Take the prompt's log-probabilities."""
        entries = [TokenLogprobs(*entry) for entry in scores.scores]
        self._scores = (None, *logprob_tables(self._codec, self._prompt[1:], entries))

    def fail(self, error: ParlayError) -> None:
        """End with an error, unless the answer is complete."""
        if not self.ended:
            self._error, self.ended = error, True
            self.wake()

    def wake(self) -> None:
        """Tell the reader that there is something new."""
        self._fresh = True
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def next(self) -> RequestOutput:
        """Wait for something new; return everything so far.

        Raises:
            ParlayError: the request failed.
        """
        if not self._fresh:
            self._reader = get_running_loop().create_future()
            await self._reader
        self._fresh = False
        if self._error is not None:
            raise self._error
        return RequestOutput(
            request_id=self._request_id,
            prompt=self._text,
            prompt_token_ids=self._prompt,
            outputs=tuple(completion.output(index) for index, completion in enumerate(self._completions)),
            finished=self.ended,
            prompt_logprobs=self._scores,
        )


class _Completion:
    def __init__(self, params: SamplingParams) -> None:
        self._tokens: list[int] = []
        self._text = ""
        self._sources: list[str] = []
        self._logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self._rejected: list[Rejected] | None = [] if params.return_rejected else None
        self._stop_reason: str | int | None = None
        self._metrics = RequestMetrics()
        self.finish_reason: FinishReason | None = None

    def add(self, delta: Delta, codec: TextCodec) -> None:
        self._tokens += delta.tokens
        self._text += delta.text
        self._sources += delta.sources
        if self._logprobs is not None and delta.logprobs:
            entries = [TokenLogprobs(*entry) for entry in delta.logprobs]
            self._logprobs += logprob_tables(codec, delta.tokens, entries)
        if self._rejected is not None and delta.rejected:
            self._rejected += delta.rejected
        self.finish_reason, self._stop_reason = delta.finish_reason, delta.stop_reason
        self._metrics = RequestMetrics(*delta.metrics)

    def output(self, index: int) -> CompletionOutput:
        return CompletionOutput(
            index=index,
            text=self._text,
            token_ids=tuple(self._tokens),
            sources=tuple(self._sources),
            logprobs=None if self._logprobs is None else tuple(self._logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            metrics=self._metrics,
            rejected=None if self._rejected is None else tuple(self._rejected),
        )
