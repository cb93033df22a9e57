"""What drafting asks of the scheduler, and what it makes of what it is granted."""

from dataclasses import dataclass

from parlay.types.draft import NO_DRAFT, Draft


@dataclass(frozen=True, slots=True)
class Want:
    """What a request could use in a step besides its known tokens.

    Attributes:
        nodes: most nodes of a draft; the target always adds a token of its own.
        states: computed tokens to run once more, for states that the proposer lacks.
    """

    nodes: int = 0
    states: int = 0


@dataclass(frozen=True, slots=True)
class Offer:
    """What drafting makes of what a request was granted.

    Attributes:
        draft: the nodes to verify.
        budget: most tokens in a row of the draft that a device proposer may make at the end of the step.
        width: as in `CatchUp`, like `nodes`.
        follow: whether its cache layers are to keep up.
        hold: whether it is to hold the states of this step, since they do not.
        slots: cache slots behind the known tokens that all this may write to.
        states: as in `Want`.
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
