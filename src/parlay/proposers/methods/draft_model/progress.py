"""How far a draft model has come with a request's text, and what it lacks to draft."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from parlay.proposers.draft_head import Start
from parlay.types.draft import Draft
from parlay.types.plan import NO_STATES, Proposal, ProposerState, Span, StateUse, Verdict


class Gap(ABC):
    """What the draft model's layers lack of one request's known text.

    Attributes:
        tokens: tokens that the layers lack.
        begin: place of the first of these.
        blocks: block table of the request.
    """

    tokens: Sequence[int]
    begin: int
    blocks: Sequence[int]

    def states(self, count: int) -> StateUse:
        """Return what recurrent layers use and store, if they run so many of the tokens."""
        return NO_STATES

    @abstractmethod
    def state(self, count: int) -> ProposerState:
        """Return how far the layers have come once they have run `count` of the tokens."""

    def close(self, count: int) -> None:  # noqa: B027 - where the state says all there is to say
        """Record that they have run so many."""

    @abstractmethod
    def proposal(self, start: Start, draft: Draft) -> Proposal:
        """Return what is proposed where a draft was made, all tokens having been run."""


Gaps = Callable[[Span, Verdict, int], Gap]


def ran(start: Start, draft: Draft) -> int:
    """Return how many of a draft's leading nodes the layers hold: all but a chain's last.

    A tree is run in scratch slots.
    """
    return max(len(draft) - 1, 0) if start.width == 1 else 0


@dataclass(frozen=True, slots=True)
class SameVocabulary(Gap):
    """A gap where target and draft model have the same tokens, whose places are the target's too.

    Attributes:
        planned: states that recurrent layers use and store; empty where there are none.
    """

    tokens: Sequence[int]
    begin: int
    blocks: Sequence[int]
    planned: StateUse = NO_STATES

    @classmethod
    def of(cls, span: Span, verdict: Verdict, length: int) -> "SameVocabulary":
        """Return the gap of a request, nodes of the last draft that were accepted being no part of it."""
        state = span.catch_up.state
        valid = state.computed + _confirmed(state.speculated, verdict.path)
        tokens = (span.catch_up.unseen + verdict.tokens)[valid - state.computed :]
        return cls(tokens, valid, span.blocks, span.catch_up.states)

    def states(self, count: int) -> StateUse:  # noqa: D102
        planned = self.planned
        if not planned.stores:
            return NO_STATES
        earlier = tuple(store for store in planned.stores if store[0] < count)
        return replace(planned, stores=(*earlier, (count, last_slot(planned))))

    def state(self, count: int) -> ProposerState:  # noqa: D102
        return ProposerState(self.begin + count)

    def proposal(self, start: Start, draft: Draft) -> Proposal:  # noqa: D102
        ahead = 0 if self.planned.stores else ran(start, draft)  # no state is kept of a node
        return Proposal(draft, ProposerState(start.position, ahead))


def last_slot(states: StateUse) -> int:
    """Return the slot of the last state that is stored."""
    return max(states.stores)[1]


def _confirmed(ahead: int, path: tuple[int, ...]) -> int:
    """How many of the chain's first `ahead` nodes were accepted; their keys and values stay valid."""
    count = 0
    while count < min(ahead, len(path)) and path[count] == count:
        count += 1
    return count
