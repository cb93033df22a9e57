"""Chooses, before every step, how much of the drafts is verified and how long a device proposer's next ones may be.

It holds what the choice is made from: what steps cost, what drafting costs, and how often nodes of each depth are
accepted. Guesses that are left out still teach: a step that emits what they said would have accepted them.
"""

from collections.abc import Callable, Mapping, Sequence

from parlay.drafting.cost import StepCost
from parlay.drafting.device_lengths import DeviceLengths, Step
from parlay.drafting.goodput import choose
from parlay.drafting.looks import Looks

# Factors in goodput for which drafting is begun, and gone on with: what is expected to gain less is as likely to
# lose, since neither costs nor probabilities are known so exactly.
_BEGIN, _GO_ON = 1.06, 1.04
_AHEAD = 1.03  # and for which a device proposer begins; what it has drafted is worth verifying if it gains anything
# Steps without a draft after which the best one is verified all the same, at first and at last: what rows cost is
# learnt by running some.
_IDLE, _SELDOM = 64, 1024
_RARELY = 128  # steps with drafts after which at last one goes without, see `Looks`
# A device proposer's weights push the target's out of the processor's caches: the first step after its drafts takes
# longer than plain steps do one after another, and does not count. So it pauses for several, more seldom.
_PAUSE, _PAUSES = 4, 512
_SURPRISE = 0.85  # of the seconds expected of such a step: if it took less, they are as frequent as at first again
_AT_LEAST = 0.7  # of plain decoding's goodput that it must promise then
_NODES = (1, 2, 4, 8, 16)  # of drafts whose price is looked at
_HOPELESS = 0.95  # tokens: no guess is that likely to be right
# Seconds of a step without drafts below which drafts are chains, one a request: to join what several guess, and to
# judge every branch, takes a tenth of a millisecond.
_SHORT = 0.005
_KEPT = 256  # steps after which costs are kept for the first time; then whenever there are twice as many


class Controller:
    """What the lengths of one engine's drafts are decided by.

    Attributes:
        cost: of steps.
        price: tokens that a plain step emits in the time that one more row takes, at least.
        looks: whether this step is run for what it tells of costs.
        plain: seconds of a step without drafts, but for prompts, as of the last one that had room for any.
    """

    def __init__(
        self,
        cost: StepCost,
        length: int,
        *,
        fair: bool = False,
        drafting: Mapping[int, float] | None = None,
        chances: Sequence[float] = (),
        keep: Callable[[StepCost, DeviceLengths], None] | None = None,
    ) -> None:
        """Begin with nothing learnt but `cost`.

        Args:
            cost: of steps.
            length: most nodes of a device proposer's drafts.
            fair: see `goodput.choose`; otherwise choices are fair only while no request waits.
            drafting: seconds of a device proposer's drafts by their length, as far as they are known.
            chances: how often its guess at depth 1, 2, ... was right, likewise.
            keep: is given now and then what is known of steps and of drafting, for the next run.
        """
        self.cost = cost
        self.price = self.plain = 0.0
        self._fair = fair
        self._lengths = DeviceLengths(length, drafting, chances)
        self._keep = keep
        self._steps = self._rows = self._emitting = 0
        self._priced, self._slopes = cost.table, dict[int, float]()  # of that table, by rows
        self._verifies = self._drafted = False
        self.looks = False
        self._looks, self._pauses = Looks(1, _RARELY), Looks(1 + _PAUSE, _PAUSES)
        self._next = 0  # nodes that a device proposer was asked for last
        self._idle, self._patience = 0, _IDLE  # steps with nothing worth while; after how many to try all the same

    def asks(self, requests: int, rows: int, keys: int) -> bool:
        """Find the price of a row, and return whether any guess could be worth it.

        Args:
            requests: that emit in this step.
            rows: that it runs without drafts.
            keys: that these read.
        """
        table = self.cost.table
        self.price = 0.0
        self._rows, self._emitting = rows, requests
        self._looks.step(drafted=self._drafted)
        self._pauses.step(drafted=self._next > 0)
        self._drafted, self.looks = False, 0 < self._pauses.left < _PAUSE
        if not requests or rows + 1 >= len(table):
            return False
        if table is not self._priced:
            self._priced, self._slopes = table, {}
        slope = self._slopes.get(rows)
        if slope is None:
            ends = [rows + nodes for nodes in _NODES if rows + nodes < len(table)]
            slope = self._slopes[rows] = min((table[end] - table[rows]) / (end - rows) for end in ends)
        self.plain = table[min(requests, rows)] + keys * self.cost.key
        self.price = slope * requests / self.plain
        if self.price < _HOPELESS:
            return True
        self._idle += 1
        return self._idle >= self._patience

    @property
    def pauses(self) -> bool:
        """Whether a device proposer goes without drafts for what that tells of costs."""
        return self._pauses.left > 0

    @property
    def branches(self) -> bool:
        """Whether the step takes long enough for drafts with branches to be worth making."""
        return self.plain >= _SHORT

    def fair(self, *, waiting: bool) -> bool:
        """Whether requests count by the geometric mean of their speeds; `waiting`: whether others queue."""
        return self._fair or not waiting

    def extra(self, rows: int, nodes: int) -> float:
        """Return the seconds that `nodes` rows add to a step of so many rows without them."""
        table = self.cost.table
        return table[min(rows + nodes, len(table) - 1)] - table[min(rows, len(table) - 1)]

    def choose(
        self,
        chances: Sequence[Sequence[float]],
        requests: int,
        rows: int,
        keys: int,
        *,
        waiting: bool = False,
        from_device: bool = False,
    ) -> list[list[int]]:
        """Return of each draft the nodes that are worth verifying, ascending.

        While requests wait for a place, who ends early makes room for one, and what counts are the tokens of all
        together. While none waits, a request's long draft helps nobody else, and its rows slow down all: then each
        counts by its share.

        Args:
            chances: of each draft the probabilities that its nodes are accepted, see `goodput.survivals`.
            requests: that emit in this step.
            rows: that it runs without drafts.
            keys: that these read.
            waiting: whether further requests wait for a place.
            from_device: whether a device proposer made some of the drafts, the price of which is paid.
        """
        if not from_device and self._looks.begin():
            self.looks = True
            return [[] for _ in chances]
        margin = 1.0 if from_device else _GO_ON if self._verifies else _BEGIN
        trying = self._idle >= self._patience and bool(chances)
        if trying:
            margin, self._idle, self._patience = _AT_LEAST, -1, min(2 * self._patience, _SELDOM)
            self.looks = True
        table, last = self.cost.table, len(self.cost.table) - 1
        # What prompts take is spent with drafts or without, and must not make a row of a draft look cheap beside it.
        prompts = table[min(rows, last)] - table[min(requests, rows, last)]
        more = keys * self.cost.key - prompts
        chosen = choose(chances, requests, rows, table, more, margin, fair=self.fair(waiting=waiting))
        if chances:
            self._verifies = any(chosen) and not trying
            self._idle = 0 if self._verifies else self._idle + 1
            if self._verifies:
                self._patience = _IDLE
        self._drafted = any(chosen)
        return chosen

    def lost(self, rows: int, behind: int) -> float:
        """Return the tokens that plain steps emit in the time that it takes a device proposer to catch up.

        Args:
            rows: that the target runs once more for it.
            behind: tokens that it follows.
        """
        if not self.plain:
            return 0.0
        seconds = self.extra(self._rows, rows) + self._lengths.following(behind) / self.cost.pace
        return seconds * self._emitting / self.plain

    def saving(self, most: int, count: int, requests: int, keys: int) -> float:
        """Return the share of the time that a device proposer's drafts are expected to save once it has caught up.

        Args:
            most: tokens of each.
            count: requests that it would draft for.
            requests: that will emit.
            keys: that these read.
        """
        return self._lengths.saving(most, count, self._step(requests, keys))

    def _step(self, requests: int, keys: int) -> Step:
        return Step(requests, self.cost.table, keys * self.cost.key, self.cost.pace, _AHEAD)

    @property
    def device_gain(self) -> float:
        """Tokens that a device proposer's longest draft is expected to add."""
        return self._lengths.gain

    @property
    def hopeful(self) -> bool:
        """Whether a device proposer's guesses may pay, by what is known of them."""
        return self._lengths.hopeful

    @property
    def affords(self) -> bool:
        """Whether a device proposer may be tried though its guesses do not seem to pay."""
        return self._lengths.tries.affordable

    @property
    def trying(self) -> bool:
        """Whether a device proposer's next drafts are a try, for which one request is enough."""
        return self._lengths.trying

    def next_length(
        self,
        most: int,
        count: int,
        requests: int,
        keys: int,
        near: int = 1,
        behind: int = 0,
        again: int = 0,
        passed: int = 1,
        *,
        ready: bool = True,
    ) -> int:
        """Return how many tokens a device proposer should draft at the end of this step for the next.

        Args:
            most: tokens.
            count: requests that it would draft for.
            requests: that will emit.
            keys: that these read.
            near: of these, requests of which it has to follow the fewest tokens first, with which it may be tried.
            behind: tokens that these are.
            again: tokens of them that the target has to run once more before that.
            passed: steps since this was asked last.
            ready: see `DeviceLengths.next_length`.
        """
        if self._pauses.left > 1 or self._pauses.begin():
            self._next = 0
            return 0
        cost, last = self.cost, len(self.cost.table) - 1
        first, end = min(requests, last), min(requests + again, last)
        rerun = cost.table[end] - cost.table[first] if again else 0.0
        step = self._step(requests, keys)
        self._next = self._lengths.next_length(most, count, step, near, behind, rerun, passed, ready=ready)
        return self._next

    def judged(self, levels: Sequence[bool], length: int, nodes: int) -> None:
        """Learn whether a device proposer's draft was right at depths 1, 2, ..., as far as it was judged.

        Args:
            levels: see `parlay.verify.tree.levels`.
            length: of the draft, along its longest path.
            nodes: of it that were verified; 0 if none were.
        """
        self._lengths.judged(levels, length, nodes)

    def timed(
        self,
        rows: int,
        keys: int,
        seconds: float,
        lengths: Sequence[int],
        drafting: float,
        behind: int = 0,
        settled: bool = True,
    ) -> None:
        """Learn what a step cost.

        Args:
            rows: that it ran.
            keys: that these read.
            seconds: of the whole step but for a device proposer's part.
            lengths: of the drafts that a device proposer then made; empty where it did more than draft.
            drafting: seconds of these.
            behind: tokens that it had to follow first.
            settled: whether `seconds` say what such steps will take; if not, they do not count.
        """
        if settled and self.cost.observe(rows, keys, seconds) < _SURPRISE and self.looks:
            self._looks.surprise()
            self._pauses.surprise()
            self._patience = _IDLE
        self._lengths.timed(lengths, drafting, behind, settled)
        self._steps += 1
        if self._keep is not None and self._steps >= _KEPT and self._steps.bit_count() == 1:
            self._keep(self.cost, self._lengths)
