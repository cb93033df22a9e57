"""Drafting's answer to what the scheduler grants."""

from dataclasses import dataclass

from parlay.types.draft import NO_DRAFT, Draft


@dataclass(frozen=True, slots=True)
class Offer:
    """Drafting's part in a step for one request.

    Attributes:
        draft: the nodes to verify.
        budget: most tokens in a row of the draft that a device proposer may make at the end of the step.
        width: as in `CatchUp`, like `nodes`.
        follow: whether its cache layers are to keep up.
        hold: whether it is to hold the states of this step, because its layers do not keep up.
        slots: cache slots behind the known tokens that all this may write to.
        states: computed tokens to run once more, for states that the proposer lacks.
    """

    draft: Draft = NO_DRAFT
    budget: int = 0
    follow: bool = False
    hold: bool = False
    slots: int = 0
    states: int = 0
    width: int = 1
    nodes: int = 0


NOTHING = Offer()  # plain decoding; a proposer's gap grows
HOLD = Offer(hold=True)  # the same, but that states are kept
