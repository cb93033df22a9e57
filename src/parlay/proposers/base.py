"""What a proposer is.

A module of this folder is a proposer when it has
    Options     a frozen dataclass of its own keys in `speculative_config`;
    EMBEDDED    values of those keys under which it serves the embedded target, for the demo and the benchmarks, or
                None as long as there are no weights for that;
    Proposer    a subclass of `HostProposer` or `DeviceProposer`.
Nothing outside this folder asks for its name: what it needs it declares as data.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from parlay.checkpoints.hub import DEFAULT, Hub
from parlay.kernels.base import Kernels
from parlay.models.config import ModelConfig
from parlay.models.context import LayerCache
from parlay.models.select import Model
from parlay.sampling.live import Processors
from parlay.types.cache import CacheSpec
from parlay.types.draft import Draft
from parlay.types.plan import Proposal, Span, Verdict
from parlay.types.progress import OnRead, ignore


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """The target that a proposer guesses for, before any weights are read.

    `hub` is how a proposer's own model is fetched, at whatever revision its options say; `ranks` are those that share
    the target's layers.
    """

    config: ModelConfig
    dtype: torch.dtype
    max_model_len: int
    hub: Hub = DEFAULT
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a proposer that runs a model of its own may use.

    Attributes:
        kernels: the operations to run with.
        num_blocks, block_size: the pool that its cache layers share with the target's.
        max_rows: rows it may run in one step to catch up.
        target: the target, whose embedding and output layer a proposer may run: whole, whatever its ranks.
        cache: the target's cache layers, for those who borrow them.
        on_read: told of every tensor of the proposer's own that was read.
        laws: whether sampled requests' guesses are drawn with noise that nobody shares, each with a handle on the law
            that it was drawn from (`Draft.q`), and branch in ways that no guess decides.
        processors: of the requests that have one, which their guesses are shown to.
    """

    kernels: Kernels
    num_blocks: int
    block_size: int
    max_rows: int
    target: Model
    cache: tuple[LayerCache, ...]
    on_read: OnRead = ignore
    laws: bool = False
    processors: Processors = field(default_factory=dict)


class Proposer(ABC):
    """What every proposer has.

    Attributes:
        default_length: nodes a draft when the user does not say; 0 for a proposer that never drafts.
        cache: cache layers of its own on the pool's block ids, or None.
        weight_bytes: memory that weights of its own will take.
        borrows: whether it works in the target's cache layers, which then have its scratch slots behind the pool.
        runs_ends: whether it may run the target's embedding or output layer, which rank 0 then has whole.
    """

    default_length: int = 5
    cache: CacheSpec | None = None
    weight_bytes: int = 0
    borrows: bool = False
    runs_ends: bool = False

    @abstractmethod
    def __init__(self, options: Any, target: TargetInfo) -> None:
        """Check the options against the target, reading no weights.

        Raises:
            ConfigError: options that contradict each other or do not fit the target.
            ModelError: a model of its own cannot be found or does not fit.
        """

    def load(self, runtime: Runtime) -> None:  # noqa: B027 - most proposers have nothing to load
        """Read weights and allocate what `cache` declares."""


class HostProposer(Proposer):
    """Guesses from tokens alone, once a step on rank 0; its drafts travel in the plan.

    Attributes:
        learns: whether what it is shown of one request helps others; only then is it shown how a request ends.
        joins_auto: whether it is part of the method "auto", which is the default of every user.
    """

    learns: bool = False
    joins_auto: bool = False

    def admit(self, request_id: int, prompt: Sequence[int], tenant: str | None) -> None:
        """Take note of a request.

        What it teaches about others may be used for those of the same tenant only, and for none if that is None.
        """
        self.observe(request_id, prompt)

    @abstractmethod
    def observe(self, request_id: int, tokens: Sequence[int]) -> None:
        """Take note of a request's next known tokens: what was emitted and, by default, first its prompt."""

    @abstractmethod
    def propose(self, request_id: int, budget: int) -> Draft:
        """Return a draft of at most `budget` nodes that follows the request's last known token."""

    def branch(self, request_id: int, budget: int) -> Draft:
        """Return a tree of at most `budget` nodes, its best path first; a chain from who has but one idea."""
        return self.propose(request_id, budget)

    @abstractmethod
    def forget(self, request_id: int) -> None:
        """Drop everything kept for a request; unknown ones are ignored."""


class DeviceProposer(Proposer):
    """Guesses at the end of a step, on every rank, where the target's hidden states are.

    Attributes:
        taps: after how many of the target's layers it wants to see the residual stream, ascending; only of targets
            that lend it.
        pairs: whether its cache layers hold, in the slot of each token but the first, what follows from that token
            and the target's state before it. What they lack of a prefix the target runs once more for its states.
            While it is off it holds the states of the pairs to come, so that it costs next to nothing.
        deepest: most tokens that it guesses one after another; None for no limit of its own.
        choices: the branches of its drafts, as paths of ranks: `(0, 2)` is the third likeliest token after the
            likeliest one. A parent comes before its children. None for as many as pay, where drafts branch at all.
        draws: whether it can do what `Runtime.laws` asks for.
    """

    taps: tuple[int, ...] = ()
    pairs: bool = False
    deepest: int | None = None
    choices: tuple[tuple[int, ...], ...] | None = None
    draws: bool = False

    def forget(self, request_ids: Iterable[int]) -> None:
        """Drop the states that are held for some requests; unknown ones are ignored."""

    @abstractmethod
    def propose(
        self, spans: Sequence[Span], verdicts: Sequence[Verdict], hidden: Tensor, tapped: Tensor | None = None
    ) -> list[Proposal]:
        """Return one proposal a span.

        Spans with a budget of 0 get an empty proposal with unchanged state.

        Args:
            spans: the plan's spans.
            verdicts: what verification decided, in the same order.
            hidden: the target's hidden states after its final norm, `[rows, hidden]`, in the order of the spans'
                tokens and nodes; after those the rows of what spans run `again`.
            tapped: `[taps, rows, hidden]`, the residual stream after as many layers as each of `taps` says, likewise.

        Raises:
            SpanError: one span is to blame; the step is then lost to all, and is planned again without it.
        """


def draft_length(span: Span, verdict: Verdict) -> int:
    """Return how many tokens are worth drafting after what was just emitted; 0 if the request has ended."""
    return min(span.catch_up.budget, draft_room(span, verdict))


def draft_room(span: Span, verdict: Verdict) -> int:
    """Return how many tokens could be worth drafting, whatever the budget; 0 or less if the request is at its end."""
    if not span.sample or verdict.error is not None or verdict.tokens[-1] in span.stop_ids:
        return 0
    return span.remaining - len(verdict.tokens) - 1
