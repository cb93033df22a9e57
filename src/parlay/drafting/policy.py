"""What drafts are worth: whether host proposers are asked, how long a device proposer drafts, what is verified.

All of it follows from the measured cost of steps and of drafting (`cost`), how often draft tokens are accepted
(`belief`), and for what is not expected to pay, the time that may be lost (`budget`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from parlay.drafting.belief import Belief
from parlay.drafting.budget import Budget
from parlay.drafting.cost import Behind, DraftCost, StepCost
from parlay.drafting.goodput import best_draft, choose
from parlay.types.plan import SETTLED, StepTimes

# Factors in goodput for which drafting is begun, and continued: a smaller expected gain may as well be a loss, since
# neither costs nor probabilities are known that exactly.
_BEGIN, _GO_ON = 1.06, 1.04
_AHEAD = 1.03  # for which a device proposer begins; what it has drafted is verified if it gains anything
_NODES = (1, 2, 4, 8, 16)  # draft sizes whose price is computed
_HOPELESS = 0.95  # tokens: no draft token is that likely to be accepted
# Seconds of a step without drafts below which drafts are chains of one proposer: joining several drafts and judging
# every branch takes a tenth of a millisecond.
_SHORT = 0.005
_COLD = 0.2  # by which such a step takes longer right behind drafts of a device proposer, which evict weights
_WARM = 8  # such steps without drafts until the target's weights are in the processor's caches again
# Plain steps are run to learn their cost: after so many steps with drafts at first, and at last. A device proposer's
# weights evict the target's from the processor's caches, so it pauses for several steps, of which the first do not
# count, less often.
_BUSY, _SELDOM, _PAUSE = 8, 128, 3
_FREE = 16  # steps with drafts, at least, for each further one of such a pause that does not count
_SURPRISE = 0.85  # of the expected seconds of such a step: if it took less, they are as frequent as at first again
_ASKS = 256  # of a host proposer for one request: before anything is decided, and what is saved for
_STEPS = 8  # plain steps: losses that drafts which have paid may cause before asking ends
_OWED = 32  # times asking for one request
_NEWS = 0.05  # weight of a new time in the moving average of asking
_OTHERS = 0.1  # weight of a step in what the proposers on the host gain
_MOST = 4.0  # longest time that counts, as a factor of the usual one: processes are stopped now and then
_RUN = 6.0  # drafts of a device proposer that are saved up for: with fewer a trial tells little
_LOST = 0.1  # least share of a trial's seconds that is counted as lost, however likely it is to be accepted
_EPOCH = 8  # steps after which a device proposer's length is chosen anew, though nothing else has changed
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
        if self._busy >= max(self._stamina, _FREE * (self.length - _PAUSE - 1)):
            self._busy, self._stamina = 0, min(2 * self._stamina, self.length * _SELDOM)
            self.left = self.length

    def reset(self) -> None:
        """Return to the initial frequency."""
        self._stamina = _BUSY


class Asking:
    """Whether host proposers are asked: while what they save covers the time it takes, and as the budget allows.

    Attributes:
        seconds: spent on asking since start.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._each = 0.0  # seconds for one request
        self._asked = 0
        self._budget = Budget()

    def affords(self, count: int) -> bool:
        """Whether host proposers may draft for so many requests: at first always, since nothing is known."""
        return self._asked < _ASKS or self._budget.balance >= count * self._each

    def save(self, plain: float) -> None:
        """Save a share of a step's seconds."""
        self._budget.hold(max(_ASKS * self._each, _STEPS * plain), _OWED * self._each)
        self._budget.save(plain)

    def spend(self, seconds: float, count: int) -> None:
        """Record how long it took to ask for so many requests, one or more."""
        self.seconds += seconds
        self._asked += count
        each = seconds / count
        self._each += (_NEWS * (min(each, _MOST * self._each) - self._each)) if self._each else each
        self._budget.add(-count * min(each, _MOST * self._each))

    def gain(self, seconds: float) -> None:
        """Record the seconds that drafts have saved; negative where their rows cost more."""
        self._budget.add(seconds)


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
        self._run = 0.0  # seconds that a run of trials may lose, as last computed
        self._steps, self.belief = steps, belief.of(name)
        self._budget, self._running = Budget(), False
        self._pays = False
        self._answers = dict[tuple[int, int, int], tuple[int, float, int, list[float]]]()
        self._age = 0
        self._branching = 1.0  # verified tokens for each level of a draft
        self._others = 1.0  # goodput with drafts of the proposers on the host alone, by that without any
        self._colder: StepCost | None = None  # of short steps that verify right behind its drafts

    def best(self, most: int, count: int, requests: int, keys: int) -> tuple[int, float, int, list[float]]:
        """Return the best length of drafts, and what it is based on.

        Args:
            most: tokens.
            count: requests to draft for.
            requests: that emit in the step in which drafts are verified.
            keys: that these read.

        Returns:
            The length; the share of the time that it saves; the best length if acceptance is a standard error
            higher; seconds of drafting by length.
        """
        found = self._answers.get((most, count, requests))
        if found is None:
            times = self.cost.by_length(most, count)
            nodes = [self._branching * length for length in range(most + 1)]
            margin = self._others * (1.0 if self._pays else _AHEAD)
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
            most: tokens.
            count: requests to draft for.
            requests: that emit.
            keys: that these read.
            trying: requests that a trial is for: those for which the proposer has least to catch up.
            behind: tokens that it has to catch up for these.
            rerun: seconds that the target takes to run some of those tokens once more.
            passed: steps since the last call.
            ready: whether any request is worth catching up for; if not, only trials are made.
        """
        steps, budget = self._steps, self._budget
        plain = steps.table[min(requests, len(steps.table) - 1)] + keys * steps.key
        budget.save(plain * passed)
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
            budget.hold(2 * price, 0.0)
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
        price = max(cost + rows - worth, _LOST * cost) + (_WARM * _COLD * plain / _RUN if plain < _SHORT else 0.0)
        return further if self._buys(price, self.cost.following(behind) + rerun) else 0

    def _table(self, requests: int) -> Sequence[float]:
        """Return seconds of steps by rows: of so many without drafts, and of more right behind drafts."""
        return self._steps.table if self._colder is None else Behind(self._steps.table, self._colder.table, requests)

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

    def scouts(self, tokens: int) -> bool:
        """Whether the proposer may process a prompt of so many tokens for a trial; then that is paid."""
        affords = self.affords
        if affords:
            self._budget.add(-self.cost.following(tokens))
        return affords

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
        if behind and (self.cost.timed or not count):
            own = self.cost.by_length(length, count)[length] if count else 0.0
            self.cost.observe_following(behind, seconds - own)
        elif not behind:
            self.cost.observe(length, count, seconds, settled=settled)

    @property
    def gain(self) -> float:
        """Expected tokens that the longest draft adds."""
        return sum(accumulate(self.belief.levels(8), mul), 0.0)


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
            fair: see `goodput.choose`; otherwise choices are fair only while no request waits.
            keep: is called now and then, to save for the next run what is known.
        """
        self.cost, self.belief, self.asking, self.ahead = cost, belief or Belief(), Asking(), ahead
        self.price = self.plain = 0.0
        self.requests = self.rows = 0
        self.measuring = Measuring(1)
        self._fair, self._keep = fair, keep
        self._steps = 0
        self._priced, self._slopes = cost.table, dict[int, float]()  # of that table, by rows
        self._verifies = self._drafted = False
        self._doubts, self._trial = Budget(), False
        self._verifying: StepCost | None = None  # of short steps that verify: drafts take Python's time too

    def begin(self, requests: int, rows: int, keys: int) -> None:
        """Begin a step: find the price of a row.

        Args:
            requests: number of requests that emit in this step.
            rows: number of rows without drafts.
            keys: number of keys that these rows read.
        """
        self.measuring.step(drafted=self._drafted)
        self.requests, self.rows = requests, rows
        self._drafted = self._trial = False
        table = self.cost.table
        if not requests or rows + 1 >= len(table):
            self.price = _HOPELESS
            return
        if table is not self._priced:
            self._priced, self._slopes = table, {}
        slope = self._slopes.get(rows)
        if slope is None:
            ends = [rows + nodes for nodes in _NODES if rows + nodes < len(table)]
            slope = self._slopes[rows] = min((table[end] - table[rows]) / (end - rows) for end in ends)
        self.plain = table[min(requests, rows)] + keys * self.cost.key
        self.price = slope * requests / self.plain
        self._doubts.hold(self.price_of(rows, _NODES[-1]), 0.0)
        self._doubts.save(self.plain)
        self._trial = self._tries(rows, 0) is not None
        self.measuring.length = 1 if self.ahead is None else _PAUSE + self._cold

    @property
    def _cold(self) -> int:
        """Plain steps after a device proposer's that take longer than others."""
        return _WARM if self.plain < _SHORT else 1

    @property
    def pauses(self) -> bool:
        """Whether a device proposer may not run at all, so that the target's weights stay in the caches."""
        return self.measuring.left > 1 and self.plain < _SHORT

    @property
    def may_draft(self) -> bool:
        """Whether any draft token could be worth a row, or be verified to see what rows cost."""
        return self.price < _HOPELESS or self._trial

    @property
    def branches(self) -> bool:
        """Whether the step takes long enough for drafts with branches to pay."""
        return self.plain >= _SHORT

    def fair(self, *, waiting: bool) -> bool:
        """Whether requests count by the geometric mean of their speeds; `waiting`: whether others are queued."""
        return self._fair or not waiting

    def extra(self, rows: int, nodes: int) -> float:
        """Return the seconds that `nodes` rows add to a step of so many rows without them."""
        table = self.cost.table
        return table[min(rows + nodes, len(table) - 1)] - table[min(rows, len(table) - 1)]

    def _table(self, rows: int) -> Sequence[float]:
        """Return seconds of steps by rows: of so many without drafts, and of more with drafts."""
        return self.cost.table if self._verifying is None else Behind(self.cost.table, self._verifying.table, rows)

    def price_of(self, rows: int, nodes: int) -> float:
        """Return the seconds that verifying `nodes` adds to a step of so many rows without them."""
        table = self._table(rows)
        return table[min(rows + nodes, len(table) - 1)] - table[min(rows, len(table) - 1)]

    def gain(self, chances: Sequence[Sequence[float]], requests: int, rows: int, keys: int) -> float:
        """Return by what factor the best part of some drafts raises goodput; arguments as of `choose`."""
        table, more = (
            self._table(rows),
            keys * self.cost.key - self.extra(min(requests, rows), max(rows - requests, 0)),
        )
        chosen = choose(chances, requests, rows, table, more, _GO_ON)
        nodes = sum(map(len, chosen))
        tokens = sum(own[node] for own, part in zip(chances, chosen, strict=True) for node in part)
        plain = table[min(rows, len(table) - 1)] + more
        return (1 + tokens / requests) * plain / (plain + self.price_of(rows, nodes))

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
        """Return for each draft the nodes that are worth verifying, ascending.

        While requests are queued, a request that ends early makes room for another, so the total of tokens counts.
        Otherwise a request's long draft helps no other and its rows slow all of them down, so each request counts by
        its own relative speed.

        Args:
            chances: for each draft the probabilities that its nodes are accepted, see `belief.survivals`.
            requests: number of requests that emit in this step.
            rows: number of rows without drafts.
            keys: number of keys that these rows read.
            waiting: whether further requests are queued.
            from_device: whether a device proposer made some of the drafts, whose cost is already paid.
        """
        if not from_device and self.measuring.left:
            return [[] for _ in chances]
        margin = 1.0 if from_device else _GO_ON if self._verifies else _BEGIN
        # Prompts take their time with or without drafts, and must not make a draft's row look cheap in comparison.
        more = keys * self.cost.key - self.extra(min(requests, rows), max(rows - requests, 0))
        fair = self.fair(waiting=waiting)
        chosen = choose(chances, requests, rows, self._table(rows), more, margin, fair=fair)
        self._verifies = any(chosen)
        chosen = self._doubt(chances, rows, chosen)
        self._drafted = any(chosen)
        return chosen

    def _doubt(self, chances: Sequence[Sequence[float]], rows: int, chosen: list[list[int]]) -> list[list[int]]:
        """Return drafts that are large enough to run a number of rows whose cost is doubtful, if the budget allows.

        Otherwise drafts that once seemed too expensive would never show that they are not.
        """
        nodes = sum(map(len, chosen))
        tried = self._tries(rows, nodes)
        if tried is None or tried[0] > sum(map(len, chances)):
            return chosen
        wanted, price = tried
        self._doubts.add(-price)
        pool = [(-chance, draft, node) for draft, own in enumerate(chances) for node, chance in enumerate(own)]
        best = sorted(pool)[:wanted]
        return [sorted(node for _, own, node in best if own == draft) for draft in range(len(chances))]

    def _tries(self, rows: int, nodes: int) -> tuple[int, float] | None:
        """Return how many nodes, more than some, are to be run since their cost is doubtful, and what they add."""
        wanted = (self.cost.doubtful(rows + nodes) or 0) - rows
        price = self.price_of(rows, wanted) - self.price_of(rows, nodes) if wanted > nodes else 0.0
        return (wanted, price) if wanted > nodes and self._doubts.balance >= price else None

    def timed(
        self, rows: int, keys: int, seconds: float, times: StepTimes = SETTLED, *, drafted: bool = True
    ) -> None:
        """Learn what a step cost.

        Args:
            rows: number of rows that it ran.
            keys: number of keys that these read.
            seconds: of the whole step without a device proposer's part.
            times: where they went.
            drafted: whether it verified drafts.
        """
        if times.settled and drafted and self.plain < _SHORT:
            self.cost.bound(rows, keys, seconds)
            if self.ahead is not None and not times.idle_steps:
                self.ahead.verified(rows, keys, seconds)
            else:
                self._verifying = self._verifying or self.cost.derive()
                self._verifying.observe(rows, keys, seconds)
        elif times.settled and (drafted or times.idle_steps >= self._cold):
            measured = self.measuring.left > 0 and self.ahead is not None
            if self.cost.observe(rows, keys, seconds, measured=measured) < _SURPRISE and self.measuring.left:
                self.measuring.reset()
        elif times.settled:
            self.cost.observe_cold(rows, keys, seconds - times.forward)
        self._steps += 1
        if self._keep is not None and self._steps >= _KEPT and self._steps.bit_count() == 1:
            self._keep(self)
