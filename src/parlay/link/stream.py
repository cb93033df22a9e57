"""One request as its reader sees it: its messages, put together when the reader asks.

A reader that is slow misses steps but no tokens, and blocks nothing: what it has not taken yet is one output when it
does. An output is what is new or, for a reader that wants that each time, everything so far.
"""

from asyncio import AbstractEventLoop, Event, get_running_loop
from threading import Lock

from parlay.errors import ParlayError
from parlay.link.protocol import Delta, PromptScores, ProtocolError
from parlay.text.logprobs import logprob_tables
from parlay.text.tokenizer import TextCodec
from parlay.types.output import CompletionOutput, FinishReason, Logprob, Rejected, RequestMetrics, RequestOutput
from parlay.types.params import SamplingParams
from parlay.types.plan import TokenLogprobs


class Stream:
    """Collects one request's deltas for one reader, on the event loop that made it; any thread may add them.

    Attributes:
        name: the reader's id of the request.
        ended: whether nothing more will come.
        replica: number of the replica that computes it.
    """

    def __init__(
        self,
        codec: TextCodec,
        text: str | None,
        prompt: tuple[int, ...],
        params: SamplingParams,
        *,
        deltas: bool = False,
        name: str | None = None,
    ) -> None:
        """Start empty; needs a running event loop.

        Args:
            codec: decodes the tokens that log-probabilities name.
            text: the prompt's, if it was given as text.
            prompt: token ids.
            params: how tokens are chosen.
            deltas: give only what is new.
            name: the reader's id of the request, which outputs have then; None for the engine's.
        """
        self._codec = codec
        self.name = name
        self._prompt = prompt
        self._text = text
        self._deltas = deltas
        self._request_id = name
        self._completions = [_Completion(params) for _ in range(params.n)]
        self._scores: tuple[dict[int, Logprob] | None, ...] | None = None
        self._loop = get_running_loop()
        self._ready = Event()
        self._lock = Lock()  # guards what follows, which both sides use
        self._news: list[Delta | PromptScores] = []
        self._unfinished = set(range(params.n))
        self._error: ParlayError | None = None
        self._woken = self._aborted = False
        self.ended = False
        self.replica = 0

    @property
    def unfinished(self) -> int:
        """How many of its completions are still to be finished."""
        return 0 if self.ended else len(self._unfinished)

    def add(self, *news: Delta | PromptScores) -> bool:
        """Add messages; return False if they can never be read.

        Raises:
            ProtocolError: it is of an unknown completion.
        """
        deltas = [one for one in news if isinstance(one, Delta)]
        if not all(0 <= one.index < len(self._completions) for one in deltas):
            raise ProtocolError("the engine reported on an unknown completion")
        with self._lock:
            self._unfinished -= {one.index for one in deltas if one.finish_reason is not None}
            self._news += news
            self.ended = self.ended or not self._unfinished
            return self._wake()

    def fail(self, error: ParlayError) -> None:
        """End with an error, unless the answer is complete."""
        with self._lock:
            if not self.ended:
                self._error, self.ended = error, True
                self._wake()

    def abort(self) -> None:
        """End with what has come so far, unless the answer is complete."""
        with self._lock:
            if not self.ended:
                self._aborted = self.ended = True
                self._wake()

    def _wake(self) -> bool:
        """Wake the reader."""
        if self._woken:
            return True
        self._woken = True
        if _running_loop() is self._loop:
            self._ready.set()
            return True
        try:
            self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:  # the loop was closed: the reader is gone
            return False
        return True

    async def next(self) -> RequestOutput:
        """Wait for something new; return it, or everything so far.

        Raises:
            ParlayError: the request failed.
        """
        await self._ready.wait()
        self._ready.clear()
        with self._lock:
            self._woken = False
            news, self._news = self._news, []
            error, ended, aborted = self._error, self.ended, self._aborted
        if error is not None:
            raise error
        for one in news:
            if isinstance(one, Delta):
                if self.name is None:
                    self._request_id = str(one.request_id)
                self._completions[one.index].add(one, self._codec)
            else:
                entries = [TokenLogprobs(*entry) for entry in one.scores]
                self._scores = (None, *logprob_tables(self._codec, self._prompt[1:], entries))
        if aborted:
            for completion in self._completions:
                completion.abort()
        return RequestOutput(
            request_id=self._request_id,
            prompt=self._text,
            prompt_token_ids=self._prompt,
            outputs=tuple(one.output(index, self._deltas) for index, one in enumerate(self._completions)),
            finished=ended,
            prompt_logprobs=self._scores,
            replica=self.replica,
        )


class _Completion:
    """What was received of one completion: since the last output for a reader of deltas, or since the beginning."""

    def __init__(self, params: SamplingParams) -> None:
        self._scored, self._rejects = params.logprobs is not None, params.return_rejected
        self._finish_reason: FinishReason | None = None
        self._stop_reason: str | int | None = None
        self._metrics = RequestMetrics()
        self._clear()

    def _clear(self) -> None:
        self._tokens: list[int] = []
        self._texts: list[str] = []
        self._sources: list[str] = []
        self._logprobs: list[dict[int, Logprob]] = []
        self._rejected: list[Rejected] = []

    def add(self, delta: Delta, codec: TextCodec) -> None:
        self._tokens += delta.tokens
        self._texts.append(delta.text)
        self._sources += delta.sources
        if delta.logprobs:
            entries = [TokenLogprobs(*entry) for entry in delta.logprobs]
            self._logprobs += logprob_tables(codec, delta.tokens, entries)
        self._rejected += delta.rejected or ()
        self._finish_reason, self._stop_reason = delta.finish_reason, delta.stop_reason
        self._metrics = RequestMetrics(*delta.metrics)

    def abort(self) -> None:
        if self._finish_reason is None:
            self._finish_reason = "abort"

    def output(self, index: int, delta: bool) -> CompletionOutput:
        self._texts = ["".join(self._texts)]
        output = CompletionOutput(
            index=index,
            text=self._texts[0],
            token_ids=tuple(self._tokens),
            sources=tuple(self._sources),
            logprobs=tuple(self._logprobs) if self._scored else None,
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
            metrics=self._metrics,
            rejected=tuple(self._rejected) if self._rejects else None,
        )
        if delta:
            self._clear()
        return output


def _running_loop() -> AbstractEventLoop | None:
    try:
        return get_running_loop()
    except RuntimeError:
        return None
