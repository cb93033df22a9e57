"""One request while it lives in the engine."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum

from parlay.config.verification import COUPLED
from parlay.drafting.state import DraftState
from parlay.errors import EngineFaultError, RequestError
from parlay.kv.table import BlockTable
from parlay.text.detokenizer import Detokenizer
from parlay.types.output import FinishReason, Rejected
from parlay.types.params import DrawParams, SamplingParams
from parlay.types.plan import TokenLogprobs
from parlay.types.processor import RowProcessor
from parlay.types.stats import DraftStats


@dataclass(slots=True, kw_only=True)
class RequestCounts:
    """What happened to a request so far; see `RequestMetrics` for the meanings."""

    draft_stats: DraftStats = field(default_factory=DraftStats)
    per_step: list[tuple[int, int]] = field(default_factory=list)
    steps: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    arrival: float = 0.0
    admitted: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0
    undrafted: Counter[str] = field(default_factory=Counter)
    verification: str = COUPLED


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """A request's identity, which never changes, and its progress, which the scheduler alone changes.

    Attributes:
        request_id: id that is unique in the engine.
        prompt_tokens: the prompt's token ids, at least one.
        params: how tokens are chosen.
        seed: 64-bit seed, already mixed with the completion's index.
        max_tokens: most tokens to emit, the context limit taken into account.
        stop_ids: token ids that end the output.
        processor: logits processor of the request; None where it needs none.
        drafting: state that drafting keeps for the request.
        priority: rank among waiting requests; lower runs first.
        tenant: owner of the request; requests of different tenants share no cache.
        deadline: time on the engine's clock after which the request is aborted; None for no limit.
        leader: the first of the completions of this prompt, if this is another of them.
        tokens: known tokens, prompt and output.
        computed: number of known tokens that the target's cache layers hold.
        rejected: draft tokens that were not accepted, if the request asks for them.
        prompt_logprobs: log-probabilities of the prompt's tokens from the second on, as far as computed.
        error: reason why it was aborted, if the request itself was the cause.
        draw: the part of `params` that travels in plans.
    """

    request_id: int
    prompt_tokens: tuple[int, ...]
    params: SamplingParams
    seed: int
    max_tokens: int
    stop_ids: frozenset[int]
    table: BlockTable
    processor: RowProcessor | None = None
    drafting: DraftState = field(default_factory=DraftState)
    priority: int = 0
    tenant: str = ""
    deadline: float | None = None
    leader: "Request | None" = None
    detokenizer: Detokenizer | None = None
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    sources: list[str] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    error: RequestError | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    counts: RequestCounts = field(default_factory=RequestCounts)
    draw: DrawParams = field(init=False)

    def __post_init__(self) -> None:
        self.draw = self.params.draw

    def interrupt(self, now: float) -> None:
        """End it, since an exception has come in the middle of a change to it."""
        self.error = EngineFaultError("this request's step was interrupted; send it again")
        self.finish_reason, self.counts.finished = "abort", now

    def ends(self, token: int, known: int) -> FinishReason | None:
        """Return why it ends with this token, the last of so many known ones, if it does."""
        if token in self.stop_ids:
            # End-of-sequence is the ordinary way to stop and needs no further reason.
            self.stop_reason = token if token in self.params.stop_token_ids else None
            return "stop"
        stop = self.detokenizer.append(token) if self.detokenizer else None
        if stop is not None:
            self.stop_reason = stop
            return "stop"
        return "length" if known - len(self.prompt_tokens) >= self.max_tokens else None

    @property
    def output_tokens(self) -> list[int]:
        """The emitted tokens."""
        return self.tokens[len(self.prompt_tokens) :]

    @property
    def remaining(self) -> int:
        """How many tokens may still be emitted."""
        return self.max_tokens - (len(self.tokens) - len(self.prompt_tokens))

    @property
    def gap(self) -> int:
        """Known tokens that the target has not computed."""
        return len(self.tokens) - self.computed

    @property
    def longest(self) -> int:
        """Most tokens that the request can have."""
        return len(self.prompt_tokens) + self.max_tokens

    @property
    def computing_prompt(self) -> bool:
        """Whether the request is unfinished and its prompt is not computed yet."""
        return self.finish_reason is None and self.computed < len(self.prompt_tokens)

    @property
    def scoring_prompt(self) -> bool:
        """Whether the log-probabilities of the prompt are asked for and not complete; one completion is enough."""
        wanted = self.params.prompt_logprobs is not None and self.leader is None
        return wanted and len(self.prompt_logprobs) < len(self.prompt_tokens) - 1


def best(requests: Sequence[Request]) -> list[Request]:
    """Return those completions of a prompt that its user gets, in order.

    Of more than `n` finished ones the `n` of the highest cumulative log-probability; among equals the earlier, and
    aborted ones after all others.
    """
    wanted = requests[0].params.n
    if len(requests) == wanted or any(r.finish_reason is None for r in requests):
        return list(requests[:wanted])
    return sorted(requests, key=lambda r: (r.finish_reason == "abort", -fsum(p.logprob for p in r.logprobs)))[:wanted]
