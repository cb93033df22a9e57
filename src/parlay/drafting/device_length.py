"""How long the drafts of a device proposer are, which are made a step ahead of their verification."""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from parlay.drafting.belief import Belief
from parlay.drafting.budget import ExplorationBudget
from parlay.drafting.cost import AfterDraftTable, StepCost, StepTable
from parlay.drafting.draft_cost import DraftCost
from parlay.drafting.goodput import best_draft

# Seconds of a step without drafts below which drafts are chains of one proposer: joining several drafts and judging
# every branch takes a tenth of a millisecond.
SHORT = 0.005
WARM = 8  # short steps without drafts until the target's weights are in the processor's caches again
_COLD = 0.2  # share by which a short step takes longer right behind drafts of a device proposer, which evict weights
# Factors in goodput for which a device proposer begins, and continues: larger and smaller ones did worse in the
# replays. What it has drafted is verified if it gains anything.
_BEGIN, _GO_ON = 1.04, 1.01
_BRANCHES = 0.05  # weight of a draft in the mean number of nodes per level
_OTHERS = 0.1  # weight of a step in the mean gain of host proposers
_RUN = 6.0  # drafts of a device proposer that are saved up for: with fewer a trial tells little
_LOST = 0.1  # least share of a trial's seconds that is counted as lost, however likely it is to be accepted
_EPOCH = 8  # steps after which a device proposer's length is chosen anew, though nothing else has changed


class DeviceLength:
    """How long a device proposer's next drafts are: these are made before anything can say what they are worth.

    Attributes:
        cost: times of its drafts.
        trial: whether the next drafts are not expected to pay: then a few requests are enough.
    """

    def __init__(self, name: str, steps: StepCost, belief: Belief, cost: DraftCost | None = None) -> None:
        """Start from what is known of `name`'s acceptance and times."""
        self.cost = cost or DraftCost()
        self.trial = False
        self._run = 0.0  # seconds that a run of trials may lose, as last computed
        self._steps, self.belief = steps, belief.of(name)
        self._budget, self._running = ExplorationBudget(), False
        self._scouting = ExplorationBudget()  # budget for prompts that are processed for a trial
        self._pays = False
        self._answers = dict[tuple[int, int, int], tuple[int, float, int, list[float]]]()
        self._age = 0
        self._branching = 1.0  # verified tokens for each level of a draft
        self._others = 1.0  # goodput with host proposers' drafts alone, relative to that without drafts
        self._colder: StepCost | None = None  # cost of short steps that verify right behind its drafts

    def best(self, most: int, count: int, requests: int, keys: int) -> tuple[int, float, int, list[float]]:
        """Return the best length of drafts, and what it is based on.

        Args:
            most: most tokens of a draft.
            count: number of requests to draft for.
            requests: number of requests that emit in the step that verifies the drafts.
            keys: number of keys that these requests read.

        Returns:
            The length; the share of the time that it saves; the best length if acceptance is a standard error
            higher; seconds of drafting by length.
        """
        found = self._answers.get((most, count, requests))
        if found is None:
            times = self.cost.by_length(most, count)
            nodes = [self._branching * length for length in range(most + 1)]
            margin = self._others * (_GO_ON if self._pays else _BEGIN)
            step = self._table(requests), times, keys * self._steps.key, margin, nodes
            length, saving = best_draft(self.belief.levels(most), count, requests, *step)
            hoped = length or best_draft(self.belief.levels(most, 1.0), count, requests, *step)[0]
            found = self._answers[most, count, requests] = length, saving, hoped, times
        return found

    def choose(
        self,
        most: int,
        count: int,
        requests: int,
        keys: int,
        trying: int = 1,
        behind: int = 0,
        rerun: float = 0.0,
        passed: int = 1,
        *,
        ready: bool = True,
    ) -> int:
        """Return how many tokens to draft at the end of this step for the next.

        Args:
            most: most tokens of a draft.
            count: number of requests to draft for.
            requests: number of requests that emit.
            keys: number of keys that these requests read.
            trying: number of requests that a trial is for: those for which the proposer has least to catch up.
            behind: number of tokens that it has to catch up for these.
            rerun: seconds that the target takes to run some of those tokens once more.
            passed: number of steps since the last call.
            ready: whether any request is worth catching up for; if not, only trials are made.
        """
        steps, budget = self._steps, self._budget
        plain = steps.table[min(requests, len(steps.table) - 1)] + keys * steps.key
        budget.save(plain * passed)
        self._scouting.save(plain * passed)
        self.trial = False
        if most < 1 or count < 1:
            return 0
        if not self.cost.timed:
            self.trial = True
            return 1
        self._age += 1
        if self._age >= _EPOCH or not self._pays:
            self._answers, self._age = {}, 0
        best, _, hoped, times = self.best(most, count, requests, keys)
        best *= ready
        if self._pays != (best > 0):
            self._pays, self._answers = best > 0, {}
        further = min(max(best + 1, hoped), most)
        if best:
            price = times[further] - times[best]
            budget.hold(max(2 * price, self._run), 0.0)
            if further > best and budget.balance >= price:
                budget.add(-price)
                return further
            return best
        self.trial = True
        self.belief.decay()
        if not self.belief.enough:
            return further
        worth = trying * sum(accumulate(self.belief.levels(further), mul)) * plain / requests
        cost, table = self.cost.by_length(further, trying)[further], self._table(requests)
        rows = table[min(requests + trying * further, len(table) - 1)] + keys * steps.key - plain
        price = max(cost + rows - worth, _LOST * cost) + (WARM * _COLD * plain / _RUN if plain < SHORT else 0.0)
        return further if self._buys(price, self.cost.following(behind) + rerun) else 0

    def _table(self, requests: int) -> StepTable:
        """Return seconds of steps by rows: of so many without drafts, and of more right behind drafts."""
        return (
            self._steps.table
            if self._colder is None
            else AfterDraftTable(self._steps.table, self._colder.table, requests)
        )

    def observe_hosts(self, gain: float) -> None:
        """Learn what the proposers on the host gain alone: the factor in goodput of a step."""
        self._others += _OTHERS * (gain - self._others)

    def verified(self, rows: int, keys: int, seconds: float) -> None:
        """Learn the time of a short step right behind drafts: these evict weights, and take Python's time too."""
        self._colder = self._colder or self._steps.derive()
        self._colder.observe(rows, keys, seconds)

    def _buys(self, price: float, catching_up: float) -> bool:
        """Whether a trial may be made; then it is paid.

        A run of them begins when all are saved for, as the first may have to catch up, and ends with the savings.
        """
        budget = self._budget
        budget.hold(catching_up + (_RUN + 1) * price, 0.0)
        first, self._run = not self._run, catching_up + _RUN * price
        if first:
            budget.fill()
        self._running = self.affords or (self._running and budget.balance >= catching_up + price)
        if self._running:
            budget.add(-catching_up - price)
        return self._running

    def scouts(self, seconds: float) -> bool:
        """Whether the proposer may process a prompt for a trial, which takes so long; then that is paid."""
        budget = self._scouting
        budget.hold(max(budget.capacity, seconds), 0.0)
        affords = self.affords and budget.balance >= seconds
        if affords:
            budget.add(-seconds)
        return affords

    @property
    def affords(self) -> bool:
        """Whether enough is saved for a run of trials, as far as its cost is known."""
        return self._budget.balance >= self._run

    def judged(self, levels: Sequence[bool], length: int, nodes: int) -> None:
        """Learn at which depths 1, 2, ... a draft was accepted, as far as it was judged.

        Args:
            levels: whether each depth was accepted, see `parlay.types.draft_tree.levels`.
            length: number of nodes on the draft's longest path.
            nodes: number of its nodes that were verified.
        """
        if nodes:
            self._branching += _BRANCHES * (max(nodes / length, 1.0) - self._branching)
        self.belief.reach(levels)

    def timed(self, length: int, count: int, seconds: float, behind: int, *, typical: bool) -> None:
        """Learn the time of drafts for so many requests, after processing tokens that it was `behind`."""
        seconds /= self._steps.pace
        if behind and (self.cost.timed or not count):
            own, table = self.cost.by_length(length, count)[length] if count else 0.0, self._steps.table
            if typical:  # the proposer is smaller than the target
                self.cost.observe_following(behind, seconds - own, table[min(behind, len(table) - 1)])
        elif not behind:
            self.cost.observe(length, count, seconds, typical=typical)

    @property
    def gain(self) -> float:
        """Expected tokens that the longest draft adds."""
        return sum(accumulate(self.belief.levels(8), mul), 0.0)
