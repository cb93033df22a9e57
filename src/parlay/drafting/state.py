"""What drafting keeps of one request, and what it reads of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from parlay.drafting.prediction import Follower
from parlay.kv.table import BlockTable
from parlay.sampling.grammar import Constraint
from parlay.types.draft import NO_DRAFT, Draft
from parlay.types.params import SamplingParams
from parlay.types.plan import ProposerState


@dataclass(slots=True, kw_only=True, eq=False)
class DraftState:
    """What drafting keeps of a request; nobody else changes it.

    Attributes:
        constraint: knows which guesses are permitted; None where everything is.
        prediction: how far the output has come along the one that its user predicts; None where there is none, or
            none that may be used, and when the request has ended.
        layers: how far a device proposer's cache layers have come.
        pending: what the device proposer has guessed for the next step.
        guessed: where lengths are chosen, all that was guessed for this step.
        chosen: and what of it is worth verifying.
        asked: whether a host proposer was asked in this step.
        refused: how many drafts in a row were not.
        rest: for how many steps a host proposer is not asked, since that was so.
    """

    constraint: Constraint | None = None
    prediction: Follower | None = None
    layers: ProposerState = field(default_factory=ProposerState)
    pending: Draft = NO_DRAFT
    guessed: Draft = NO_DRAFT
    chosen: Draft = NO_DRAFT
    asked: bool = False
    refused: int = 0
    rest: int = 0

    @property
    def predicted(self) -> bool:
        """Whether the next tokens are taken from the user's prediction, which has held so far."""
        return self.prediction is not None and self.prediction.follows


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
