"""Chooses, before every step, how much of the drafts is verified and how long a device proposer's next ones may be.

It holds what the choice is made from: what steps cost, what drafting costs, and how often nodes of each depth are
accepted. Guesses that are left out still teach: a step that emits what they said would have accepted them.
"""

from collections.abc import Callable, Mapping, Sequence

from parlay.drafting.cost import StepCost
from parlay.drafting.goodput import best_length, choose

_BEGIN = 1.03  # factor in goodput for which drafting is begun; what runs goes on as long as it gains anything
_RATE = 0.02  # share of what is learnt of acceptance from a node
_SOONER, _LATER = 0.3, 0.1  # share of what is learnt of drafting's own time, where it took less and where more
_IDLE, _SELDOM = (
    64,
    1024,
)  # steps without a draft after which the best ones are verified all the same, at first, at last
_NODES = (1, 2, 4, 8, 16)  # of drafts whose price is looked at
_HOPELESS = 0.95  # tokens: no guess is that likely to be right
_AT_LEAST = 0.7  # of plain decoding's goodput that they must promise then
_PRIOR = 0.6  # acceptance of a node, before anything is known
_KEPT = 256  # steps after which costs are kept for the first time; then whenever there are twice as many
_LONG = 60.0  # seconds that no draft takes
_PROBES = 256  # most steps between two attempts of a device proposer that does not pay


class Controller:
    """What the lengths of one engine's drafts are decided by.

    Attributes:
        cost: of steps.
        price: tokens that a plain step emits in the time that one more row takes, at least.
    """

    def __init__(
        self,
        cost: StepCost,
        length: int,
        *,
        fair: bool = False,
        drafting: Mapping[int, float] | None = None,
        keep: Callable[[StepCost, Mapping[int, float]], None] | None = None,
    ) -> None:
        """Begin with nothing learnt but `cost`.

        Args:
            cost: of steps.
            length: most nodes of a device proposer's drafts.
            fair: see `goodput.choose`.
            drafting: seconds of a device proposer's drafts by their length, as far as they are known.
            keep: is given now and then what is known of steps and of drafting, for the next run.
        """
        self.cost = cost
        self.price = 0.0
        self._fair = fair
        self._chances = [_PRIOR] * length  # at each depth, given that the parent is accepted
        self._drafting = dict(drafting or {})  # seconds of drafting so many tokens, for all requests of a step
        self._keep = keep
        self._priced, self._slopes = cost.table, dict[int, float]()  # of that table, by rows
        self._steps = 0
        self._tried: set[int] = set()  # lengths of which the first draft was seen, which records its passes
        self._verifies = self._drafts = False
        self._idle, self._patience = 0, _IDLE  # steps with nothing worth while; after how many to try all the same
        self._wait = self._waited = 0

    def asks(self, requests: int, rows: int, keys: int) -> bool:
        """Find the price of a row, and return whether any guess could be worth it.

        Args:
            requests: that emit in this step.
            rows: that it runs without drafts.
            keys: that these read.
        """
        table, more = self.cost.table, keys * self.cost.key
        self.price = 0.0
        if not requests or rows + 1 >= len(table):
            return False
        if table is not self._priced:
            self._priced, self._slopes = table, {}
        slope = self._slopes.get(rows)
        if slope is None:
            ends = [rows + nodes for nodes in _NODES if rows + nodes < len(table)]
            slope = self._slopes[rows] = min((table[end] - table[rows]) / (end - rows) for end in ends)
        self.price = slope * requests / (table[rows] + more)
        if self.price < _HOPELESS:
            return True
        self._idle += 1
        return self._idle >= self._patience

    def choose(self, chances: Sequence[Sequence[float]], requests: int, rows: int, keys: int) -> list[list[int]]:
        """Return of each draft the nodes that are worth verifying, ascending.

        Args:
            chances: of each draft the probabilities that its nodes are accepted, see `goodput.survivals`.
            requests: that emit in this step.
            rows: that it runs without drafts.
            keys: that these read.
        """
        margin = 1.0 if self._verifies else _BEGIN
        trying = self._idle >= self._patience and bool(chances)  # what rows cost is learnt by running some
        if trying:
            margin, self._idle, self._patience = _AT_LEAST, -1, min(2 * self._patience, _SELDOM)
        chosen = choose(chances, requests, rows, self.cost.table, keys * self.cost.key, margin, fair=self._fair)
        if chances:
            self._verifies = any(chosen) and not trying
            self._idle = 0 if self._verifies else self._idle + 1
            if self._verifies:
                self._patience = _IDLE
        return chosen

    @property
    def device_gain(self) -> float:
        """Tokens that a device proposer's longest draft is expected to add."""
        gain, survival = 0.0, 1.0
        for chance in self._chances:
            survival *= chance
            gain += survival
        return gain

    def next_length(self, most: int, count: int, requests: int, keys: int) -> int:
        """Return how many tokens a device proposer should draft at the end of this step for the next.

        Args:
            most: tokens.
            count: requests that it would draft for.
            requests: that will emit.
            keys: that these read.
        """
        if count < 1 or most < 1:
            return 0
        if not any(self._drafting):
            return min(most, 2)  # to learn what it costs
        drafting = [seconds / self.cost.pace for seconds in self._by_length(most)]
        margin = 1.0 if self._drafts else _BEGIN
        table, more = self.cost.table, keys * self.cost.key
        length = best_length(self._chances, count, requests, table, drafting, more, margin)
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
        self._steps += 1
        if self._keep is not None and self._steps >= _KEPT and self._steps.bit_count() == 1:
            self._keep(self.cost, self._drafting)
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
