"""The engine's end of a link: commands in, one message a step out.

Commands are taken between steps, so that an abort frees its blocks within one. While the front cannot take a message,
nothing is queued: what a request has that was not sent is computed when a message can be sent, and that message then
covers several steps.
"""

from collections.abc import Sequence
from time import monotonic

from parlay.engine.answers import metrics_of, text_since
from parlay.engine.engine import Engine
from parlay.engine.request import Request, best
from parlay.link.grammar_compiler import GrammarCompiler, refused
from parlay.link.protocol import (
    Abort,
    Add,
    Command,
    Delta,
    EngineReady,
    Failure,
    Outputs,
    PromptScores,
    plain_metrics,
    plain_scores,
)
from parlay.link.transport import Transport
from parlay.types.output import Rejected
from parlay.types.params import SamplingParams

_STATS_SECONDS = 0.1  # between two snapshots while the engine is busy


def describe_engine(engine: Engine) -> EngineReady:
    """Return an engine's description."""
    return EngineReady(
        engine.numerics_id,
        engine.max_model_len,
        engine.vocab_size,
        str(engine.codec.path),
        engine.methods,
        engine.sampling_defaults,
        engine.memory,
    )


class EngineServer:
    """Serves one front with an engine."""

    def __init__(self, engine: Engine, transport: Transport) -> None:
        """Use an engine that nothing else uses, and the transport through which the front is reached."""
        self._engine = engine
        self._transport = transport
        self._open: dict[int, _SentRequest] = {}  # by the front's key
        self._by_request: dict[int, _SentRequest] = {}
        self._news: dict[Request, _SentRequest] = {}  # what progressed and was not sent yet, in order
        self._failures: list[Failure] = []
        self._unsent: Outputs | None = None
        self._stats_due, self._stats_sent = True, 0.0
        self._forms = GrammarCompiler(engine.prepare, transport.wake)

    def run(self) -> None:
        """Serve until told to stop."""
        try:
            while self._take_commands():
                if self._engine.busy:
                    self._stats_due = True
                    for request in self._engine.step():
                        self._progressed(request)
                self._send_outputs()
        finally:
            self._forms.close()

    # ------------------------------------------------------------------------------------------------ commands

    def _take_commands(self) -> bool:
        """Carry out the commands that came in, waiting for one if there is nothing else to do; False to stop."""
        if not self._engine.busy:
            ranks = self._engine.ranks
            self._transport.wait(sending=self._unsent is not None, seconds=ranks.poll_interval)
            ranks.check_alive()
        for add, seconds, found in self._forms.take():
            if isinstance(found, Failure):
                self._failures.append(found)
            else:
                self._try_to_add(add, found, seconds)
        while (command := self._transport.receive()) is not None:
            if not self._carry_out(command):
                return False
        return True

    def _carry_out(self, command: Command) -> bool:
        self._stats_due = True
        if isinstance(command, Add):
            if "structured_outputs" in command.params:
                self._forms.submit(command)
            else:
                self._try_to_add(command)
        elif isinstance(command, Abort):
            self._forms.forget(command.key)
            self._abandon(command.key)
        else:
            return False
        return True

    def _try_to_add(self, add: Add, params: SamplingParams | None = None, seconds: float = 0.0) -> None:
        """Add a request that came `seconds` ago, or report why not."""
        try:
            self._add(add, SamplingParams(**add.params) if params is None else params, seconds)
        except Exception as error:
            self._failures.append(refused(error, add.key))

    def _add(self, add: Add, params: SamplingParams, seconds: float) -> None:
        timeout = None if add.timeout is None else max(0.0, add.timeout - seconds)
        requests = self._engine.add(add.prompt, params, priority=add.priority, tenant=add.tenant, timeout=timeout)
        sent = self._open[add.key] = _SentRequest(add, requests)
        self._by_request.update((request.request_id, sent) for request in requests)

    def _abandon(self, key: int) -> None:
        sent = self._open.get(key)
        if sent is not None:
            for request in sent.requests:
                self._engine.abort(request)
            self._forget(sent)

    def _forget(self, sent: "_SentRequest") -> None:
        del self._open[sent.key]
        for request in sent.requests:
            del self._by_request[request.request_id]
            self._news.pop(request, None)

    # ------------------------------------------------------------------------------------------------- reports

    def _progressed(self, request: Request) -> None:
        sent = self._by_request.get(request.request_id)
        if sent is None:  # another completion of the same prompt has failed
            return
        if request.error is not None:
            self._failures.append(Failure.of(request.error, "", sent.key))
            self._abandon(sent.key)
        elif not sent.final_only:
            self._news[request] = sent
        elif all(r.finish_reason is not None for r in sent.requests):
            self._news.update(dict.fromkeys(sent.returned(), sent))

    def _send_outputs(self) -> None:
        """Send what is new, unless the front is behind; later progress is then sent along with it."""
        if self._unsent is None:
            self._unsent = self._message()
        while self._unsent is not None:
            if not self._transport.send(self._unsent):
                return
            self._unsent = self._message()

    def _message(self) -> Outputs | None:
        busy, now = self._engine.busy, monotonic()
        stats = None
        if self._stats_due and (not busy or now - self._stats_sent >= _STATS_SECONDS):
            stats, self._stats_due, self._stats_sent = self._engine.snapshot(), False, now
        if not (self._news or self._failures or stats):
            return None
        deltas, prompts = [], []
        for request, sent in self._news.items():
            deltas.append(sent.delta(request))
            scores = sent.prompt_scores()
            if scores is not None:
                prompts.append(scores)
        message = Outputs(deltas, prompts, self._failures, stats)
        news, self._news, self._failures = self._news, {}, []
        for sent in dict.fromkeys(news.values()):
            if sent.finished:
                self._forget(sent)
        return message


class _SentRequest:
    """What the front has been sent of a request so far.

    Attributes:
        key: the front's key for it.
        requests: its completions, as many as are sampled.
        final_only: whether only the last output is sent; always where the best of several completions are wanted.
    """

    def __init__(self, add: Add, requests: Sequence[Request]) -> None:
        self.key = add.key
        self.requests = requests
        params = requests[0].params
        self.final_only = add.final_only or params.candidates > params.n
        self._tokens = dict.fromkeys(requests, 0)
        self._text = dict.fromkeys(requests, 0)
        self._rejected = dict.fromkeys(requests, 0)
        self._scores_due = params.prompt_logprobs is not None
        self._index = {request: index for index, request in enumerate(requests)}

    @property
    def finished(self) -> bool:
        """Whether all its completions have."""
        return all(request.finish_reason is not None for request in self.requests)

    def returned(self) -> list[Request]:
        """Return those completions that its user gets, all finished, and number them so."""
        chosen = best(self.requests)
        self._index = {request: index for index, request in enumerate(chosen)}
        return chosen

    def delta(self, request: Request) -> Delta:
        """Return what is new of one completion, which then counts as sent."""
        known, text = self._tokens[request], text_since(request, self._text[request])
        self._tokens[request] = len(request.tokens) - len(request.prompt_tokens)
        self._text[request] += len(text)
        return Delta(
            self.key,
            self.requests[0].request_id,
            self._index[request],
            request.tokens[len(request.prompt_tokens) + known :],
            text,
            request.sources[known:],
            None if request.params.logprobs is None else plain_scores(request.logprobs[known:]),
            request.finish_reason,
            request.stop_reason,
            plain_metrics(metrics_of(request)),
            self._new_rejected(request) if request.params.return_rejected else None,
        )

    def _new_rejected(self, request: Request) -> list[Rejected]:
        known, self._rejected[request] = self._rejected[request], len(request.rejected)
        return request.rejected[known:]

    def prompt_scores(self) -> PromptScores | None:
        """Return the prompt's log-probabilities, once, when all are computed."""
        if not self._scores_due or self.requests[0].scoring_prompt:
            return None
        self._scores_due = False
        return PromptScores(self.key, plain_scores(self.requests[0].prompt_logprobs))
