"""No speculation: every step verifies nothing and emits the target's own token."""

from collections.abc import Sequence
from dataclasses import dataclass

from parlay.proposers.base import HostProposer, TargetInfo
from parlay.types.draft import NO_DRAFT, Draft


@dataclass(frozen=True, slots=True)
class Options:
    """No options."""


class Proposer(HostProposer):
    """Drafts nothing."""

    default_length = 0

    def __init__(self, options: Options, target: TargetInfo) -> None:
        pass

    def observe(self, request_id: int, tokens: Sequence[int]) -> None:
        """Keep nothing."""

    def propose(self, request_id: int, budget: int) -> Draft:
        """Return the empty draft."""
        return NO_DRAFT

    def forget(self, request_id: int) -> None:
        """Do nothing."""
