"""Chooses, before every step, how much of the drafts is verified and how long a device proposer's next ones may be.

It holds what the choice is made from: what steps cost, what drafting costs, and how often nodes of each depth are
accepted. Guesses that are left out still teach: a step that emits what they said would have accepted them.
"""

from collections.abc import Sequence

from parlay.drafting.cost import StepCost
from parlay.drafting.goodput import best_length, choose, survivals
from parlay.types.draft import Draft

_BEGIN = 1.03  # factor in goodput for which drafting is begun; what runs goes on as long as it gains anything
_RATE = 0.02  # share of what is learnt of acceptance from a node
_SOONER, _LATER = 0.3, 0.1  # share of what is learnt of drafting's own time, where it took less and where more
_IDLE = 64  # steps with candidates after which the best ones are verified all the same
_AT_LEAST = 0.7  # of plain decoding's goodput that they must promise then
_PRIOR = 0.6  # acceptance of a node, before anything is known
_LONG = 60.0  # seconds that no draft takes
_PROBES = 256  # most steps between two attempts of a device proposer that does not pay


class Controller:
    """What the lengths of one engine's drafts are decided by.

    Attributes:
        cost: of steps.
    """

    def __init__(self, cost: StepCost, length: int) -> None:
        """Begin with nothing learnt but `cost`; drafts have at most `length` nodes."""
        self.cost = cost
        self._chances = [_PRIOR] * length  # at each depth, given that the parent is accepted
        self._drafting: dict[int, float] = {}  # seconds of drafting so many tokens, for all requests of a step
        self._tried: set[int] = set()  # lengths of which the first draft was seen, which records its passes
        self._verifies = self._drafts = False
        self._idle = 0  # steps with candidates of which none was worth while
        self._wait = self._waited = 0

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
        chosen = choose(chances, requests, rows, self.cost.table, keys * self.cost.key, margin)
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
        if not any(self._drafting):
            return min(most, 2)  # to learn what it costs
        drafting = [seconds / self.cost.pace for seconds in self._by_length(most)]
        margin = 1.0 if self._drafts else _BEGIN
        length = best_length(self._chances, requests, rows, self.cost.table, drafting, keys * self.cost.key, margin)
        self._drafts = length > 0
        if length:
            self._wait = self._waited = 0
            return length
        self._waited += 1
        if self._waited >= 1 << self._wait:
            self._waited, self._wait = 0, min(self._wait + 1, _PROBES.bit_length() - 1)
            return min(most, 2)
        return 0

    def judged(self, levels: Sequence[bool]) -> None:
        """Learn whether a device proposer's draft was right at depths 1, 2, ..., as far as it was judged."""
        for level, right in enumerate(levels[: len(self._chances)]):
            self._chances[level] += _RATE * (right - self._chances[level])

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
        if not lengths or not 0 <= drafting < _LONG:
            return
        longest = max(lengths)
        if longest not in self._tried:
            self._tried.add(longest)
            return
        before = self._drafting.get(longest, drafting)
        # What it takes at least is the cost; a neighbour or a new recording may add to it.
        rate = _SOONER if drafting < before else _LATER
        self._drafting[longest] = before + rate * (min(drafting, 2 * before) - before)

    def _by_length(self, most: int) -> list[float]:
        """Return seconds of drafting 0 to `most` tokens: linear between what is known, in proportion beyond."""
        times = {0: 0.0, **self._drafting}
        known = sorted(times)
        found = []
        for length in range(most + 1):
            above = next((k for k in known if k >= length), None)
            below = max(k for k in known if k <= length)
            if above is None:
                found.append(times[below] * length / max(below, 1))
            else:
                share = (length - below) / max(above - below, 1)
                found.append(times[below] * (1 - share) + times[above] * share)
        return found
