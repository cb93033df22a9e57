"""The interface of a proposer.

A module of this folder is a proposer when it has
    Options     a frozen dataclass of its own keys in `speculative_config`;
    Proposer    a subclass of `HostProposer` or `DeviceProposer`;
    EMBEDDED    if it has a checkpoint for the embedded target: values of those keys that name it.
Nothing outside this folder refers to a proposer by name: what it needs it declares as data.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parlay.checkpoints.hub import DEFAULT, Hub
from parlay.kernels.base import Kernels, StateMetadata
from parlay.kernels.uploads import Uploads
from parlay.models.config import ModelConfig
from parlay.models.context import CacheLayers
from parlay.models.select import CausalModel
from parlay.parallel.group import ALONE, Group
from parlay.proposers.device_verdict import DeviceVerdict
from parlay.runner.orders import Broadcast, no_broadcast
from parlay.sampling.bound_processor import Processors
from parlay.types.cache import NO_CAPACITY, CacheSpec, StateCapacity
from parlay.types.draft import Draft
from parlay.types.plan import Proposal, Span, Verdict
from parlay.types.progress import OnRead, ignore


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """The target that a proposer drafts for, before any weights are read.

    `hub` fetches a proposer's own model, at the revision that its options name; `ranks` is the number of ranks that
    share the target's layers, `stages` of those that have some of the layers each. `tokenizer` is where the target's
    lies, which further ranks need not know.
    """

    config: ModelConfig
    dtype: torch.dtype
    max_model_len: int
    hub: Hub = DEFAULT
    ranks: int = 1
    stages: int = 1
    tokenizer: Path | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """A proposer whose layers several ranks share: the first ones of the target's.

    Attributes:
        method: name of its method.
        options: options of the method; a rank on another machine finds the checkpoint by these.
        ranks: number of ranks that share it.
        path: path at which rank 0 has found its checkpoint, if it has one.
    """

    method: str
    options: Mapping[str, Any]
    ranks: int
    path: str = ""

    @property
    def local(self) -> "Share":
        """The same for ranks of the machine of rank 0, which need no options to find the checkpoint."""
        return replace(self, options={**self.options, "model": self.path, "revision": None}) if self.path else self


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a proposer that runs a model may use.

    Attributes:
        kernels: the operations to run with.
        uploads: writer of host values into the tensors that kernels read.
        num_blocks, block_size: size of the block pool that its cache layers share with the target's.
        max_rows: most rows it may run in one step to catch up.
        target: the target, whose embedding and output layer a proposer may run; whole even if ranks share its layers.
        cache: the target's cache layers, for proposers that read or borrow them.
        room: capacity for states of the target's recurrent layers.
        on_read: function called with every tensor of the proposer that was read.
        keep_distributions: whether sampled requests' nodes are drawn with private noise, each with a handle on the
            distribution that it was drawn from (`Draft.q`), and whether a node takes part is decided without looking
            at its token.
        processors: logits processors by request id; they are applied to drafts too.
        group: the ranks that share the proposer's own layers, if it declares a `share`. Those but the first run its
            shared passes alone, and have of the target what is their share.
        broadcast: function that sends the group's other ranks their calls.
    """

    kernels: Kernels
    num_blocks: int
    block_size: int
    max_rows: int
    target: CausalModel
    cache: CacheLayers
    room: StateCapacity = NO_CAPACITY
    on_read: OnRead = ignore
    keep_distributions: bool = False
    processors: Processors = field(default_factory=dict)
    group: Group = ALONE
    broadcast: Broadcast = no_broadcast
    uploads: Uploads = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "uploads", Uploads(self.kernels))


class Proposer(ABC):
    """What every proposer has.

    Attributes:
        default_length: number of nodes of a draft by default; 0 for a proposer that never drafts.
        cache: spec of its cache layers on the pool's block ids, or None.
        weight_bytes: memory that its weights will take, those of all ranks together.
        uses_target_cache: whether it drafts in the target's cache, which then has scratch slots behind the pool.
        uses_embed_or_lm_head: whether it may run the target's embedding or output layer, which rank 0 then has whole.
        share: part that further ranks load to share its own layers, if they do.
    """

    default_length: int = 5
    cache: CacheSpec | None = None
    weight_bytes: int = 0
    uses_target_cache: bool = False
    uses_embed_or_lm_head: bool = False
    share: Share | None = None

    @classmethod
    def comes_with(cls, target: TargetInfo) -> bool:
        """Whether a target brings along what the proposer needs, which is then part of the method "auto".

        Raises:
            ModelError: it has that in part.
        """
        return False

    @abstractmethod
    def __init__(self, options: Any, target: TargetInfo) -> None:
        """Check the options against the target, reading no weights.

        Raises:
            ConfigError: options that contradict each other or do not fit the target.
            ModelError: its model cannot be found or does not fit.
        """

    def bytes_on(self, machines: int) -> int:
        """Return the memory that its weights take on each machine, if its ranks are on so many."""
        return self.weight_bytes // (min(self.share.ranks, machines) if self.share else 1)

    def load(self, runtime: Runtime) -> None:  # noqa: B027 - most proposers have nothing to load
        """Read weights and allocate what `cache` declares."""


class HostProposer(Proposer):
    """Drafts from tokens alone, once per step on rank 0; its drafts travel in the plan.

    Attributes:
        learns: whether the tokens of one request help others; only then is it given the end of a request.
        joins_auto: whether it is part of the method "auto", which is the default of every user.
    """

    learns: bool = False
    joins_auto: bool = False

    def admit(self, request_id: int, prompt: Sequence[int], tenant: str | None) -> None:
        """Register a request.

        What is learnt from it may be used for requests of the same tenant only, and for no other if that is None.
        """
        self.observe(request_id, prompt)

    @abstractmethod
    def observe(self, request_id: int, tokens: Sequence[int]) -> None:
        """Record a request's next known tokens: what was emitted and, by default, first its prompt."""

    @abstractmethod
    def propose(self, request_id: int, budget: int) -> Draft:
        """Return a draft of at most `budget` nodes that follows the request's last known token."""

    def branch(self, request_id: int, budget: int) -> Draft:
        """Return a tree of at most `budget` nodes, its best path first; by default the chain of `propose`."""
        return self.propose(request_id, budget)

    @abstractmethod
    def forget(self, request_id: int) -> None:
        """Drop everything kept for a request; unknown requests are ignored."""

    def reset(self) -> None:
        """Drop everything that was learnt since it was made, which may be in any state."""


class PlacedDrafts(ABC):
    """Drafts that were planned before a step's verdict is known.

    Attributes:
        arrays: arrays of the host that they read.
    """

    @property
    @abstractmethod
    def arrays(self) -> Sequence[Tensor]: ...  # noqa: D102


class DeviceProposer(Proposer):
    """Drafts at the end of a step, on every rank, where the target's hidden states are.

    It keeps nothing of a request between steps but its cache layers, and what `forget` drops.

    Attributes:
        taps: counts of the target's layers after which it reads the residual stream, ascending; only of targets that
            expose it.
        pairs: whether its cache layers hold, in the slot of each token but the first, what follows from that token
            and the target's state before it. For what they lack of a prefix the target runs once more for its states.
        reruns: whether the target can run tokens once more for states that a proposer of pairs lacks. Otherwise its
            layers start over where they lack any: its nodes then see no pair before.
        recurrent: whether it has recurrent layers of its own. They keep a state of each request, in the slots that
            its `CatchUp` names.
        max_depth: most nodes on a path that it can draft; None for no limit.
        max_draft_tokens: most draft tokens that a user may ask for; None for any number.
        choices: the branches of its drafts, as paths of ranks: `(0, 2)` is the third likeliest token after the
            likeliest one. A parent comes before its children. None for as many as pay, where drafts branch at all.
        choices_option: the option by which a user gives `choices`.
        draws: whether it supports `Runtime.keep_distributions`.
        in_one_pass: whether it drafts all tokens from masks in one pass, as `parallel_drafting` asks for.
        own_blocks: whether its cache layers have blocks of their own, so that other requests find nothing of it in
            the target's.
        keeps_states: whether `save_states` keeps anything.
        follows_verdict: whether its drafts can follow from a verdict that the host does not know yet.
        filler: token id that its layers run where the draft before has fewer accepted nodes than it could have.
        broadcast: function that sends the other ranks their calls; see `parlay.proposers.shared_passes`.
    """

    taps: tuple[int, ...] = ()
    pairs: bool = False
    reruns: bool = True
    recurrent: bool = False
    max_depth: int | None = None
    max_draft_tokens: int | None = None
    choices: tuple[tuple[int, ...], ...] | None = None
    choices_option: str = "choices"
    draws: bool = False
    in_one_pass: bool = False
    own_blocks: bool = False
    keeps_states: bool = False
    follows_verdict: bool = False
    filler: int = 0
    broadcast: Broadcast = staticmethod(no_broadcast)

    def save_states(self, states: StateMetadata, hidden: Tensor, tapped: Tensor | None = None) -> None:
        """Keep what later pairs need of the rows of a step, whether or not it drafts at the end of it.

        Args:
            states: states that rows of recurrent layers continue from, where kernels read them; only targets with
                such layers ask for this.
            hidden, tapped: the target's states of all rows, see `propose`.
        """

    def forget(self, requests: Sequence[int] | None) -> None:
        """Drop what it keeps of requests that have ended, of all if None; unknown ones are ignored."""

    @abstractmethod
    def propose(
        self, spans: Sequence[Span], verdicts: Sequence[Verdict], hidden: Tensor, tapped: Tensor | None = None
    ) -> list[Proposal]:
        """Return one proposal for each span.

        Spans with a budget of 0 get an empty proposal with unchanged state.

        Args:
            spans: the plan's spans.
            verdicts: results of verification, in the same order.
            hidden: the target's hidden states after its final norm, `[rows, hidden]`, in the order of the spans'
                tokens and nodes, followed by the rows of each `catch_up.rerun`.
            tapped: `[taps, rows, hidden]`, the residual stream after the layers that `taps` names, in the same order.

        Raises:
            SpanError: one span is the cause; the step is then lost for all and planned again without it.
        """

    def place_drafts(self, spans: Sequence[Span], block_size: int) -> PlacedDrafts | None:
        """Plan drafts that follow from a verdict on these spans, whatever it is; None where that is not possible."""
        return None

    def launch(
        self,
        placed: PlacedDrafts,
        arrays: Sequence[Tensor],
        verdict: DeviceVerdict,
        hidden: Tensor,
        tapped: Tensor | None = None,
    ) -> list[Tensor]:
        """Draft what was placed, by operations where kernels read alone; return what `conclude` needs of it.

        Args:
            placed: what was placed, for the same spans.
            arrays: its arrays, where kernels read them.
            verdict: the verdict on the spans.
            hidden, tapped: the target's states, see `propose`.
        """
        raise NotImplementedError

    def conclude(
        self, placed: PlacedDrafts, spans: Sequence[Span], verdicts: Sequence[Verdict], made: Sequence[Tensor]
    ) -> list[Proposal]:
        """Return the proposals as `propose` does, from what `launch` has returned, now on the host."""
        raise NotImplementedError


def draft_length(span: Span, verdict: Verdict) -> int:
    """Return how many tokens are worth drafting after what was just emitted; 0 if the request has ended."""
    return min(span.catch_up.budget, draft_room(span, verdict))


def draft_room(span: Span, verdict: Verdict) -> int:
    """Return how many tokens could be worth drafting, budget aside; 0 or less if the request is at its end."""
    if not span.sample or verdict.error is not None or verdict.tokens[-1] in span.stop_ids:
        return 0
    return span.remaining - len(verdict.tokens) - 1
