"""What drafting keeps of one request, and what it reads of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from parlay.acceptance.tree import in_order
from parlay.drafting.hosts import NEVER, Host, Turn
from parlay.drafting.prediction import Follower
from parlay.kv.table import BlockTable
from parlay.sampling.grammar import Constraint
from parlay.types.draft import NO_DRAFT, ROOT, Draft
from parlay.types.params import SamplingParams
from parlay.types.plan import CatchUp, ProposerState


class Why(StrEnum):
    """Why a request has no draft in a step, for the metrics."""

    NOT_ALLOWED = "not_allowed"  # by its parameters, by the batch's size, or since its last token comes next
    NO_GUESS = "no_guess"  # nobody had one
    NOT_ASKED = "not_asked"  # drafts have not paid lately, so most steps do without
    UNLIKELY = "unlikely"  # not likely enough to be worth a row
    EXPENSIVE = "expensive_rows"  # no node could be likely enough
    NO_ROOM = "no_room"  # others took the rows, or the cache is full


@dataclass(slots=True, eq=False)
class Candidate:
    """One of the drafts that were made of a request in a step.

    Attributes:
        draft: with calibrated probabilities.
        chances: of each node that it and all nodes on its path to the root are accepted, as far as its source is to
            be trusted.
        turn: the request's state with the host proposer that drafted; None if none did.
        speculated: how many of the first nodes are a device proposer's, in the order in which its layers hold them.
        pending: whether it is a device proposer's, with nothing added or removed.
        trust: what its chances were multiplied with.
        joined: of a union of several, the nodes that host proposers guessed.
    """

    draft: Draft
    chances: list[float]
    turn: Turn | None = None
    speculated: int = 0
    pending: bool = False
    trust: float = 1.0
    joined: frozenset[int] | None = None

    def guessed(self, nodes: Iterable[int]) -> int:
        """Return how many of some nodes host proposers guessed."""
        if self.joined is not None:
            return sum(node in self.joined for node in nodes)
        return sum(1 for _ in nodes) if self.turn is not None else 0


@dataclass(slots=True, kw_only=True, eq=False)
class DraftState:
    """What drafting keeps of a request; nothing else changes it.

    Attributes:
        constraint: knows which tokens are permitted; None where all are.
        prediction: how far the output has followed the one that its user predicts; None where there is none, or none
            that may be used, and when the request has ended.
        longest: most nodes that its parameters and the loaded proposers allow.
        hosts: those that may draft for it.
        turns: its state with each of them, once it runs.
        wake: the first step in which one of them is to be asked.
        lucky: whether a node of the last step's draft was accepted.
        device: whether a device proposer may draft for it.
        holding: the input of a head of pairs that holds the states of all computed tokens which its layers have not
            seen; None if it does not.
        scout: whether it is to hold them though drafts are far from paying.
        layers: how far a device proposer's cache layers have come.
        pending: the device proposer's draft for the next step.
        candidates: all drafts that were made for this step.
        best: one tree of them all; None if there are none.
        taken: those of its nodes that are worth verifying.
        chosen: these as a draft.
        why: the reason why there is no draft, if there is none.
    """

    constraint: Constraint | None = None
    prediction: Follower | None = None
    longest: int = 0
    hosts: tuple[Host, ...] = ()
    turns: tuple[tuple[Host, Turn], ...] = ()
    wake: int = 0
    lucky: bool = False
    device: bool = False
    holding: CatchUp | None = None
    scout: bool = False
    layers: ProposerState = field(default_factory=ProposerState)
    pending: Draft = NO_DRAFT
    candidates: list[Candidate] = field(default_factory=list)
    best: Candidate | None = None
    taken: Sequence[int] = ()
    chosen: Draft = NO_DRAFT
    why: Why = Why.NOT_ALLOWED

    @property
    def predicted(self) -> bool:
        """Whether the next tokens are taken from the user's prediction, which has held so far."""
        return self.prediction is not None and self.prediction.follows

    @property
    def restless(self) -> bool:
        """Whether a step must consider it: there is a draft already, or a prediction or grammar that may give one."""
        known = self.pending.tokens or self.layers.speculated or self.candidates
        return bool(self.lucky or known) or self.prediction is not None or self.constraint is not None

    @property
    def own_nodes(self) -> int:
        """How many of the nodes taken no host proposer guessed."""
        return len(self.taken) - self.best.guessed(self.taken) if self.best is not None else 0

    def verified(self, judged: Sequence[tuple[int, bool]], n: int) -> list[tuple[float, bool]]:
        """Return the probability of each of the first `n` nodes taken that were judged, and whether it was right."""
        assert self.best is not None
        probs, taken = self.best.draft.probs, self.taken[:n]
        return [(probs[node], right) for node, right in judged if node in taken] if probs is not None else []

    def take(self, nodes: Sequence[int], step: int) -> None:
        """Choose nodes of the best draft in a step."""
        assert self.best is not None
        nodes = in_order(self.best.draft, nodes)
        self.taken, self.chosen = nodes, self.best.draft.select(nodes)
        self.why = Why.NO_ROOM if nodes else self.why
        tree, joined = self.best.draft, self.best.joined is not None
        begun = {tree.tokens[node] for node in nodes if tree.parents[node] == ROOT}
        for candidate in self.candidates:
            if candidate.turn is not None:
                if (joined or candidate is self.best) and candidate.draft.tokens[0] in begun:
                    candidate.turn.used()
                else:
                    candidate.turn.unused(step)
        if self.layers.speculated:
            # A device proposer's layers hold its nodes in order, up to the first that is left out.
            intact = min(sum(node == place for place, node in enumerate(nodes)), self.best.speculated)
            self.layers = replace(self.layers, speculated=min(self.layers.speculated, intact))

    def rest(self) -> None:
        """Compute when a host proposer is to be asked again."""
        self.wake = min((turn.wake for _, turn in self.turns), default=NEVER)

    def clear(self) -> None:
        """Forget the drafts of a step."""
        self.candidates, self.best, self.taken, self.chosen = [], None, (), NO_DRAFT


class Drafted(Protocol):
    """What drafting reads of a request; see `parlay.engine.request.Request` for the meanings."""

    @property
    def request_id(self) -> int: ...  # noqa: D102
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
    def remaining(self) -> int: ...  # noqa: D102
    @property
    def table(self) -> BlockTable: ...  # noqa: D102
    @property
    def drafting(self) -> DraftState: ...  # noqa: D102
