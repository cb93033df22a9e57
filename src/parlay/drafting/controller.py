"""Chooses, before every step, how much of the drafts is verified and how long a device proposer's next ones may be.

It holds what the choice is made from: what steps cost, what drafting costs, and how often nodes of each depth are
accepted. Guesses that are left out still teach: a step that emits what they said would have accepted them.
"""

from collections.abc import Sequence

from parlay.drafting.ahead import Ahead
from parlay.drafting.cost import StepCost
from parlay.drafting.goodput import choose, survivals
from parlay.types.draft import Draft

_BEGIN = 1.03  # factor in goodput for which drafting is begun; what runs goes on as long as it gains anything
_IDLE = 64  # steps with candidates after which the best ones are verified all the same
_AT_LEAST = 0.7  # of plain decoding's goodput that they must promise then


class Controller:
    """What the lengths of one engine's drafts are decided by.

    Attributes:
        cost: of steps.
    """

    def __init__(self, cost: StepCost, length: int) -> None:
        """Begin with nothing learnt but `cost`; drafts have at most `length` nodes."""
        self.cost = cost
        self._ahead = Ahead(length)
        self._verifies = False
        self._idle = 0  # steps with candidates of which none was worth while

    def choose(self, drafts: Sequence[Draft], requests: int, rows: int, keys: int) -> list[list[int]]:
        """Return of each draft the nodes that are worth verifying, ascending.

        Args:
            drafts: with calibrated probabilities.
            requests: that emit in this step.
            rows: that it runs without drafts.
            keys: that these read.
        """
        chances = [survivals(draft) for draft in drafts]
        margin = 1.0 if self._verifies else _BEGIN
        if self._idle >= _IDLE and any(chances):  # what rows cost is learnt by running some
            margin, self._idle = _AT_LEAST, -1
        table = self.cost.table
        # What prompts take is spent with drafts or without, and must not make a row of a draft look cheap beside it.
        prompts = table[min(rows, len(table) - 1)] - table[min(requests, rows, len(table) - 1)]
        chosen = choose(chances, requests, rows, table, keys * self.cost.key - prompts, margin)
        if any(chances):
            self._verifies = any(chosen) and margin != _AT_LEAST
            self._idle = 0 if self._verifies else self._idle + 1
        return chosen

    def next_length(self, most: int, requests: int, rows: int, keys: int) -> int:
        """Return how many tokens a device proposer should draft at the end of this step for the next.

        Args:
            most: tokens.
            requests: that will draft.
            rows: of a step without drafts.
            keys: that these read.
        """
        cost = self.cost
        return self._ahead.next_length(most, requests, rows, cost.table, keys * cost.key, cost.pace, _BEGIN)

    def judged(self, levels: Sequence[bool]) -> None:
        """Learn whether a device proposer's draft was right at depths 1, 2, ..., as far as it was judged."""
        self._ahead.judged(levels)

    def timed(self, rows: int, keys: int, seconds: float, lengths: Sequence[int], drafting: float) -> None:
        """Learn what a step cost.

        Args:
            rows: that it ran.
            keys: that these read.
            seconds: of the whole step but for a device proposer's part.
            lengths: of the drafts that a device proposer then made; empty where it did more than draft.
            drafting: seconds of these.
        """
        self.cost.observe(rows, keys, seconds)
        self._ahead.timed(lengths, drafting)
