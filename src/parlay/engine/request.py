"""One request while it lives in the engine."""

from collections import Counter
from dataclasses import dataclass, field

from parlay.engine.tokenizer import Detokenizer
from parlay.kv.table import BlockTable
from parlay.types.draft import NO_DRAFT, Draft
from parlay.types.output import FinishReason
from parlay.types.params import SamplingParams, SpeculationOverride
from parlay.types.plan import ProposerState, TokenLogprobs


@dataclass(slots=True, kw_only=True)
class Counts:
    """What happened to a request so far; see `RequestMetrics` for the meanings."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    per_position: Counter[int] = field(default_factory=Counter)
    steps: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    arrival: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """A request's identity, which never changes, and its progress, which the scheduler alone changes.

    Attributes:
        request_id: unique in the engine.
        prompt_tokens: at least one.
        params: how tokens are chosen.
        seed: 64-bit, already mixed with the completion's index.
        max_tokens: most tokens to emit, the context limit taken into account.
        stop_ids: token ids that end the output.
        priority: lower runs first among the waiting.
        tenant: requests of different tenants share no cache.
        deadline: on the engine's clock; past it the request is aborted. None for no limit.
        leader: the first of the completions of this prompt, if this is another of them.
        tokens: known tokens, prompt and output.
        computed: how many of them the target's cache layers hold.
        proposer: how far a device proposer's cache layers have come.
        draft: nodes to verify in the next step.
    """

    request_id: int
    prompt_tokens: tuple[int, ...]
    params: SamplingParams
    seed: int
    max_tokens: int
    stop_ids: frozenset[int]
    table: BlockTable
    priority: int = 0
    tenant: str = ""
    deadline: float | None = None
    leader: "Request | None" = None
    detokenizer: Detokenizer | None = None
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    proposer: ProposerState = field(default_factory=ProposerState)
    draft: Draft = NO_DRAFT
    sources: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    counts: Counts = field(default_factory=Counts)

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
        """Tokens that the request can ever have."""
        return len(self.prompt_tokens) + self.max_tokens

    @property
    def computing_prompt(self) -> bool:
        """Whether the request is unfinished and its prompt is not computed yet."""
        return self.finish_reason is None and self.computed < len(self.prompt_tokens)

    def draft_limit(self, engine_limit: int) -> int:
        """Return how many nodes a draft of this request may have at most; 0 decodes plainly."""
        wish = self.params.speculative
        if wish is None:
            return engine_limit
        assert isinstance(wish, SpeculationOverride)
        if not wish.enabled or wish.method == "none":
            return 0
        return min(engine_limit, wish.num_speculative_tokens or engine_limit)
