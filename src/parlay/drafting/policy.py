"""What drafts are worth: whether host proposers are asked, how long a device proposer drafts, what is verified.

All of it follows from the measured cost of steps and of drafting (`cost`), how often draft tokens are accepted
(`belief`), and for what is not expected to pay, the time that may be lost (`budget`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from parlay.drafting.belief import DEPTHS, Belief
from parlay.drafting.budget import Budget
from parlay.drafting.cost import DraftCost, StepCost
from parlay.drafting.goodput import best_draft, choose

# Factor in goodput for which drafting is begun: a smaller expected gain may as well be a loss, since neither costs
# nor probabilities are known that exactly. What a device proposer has drafted is verified if it gains anything.
MARGIN = 1.05
_HOPELESS = 0.95  # tokens: no draft token is that likely to be accepted
# Seconds of a step without drafts below which drafts are chains of one proposer: joining several drafts and judging
# every branch takes a tenth of a millisecond.
_SHORT = 0.005
# Plain steps are run to learn their cost: after so many steps with drafts at first, and at last. A device proposer's
# weights evict the target's from the processor's caches, so it pauses for several steps, the first of which does not
# count, less often.
_BUSY, _SELDOM, _PAUSE = 8, 128, 4
_SURPRISE = 0.85  # of the expected seconds of such a step: if it took less, they are as frequent as at first again
_ASKS = 64  # of host proposers for one request that are made on credit: before, nothing is known
_STEPS = 16  # plain steps: what is saved for asking, or owed
_NEWS = 0.1  # weight of a new time in a moving average
_RUN = 6  # drafts of a device proposer that are saved up for: with fewer a trial tells little
EPOCH = 8  # steps after which a device proposer's length is chosen anew, and in which one plain step is timed
_KEPT = 64  # steps after which costs are saved for the first time; then after each doubling


@dataclass(slots=True)
class Measuring:
    """When an engine that drafts runs steps without drafts. `left`: such steps still to run, this one among them."""

    length: int
    left: int = 0
    _busy: int = 0
    _stamina: int = _BUSY

    def step(self, *, drafted: bool) -> None:
        """Begin a step; `drafted`: whether the one before had drafts."""
        self.left = max(self.left - 1, 0)
        self._busy += drafted
        if self._busy >= self._stamina:
            self._busy, self._stamina = 0, min(2 * self._stamina, self.length * _SELDOM)
            self.left = self.length

    def surprise(self) -> None:
        """Return to the initial frequency."""
        self._stamina = _BUSY


class Asking(Budget):
    """Whether host proposers are asked: while what they save covers the time it takes, and as the budget allows."""

    def __init__(self) -> None:
        super().__init__()
        self.balance, self._free = 0.0, _ASKS

    @property
    def affords(self) -> bool:
        """Whether host proposers may draft in this step, for all requests: what pays may do so only together."""
        return self._free > 0 or self.balance > 0

    def begin(self, plain: float) -> None:
        """Begin a step that would take so long without drafts."""
        self.hold(_STEPS * plain)
        self.save(plain)

    def spend(self, seconds: float, count: int) -> None:
        """Record how long it took to ask for so many requests."""
        self._free -= count
        self.add(-min(seconds, self.capacity / 4))  # processes are stopped now and then

    def gain(self, seconds: float) -> None:
        """Record the seconds that drafts have saved, or what their rows cost.

        That takes only what is saved: losses long ago must not outweigh a draft that pays now.
        """
        self.add(max(seconds, -max(self.balance, 0.0)))


class Ahead:
    """How long a device proposer's next drafts are: these are made before anything can say what they are worth.

    Attributes:
        cost: how long its drafts take.
        trial: whether the next drafts are not expected to pay: then a few requests are enough.
    """

    def __init__(self, name: str, steps: StepCost, belief: Belief, cost: DraftCost | None = None) -> None:
        """Begin with what is known of `name`'s acceptance and times."""
        self.cost = cost or DraftCost()
        self.trial = False
        self._run = 0.0  # seconds of a run of trials, as last computed
        self._steps, self.belief = steps, belief.of(name)
        self._budget, self._running = Budget(), False
        self._pays = False
        self._answers = dict[tuple[int, int, int], tuple[int, float, int]]()
        self._age = 0
        self._branching = 1.0  # verified tokens for each level of a draft
        self._follow = 0.0  # seconds of processing a token that the proposer is behind

    def best(self, most: int, count: int, requests: int, keys: int) -> tuple[int, float, int]:
        """Return the best length of drafts, and what it is based on.

        Args:
            most: tokens.
            count: requests to draft for.
            requests: that emit in the step in which drafts are verified.
            keys: that these read.

        Returns:
            The length; the share of the time that it saves; the best length if acceptance is a standard error higher.
        """
        found = self._answers.get((most, count, requests))
        if found is None:
            times = self.cost.by_length(most, count)
            nodes = [self._branching * length for length in range(most + 1)]
            step = self._steps.table, times, keys * self._steps.key, 1.0 if self._pays else MARGIN, nodes
            length, saving = best_draft(self.belief.levels(most), count, requests, *step)
            hoped = length or best_draft(self.belief.levels(most, 1.0), count, requests, *step)[0]
            found = self._answers[most, count, requests] = length, saving, hoped
        return found

    def choose(
        self,
        most: int,
        count: int,
        requests: int,
        keys: int,
        near: int = 1,
        behind: int = 0,
        rerun: float = 0.0,
        passed: int = 1,
        *,
        ready: bool = True,
    ) -> int:
        """Return how many tokens to draft at the end of this step for the next.

        Args:
            most: tokens.
            count: requests to draft for.
            requests: that emit.
            keys: that these read.
            near: number of those requests for which the proposer has least to catch up: a trial is for them.
            behind: tokens that it has to catch up for these.
            rerun: seconds that the target takes to run some of those tokens once more.
            passed: steps since the last call.
            ready: whether any request is worth catching up for; if not, only trials are made.
        """
        plain = self._steps.table[min(requests, len(self._steps.table) - 1)] + keys * self._steps.key
        self._budget.save(plain * passed)
        self.trial = False
        if most < 1 or count < 1:
            return 0
        if not self.cost.known:
            self.trial = True
            return 1
        self._age += 1
        if self._age >= EPOCH or not self._pays:
            self._answers, self._age = {}, 0
        length, _, hoped = self.best(most, count, requests, keys)
        pays = length > 0 and ready
        if self._pays != pays:
            self._pays, self._answers = pays, {}
        if pays:
            return length
        self.trial, length = True, hoped or 1
        self.belief.doubt()
        if not self.belief.enough:
            return length
        rows = self._steps.table[min(requests + near * length, len(self._steps.table) - 1)] + keys * self._steps.key
        price = self.cost.by_length(length, near)[length] + rows - plain
        return length if self._buys(price, self._follow * behind + rerun) else 0

    def _buys(self, price: float, catching_up: float) -> bool:
        """Whether a trial may be made; then it is paid.

        A run of them begins when all are saved for, as the first may have to catch up, and ends with the savings.
        """
        budget, self._run = self._budget, catching_up + _RUN * price
        budget.hold(self._run + price)
        self._running = self.affords or (self._running and budget.balance >= catching_up + price)
        if self._running:
            budget.add(-catching_up - price)
        return self._running

    @property
    def affords(self) -> bool:
        """Whether enough is saved for a run of trials, as far as its cost is known."""
        return self._budget.balance >= self._run

    def judged(self, levels: Sequence[bool], length: int, nodes: int) -> None:
        """Learn at which depths 1, 2, ... a draft was accepted, as far as it was judged.

        Args:
            levels: see `parlay.acceptance.tree.levels`.
            length: nodes on the draft's longest path.
            nodes: its nodes that were verified; 0 if none were.
        """
        if nodes:
            self._branching += _NEWS * (max(nodes / length, 1.0) - self._branching)
        self.belief.reach(levels)

    def timed(self, length: int, count: int, seconds: float, behind: int, *, settled: bool) -> None:
        """Learn the time of drafts for so many requests, after processing tokens that it was `behind`."""
        seconds /= self._steps.pace
        if behind and self.cost.known:
            own = self.cost.by_length(length, count)[length]
            self._follow += _NEWS * (max(seconds - own, 0.0) / behind - self._follow)
        elif not behind:
            self.cost.observe(length, count, seconds, settled=settled)

    def following(self, tokens: int) -> float:
        """Return the seconds that processing so many tokens takes."""
        return self._follow * tokens

    @property
    def gain(self) -> float:
        """Expected tokens that the longest draft adds."""
        return sum(accumulate(self.belief.levels(DEPTHS), mul), 0.0)


class Policy:
    """Decides what one engine's drafts are.

    Attributes:
        cost: of steps.
        belief: how likely draft tokens are to be accepted.
        asking: whether host proposers are asked.
        ahead: the length of a device proposer's drafts; None if there is none.
        price: tokens that a plain step emits in the time that one more row takes, at least.
        plain: seconds of the latest step that had room for drafts, without drafts and prompts.
        requests: that emit in the step.
        rows: that it runs without drafts.
        fair: whether requests count by the geometric mean of their speeds.
        measuring: when steps run without drafts.
    """

    def __init__(
        self,
        cost: StepCost,
        belief: Belief | None = None,
        ahead: Ahead | None = None,
        *,
        fair: bool = False,
        keep: Callable[["Policy"], None] | None = None,
    ) -> None:
        """Begin with what is known.

        Args:
            cost: of steps.
            belief: of acceptance.
            ahead: of a device proposer.
            fair: whether choices are fair, see `goodput.choose`, also while further requests wait.
            keep: is called now and then, to save for the next run what is known.
        """
        self.cost, self.belief, self.asking, self.ahead = cost, belief or Belief(), Asking(), ahead
        self.price = self.plain = 0.0
        self.requests = self.rows = self._keys = 0
        self.fair = self._always_fair = fair
        self.measuring = Measuring(1 if ahead is None else _PAUSE)
        self._keep, self._steps, self._drafted = keep, 0, False

    def begin(self, requests: int, rows: int, keys: int, *, waiting: bool = False) -> None:
        """Begin a step: find the price of a row.

        While requests are queued, a request that ends early makes room for another, so the total of tokens counts.
        Otherwise a request's long draft helps no other and its rows slow all of them down, so each request counts by
        its own relative speed.

        Args:
            requests: number of requests that emit in this step.
            rows: number of rows without drafts.
            keys: number of keys that these rows read.
            waiting: whether further requests are queued.
        """
        self.measuring.step(drafted=self._drafted)
        self.requests, self.rows, self._keys = requests, rows, keys
        self.fair = self._always_fair or not waiting
        self._drafted, table = False, self.cost.table
        if not requests or rows + 1 >= len(table):
            self.price = _HOPELESS
            return
        ends = [rows + nodes for nodes in (1, 2, 4, 8, 16) if rows + nodes < len(table)]
        slope = min([(table[end] - table[rows]) / (end - rows) for end in ends])
        self.plain = table[min(requests, rows)] + keys * self.cost.key
        self.price = slope * requests / self.plain

    @property
    def hopeful(self) -> bool:
        """Whether any draft token could be worth a row."""
        return self.price < _HOPELESS

    @property
    def branches(self) -> bool:
        """Whether the step takes long enough for drafts with branches to pay."""
        return self.plain >= _SHORT

    def extra(self, rows: int, nodes: int) -> float:
        """Return the seconds that `nodes` rows add to a step of so many rows without them."""
        table = self.cost.table
        return table[min(rows + nodes, len(table) - 1)] - table[min(rows, len(table) - 1)]

    def choose(self, chances: Sequence[Sequence[float]], *, from_device: bool = False) -> list[list[int]]:
        """Return for each draft the nodes that are worth verifying, ascending.

        Args:
            chances: for each draft the probabilities that its nodes are accepted, see `belief.survivals`.
            from_device: whether a device proposer made some of the drafts, whose cost is already paid.
        """
        if not from_device and self.measuring.left:
            return [[] for _ in chances]
        requests, rows = self.requests, self.rows
        # Prompts take their time with or without drafts, and must not make a draft's row look cheap in comparison.
        more = self._keys * self.cost.key - self.extra(min(requests, rows), max(rows - requests, 0))
        margin = 1.0 if from_device else MARGIN
        chosen = choose(chances, requests, rows, self.cost.table, more, margin, fair=self.fair)
        self._drafted = any(chosen)
        return chosen

    def timed(self, rows: int, keys: int, seconds: float, *, settled: bool = True) -> None:
        """Learn what a step cost.

        Args:
            rows: number of rows that it ran.
            keys: number of keys that these read.
            seconds: of the whole step without a device proposer's part.
            settled: whether `seconds` is typical of such steps; if not, they do not count.
        """
        if settled and self.cost.observe(rows, keys, seconds) < _SURPRISE and self.measuring.left:
            self.measuring.surprise()
        self._steps += 1
        if self._keep is not None and self._steps >= _KEPT and self._steps.bit_count() == 1:
            self._keep(self)
