"""What is returned to the user."""

import warnings
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from parlay.errors import RequestError

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log-probability of one token at one position; see the engine's `logprobs_mode`."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """What speculation did for a request, and when things happened (seconds on a monotonic clock).

    Attributes:
        drafts: steps that verified at least one node.
        drafted: nodes verified.
        accepted: nodes accepted.
        accepted_per_position: how often a node at depth 1, 2, ... was accepted.
        steps: target steps that emitted tokens.
        emitted: tokens emitted.
        preemptions: how often the request lost its blocks and was computed again.
        cached_tokens: prompt tokens found in the prefix cache on admission.
        arrival, admitted, first_token, finished: clock readings; 0 while not reached.
        undrafted: reasons why steps had no draft, and how often each.
        verification: rule that decided which nodes are accepted; see `SpeculativeConfig`.
        per_step: once it has finished, nodes verified and accepted in each of the steps that verified some.
    """

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: tuple[int, ...] = ()
    steps: int = 0
    emitted: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    arrival: float = 0.0
    admitted: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0
    undrafted: tuple[tuple[str, int], ...] = ()
    verification: str = "coupled"
    per_step: tuple[tuple[int, int], ...] = ()

    @property
    def tokens_per_draft(self) -> float:
        """Tokens that a step with a draft emitted on average; 1 without any draft.

        The bonus is included, which a last step has not where an accepted node ends the request. Over HTTP it has
        vLLM's name, `mean_acceptance_length`. `acceptance_length` counts steps without a draft too.
        """
        unfollowed = 0 < self.emitted < self.steps + self.accepted
        return 1 + (self.accepted - unfollowed) / self.drafts if self.drafts else 1.0

    @property
    def mean_acceptance_length(self) -> float:
        """An older name of `tokens_per_draft`."""
        warnings.warn("mean_acceptance_length is called tokens_per_draft", DeprecationWarning, stacklevel=2)
        return self.tokens_per_draft

    @property
    def lossless(self) -> bool:
        """Whether the output has the distribution of plain decoding."""
        return self.verification != "typical"

    @property
    def acceptance_length(self) -> float:
        """Emitted tokens per target step, with a draft or without, the bonus included; 0 before the first step."""
        return self.emitted / self.steps if self.steps else 0.0


class Rejected(NamedTuple):
    """A node that was not accepted.

    Attributes:
        at: number of the completion's tokens before it: those of earlier steps, and those its step accepted.
            The token at this index is then the target's own choice, unless the completion ended without one.
        token_id: the node's token.
        source: name of its proposer.
    """

    at: int
    token_id: int
    source: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One completion of a prompt.

    Attributes:
        index: index among the `n` completions.
        text: decoded text, cut at a stop string.
        token_ids: emitted tokens, the one that ended the output included.
        sources: who supplied each token: a proposer's name, `"grammar"` where no other was permitted, or `"target"`.
        logprobs: one mapping of token id to log-probability per position, when asked for.
        finish_reason: `stop`, `length` or `abort`; None while running.
        stop_reason: the stop string or token id that ended the output; None for end-of-sequence and length.
        metrics: metrics of this completion alone.
        rejected: nodes that were not accepted, in order, when asked for.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    sources: tuple[str, ...]
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    rejected: tuple[Rejected, ...] | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the emitted tokens' log-probabilities, when asked for."""
        if self.logprobs is None:
            return None
        return sum(p[t].logprob for p, t in zip(self.logprobs, self.token_ids, strict=True))


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """Everything about one prompt. Either `outputs` has its completions, or `error` says why there are none.

    `request_id` is the one that was given or a number as text, and None for a prompt that was refused or failed.
    `prompt_logprobs` has, when asked for, one mapping of token id to log-probability for each token of the prompt,
    and None for the first, which has no predecessor.

    Where `deltas` were asked for, completions hold what is new since the previous output, except for their metrics.
    `replica` is the number of the server's engine that computes it, from 0 on.
    """

    request_id: str | None
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool = True
    error: RequestError | None = None
    prompt_logprobs: tuple[dict[int, Logprob] | None, ...] | None = None
    replica: int = 0

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache."""
        return self.metrics.cached_tokens

    @property
    def metrics(self) -> RequestMetrics:
        """The first completion's metrics; each completion has its own."""
        return self.outputs[0].metrics if self.outputs else RequestMetrics()
