"""What drafting keeps of one request, what it reads of it, and what it answers to the scheduler."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, Protocol

from parlay.drafting.prediction import Follower
from parlay.kv.table import BlockTable
from parlay.sampling.grammar import Constraint
from parlay.types.draft import NO_DRAFT, Draft
from parlay.types.draft_tree import without_orphans
from parlay.types.params import SamplingParams
from parlay.types.plan import CatchUp, Proposal, ProposerState, Span, Verdict


class Why(StrEnum):
    """Why a request has no draft in a step, for the metrics."""

    NOT_ALLOWED = "not_allowed"  # by its parameters, by the batch's size, or since its last token comes next
    NO_PROPOSAL = "no_proposal"  # no proposer had one
    PAUSED = "paused"  # drafts have not paid lately, so most steps do without
    UNLIKELY = "unlikely"  # not likely enough to be worth a row
    EXPENSIVE = "expensive_rows"  # no node could be likely enough
    NO_CAPACITY = "no_room"  # others took the rows, or the cache is full


@dataclass(slots=True, eq=False)
class Candidate:
    """One of the drafts that were made for a request in a step.

    Attributes:
        draft: the draft, with the probabilities of `Belief`.
        chances: probability of each node that it and all nodes on its path to the root are accepted.
        hosted: the nodes that proposers on the host drafted.
        speculated: number of first nodes that are a device proposer's, in the order in which its layers hold them.
        pending: whether it is a device proposer's, with nothing added or removed.
        joined: whether it is a union of several.
    """

    draft: Draft
    chances: list[float]
    hosted: frozenset[int] = frozenset()
    speculated: int = 0
    pending: bool = False
    joined: bool = False

    def count_hosted(self, nodes: Iterable[int]) -> int:
        """Return how many of some nodes proposers on the host drafted."""
        return sum(node in self.hosted for node in nodes)


class HostSource(Protocol):
    """A source of drafts that needs nothing but a request's tokens."""

    @property
    def name(self) -> str: ...  # noqa: D102
    def ask(self, request: "DraftedRequest", budget: int, *, branch: bool) -> Draft: ...  # noqa: D102
    def forget(self, request: "DraftedRequest") -> None: ...  # noqa: D102


@dataclass(slots=True, kw_only=True, eq=False)
class DraftState:
    """What drafting keeps of a request; nothing else changes it.

    Attributes:
        constraint: grammar that permits tokens; None where all are permitted.
        prediction: how far the output has followed the one that its user predicts; None where there is none, or none
            that may be used, and when the request has ended.
        longest: most nodes that its parameters and the loaded proposers allow.
        hosts: the proposers on the host that may draft for it.
        device: whether a device proposer may draft for it.
        scout: whether a device proposer that is off follows it from its first token on, for a trial.
        layers: how far a device proposer's cache layers have come.
        pending: the device proposer's draft for the next step.
        hit: whether a node of its last draft was accepted.
        candidates: all drafts that were made for this step.
        best: the draft made of the candidates; None if there are none.
        taken: indices of its nodes that are worth verifying.
        chosen: these nodes as a draft.
        why: the reason why there is no draft, if there is none.
    """

    constraint: Constraint | None = None
    prediction: Follower | None = None
    longest: int = 0
    hosts: tuple[HostSource, ...] = ()
    device: bool = False
    scout: bool = False
    layers: ProposerState = field(default_factory=ProposerState)
    pending: Draft = NO_DRAFT
    hit: bool = False
    candidates: list[Candidate] = field(default_factory=list)
    best: Candidate | None = None
    taken: Sequence[int] = ()
    chosen: Draft = NO_DRAFT
    why: Why = Why.NOT_ALLOWED

    @property
    def predicted(self) -> bool:
        """Whether the next tokens are taken from the user's prediction, which has held so far."""
        return self.prediction is not None and self.prediction.follows

    def take(self, nodes: Sequence[int]) -> None:
        """Choose nodes of the best draft."""
        assert self.best is not None
        nodes = without_orphans(self.best.draft, nodes)
        self.taken, self.chosen = nodes, self.best.draft.select(nodes)
        self.why = Why.NO_CAPACITY if nodes else self.why
        if self.layers.speculated:
            # A device proposer's layers hold its nodes in order, up to the first that is left out.
            intact = min(sum(node == place for place, node in enumerate(nodes)), self.best.speculated)
            self.layers = replace(self.layers, speculated=min(self.layers.speculated, intact))

    def drop_speculated(self) -> None:
        """Record that none of a device proposer's nodes is verified: its layers write them again."""
        if self.layers.speculated:
            self.layers = replace(self.layers, speculated=0)

    def clear(self) -> None:
        """Forget the drafts of a step."""
        self.candidates, self.best, self.taken, self.chosen = [], None, (), NO_DRAFT


class DraftedRequest(Protocol):
    """What drafting reads of a request; see `parlay.engine.request.Request` for the meanings."""

    @property
    def request_id(self) -> int: ...  # noqa: D102
    @property
    def prompt_tokens(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def params(self) -> SamplingParams: ...  # noqa: D102
    @property
    def tenant(self) -> str: ...  # noqa: D102
    @property
    def tokens(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def output_tokens(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def computed(self) -> int: ...  # noqa: D102
    @property
    def gap(self) -> int: ...  # noqa: D102
    @property
    def remaining(self) -> int: ...  # noqa: D102
    @property
    def longest(self) -> int: ...  # noqa: D102
    @property
    def table(self) -> BlockTable: ...  # noqa: D102
    @property
    def drafting(self) -> DraftState: ...  # noqa: D102


class Rows(NamedTuple):
    """What a request runs in a step besides its draft.

    Attributes:
        known: number of tokens that the target has yet to compute.
        rerun: number of tokens that it runs once more for their states.
    """

    known: int
    rerun: int


class StepPart(NamedTuple):
    """Drafting's part in a step for one request: the nodes to verify, and a device proposer's input."""

    draft: Draft = NO_DRAFT
    catch_up: CatchUp = CatchUp()


PLAIN = StepPart()


@dataclass(slots=True)
class StepDrafts:
    """What drafting makes of a step, and has to remember of it until its result.

    Attributes:
        parts: part of each request, in the scheduler's order.
        forgotten: requests of which a device proposer is to drop all that it holds.
        emitting: number of requests that emit in it.
        fair: whether the geometric mean of requests' speeds counts, not the arithmetic one.
        plain: expected seconds of the step without drafts.
        active: whether any proposer on the host was asked, or had drafted before.
        drafted: whether any draft is verified in it.
        gained: sum over its requests of accepted nodes from host proposers, or of log(1 + those) if `fair`.
        timed: whether its time is to be learnt.
        asking: seconds of asking host proposers, which are no part of its cost.
        length: most nodes in a row that a device proposer makes at its end.
        proposer_idle: whether a device proposer has nothing to do, see `Plan`.
    """

    parts: Sequence[StepPart] = ()
    forgotten: tuple[int, ...] = ()
    emitting: int = 1
    fair: bool = False
    plain: float = 0.0
    active: bool = False
    drafted: bool = False
    gained: float = 0.0
    timed: bool = True
    asking: float = 0.0
    length: int = 0
    proposer_idle: bool = False


class Outcome(NamedTuple):
    """The result of one request's part in a step.

    Attributes:
        request: the request itself.
        span: the request's part of the plan.
        verdict: the target's verdict.
        proposal: a device proposer's proposal.
        ended: whether the request has ended.
    """

    request: DraftedRequest
    span: Span
    verdict: Verdict
    proposal: Proposal
    ended: bool
