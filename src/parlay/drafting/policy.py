"""What drafts are worth, and which of their nodes are verified.

All of it follows from the measured cost of steps and of drafting (`cost`), how often draft tokens are accepted
(`belief`), and for what is not expected to pay, the time that may be lost (`budget`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parlay.drafting.belief import Belief
from parlay.drafting.budget import ExplorationBudget
from parlay.drafting.cost import AfterDraftTable, StepCost, StepTable
from parlay.drafting.device_length import SHORT, WARM, DeviceLength
from parlay.drafting.goodput import choose
from parlay.drafting.host_budget import HostProposerBudget
from parlay.types.plan import NO_TIMES, StepTimes

# Factors in goodput for which drafting is begun, and continued: a smaller expected gain may as well be a loss, since
# neither costs nor probabilities are known that exactly.
_BEGIN, _GO_ON = 1.06, 1.04
_NODES = (1, 2, 4, 8, 16)  # draft sizes whose price is computed
_HOPELESS = 0.95  # price of a row, in tokens, at which no draft token is likely enough
# Plain steps are run to learn their cost: after so many steps with drafts at first, and at last. A device proposer's
# weights evict the target's from the processor's caches, so it pauses for several steps, of which the first do not
# count, less often.
_BUSY, _SELDOM, _PAUSE = 8, 128, 3
_FREE = 16  # steps with drafts, at least, for each further one of such a pause that does not count
_SURPRISE = 0.85  # share of the expected seconds of such a step: if it took less, they are as frequent as at first
_KEPT = 64  # steps after which costs are saved for the first time; then after each doubling


@dataclass(slots=True)
class PlainStepSchedule:
    """When an engine that drafts runs steps without drafts. `left`: such steps still to run, this one among them."""

    length: int
    left: int = 0
    _busy: int = 0
    _stamina: int = _BUSY

    def step(self, *, drafted: bool) -> None:
        """Start a step; `drafted`: whether the one before had drafts."""
        self.left = max(self.left - 1, 0)
        self._busy += drafted
        if self._busy >= max(self._stamina, _FREE * (self.length - _PAUSE - 1)):
            self._busy, self._stamina = 0, min(2 * self._stamina, self.length * _SELDOM)
            self.left = self.length

    def reset(self) -> None:
        """Return to the initial frequency."""
        self._stamina = _BUSY


class Policy:
    """Decides what one engine's drafts are.

    Attributes:
        cost: cost of steps.
        belief: estimates of acceptance rates.
        host_budget: time budget that decides whether host proposers are asked.
        device_length: the length of a device proposer's drafts; None if there is none.
        price: tokens that a plain step emits in the time that one more row takes, at least.
        plain: seconds of the latest step that had room for drafts, without drafts and prompts.
        requests: number of requests that emit in the step.
        rows: number of rows that it runs without drafts.
        measuring: schedule of steps without drafts.
    """

    def __init__(
        self,
        cost: StepCost,
        belief: Belief | None = None,
        device_length: DeviceLength | None = None,
        *,
        fair: bool = False,
        keep: Callable[["Policy"], None] | None = None,
    ) -> None:
        """Start from what is known.

        Args:
            cost: cost of steps.
            belief: estimates of acceptance rates.
            device_length: length of a device proposer's drafts; None if there is none.
            fair: whether choices are always fair, see `goodput.choose`; otherwise only while no request waits.
            keep: function called now and then to save what is known for the next run.
        """
        self.cost, self.belief, self.host_budget, self.device_length = (
            cost,
            belief or Belief(),
            HostProposerBudget(),
            device_length,
        )
        self.price = self.plain = 0.0
        self.requests = self.rows = 0
        self.measuring = PlainStepSchedule(1)
        self._fair, self._keep = fair, keep
        self._steps = 0
        self._priced, self._slopes = cost.table, dict[int, float]()  # slopes of that table, by rows
        self._verifies = self._drafted = False
        self._doubts, self._trial = ExplorationBudget(), False
        self._verifying: StepCost | None = None  # cost of short steps that verify: drafts take Python's time too

    def begin(self, requests: int, rows: int, keys: int) -> None:
        """Start a step: find the price of a row.

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
        self.measuring.length = 1 if self.device_length is None else _PAUSE + self._cold

    @property
    def _cold(self) -> int:
        """Plain steps after a device proposer's that take longer than others."""
        return WARM if self.plain < SHORT else 1

    @property
    def pauses(self) -> bool:
        """Whether a device proposer may not run at all, so that the target's weights stay in the caches."""
        return self.measuring.left > 1 and self.plain < SHORT

    @property
    def may_draft(self) -> bool:
        """Whether any draft token could be worth a row, or be verified to see what rows cost."""
        return self.price < _HOPELESS or self._trial

    @property
    def branches(self) -> bool:
        """Whether the step takes long enough for drafts with branches to pay."""
        return self.plain >= SHORT

    def fair(self, *, waiting: bool) -> bool:
        """Whether requests count by the geometric mean of their speeds; `waiting`: whether others are queued."""
        return self._fair or not waiting

    def extra(self, rows: int, nodes: int) -> float:
        """Return the seconds that `nodes` rows add to a step of so many rows without them."""
        table = self.cost.table
        return table[min(rows + nodes, len(table) - 1)] - table[min(rows, len(table) - 1)]

    def _table(self, rows: int) -> StepTable:
        """Return seconds of steps by rows: of so many without drafts, and of more with drafts."""
        return (
            self.cost.table
            if self._verifying is None
            else AfterDraftTable(self.cost.table, self._verifying.table, rows)
        )

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
            chances: survivals of each draft's nodes, see `belief.survivals`.
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
        self, rows: int, keys: int, seconds: float, times: StepTimes = NO_TIMES, *, drafted: bool = True
    ) -> None:
        """Learn what a step cost.

        Args:
            rows: number of rows that it ran.
            keys: number of keys that these read.
            seconds: time of the whole step without a device proposer's part.
            times: times of its parts.
            drafted: whether it verified drafts.
        """
        if times.typical and drafted and self.plain < SHORT:
            self.cost.bound(rows, keys, seconds)
            if self.device_length is not None and not times.idle_steps:
                self.device_length.verified(rows, keys, seconds)
            else:
                self._verifying = self._verifying or self.cost.derive()
                self._verifying.observe(rows, keys, seconds)
        elif times.typical and (drafted or times.idle_steps >= self._cold):
            measured = self.measuring.left > 0 and self.device_length is not None
            if self.cost.observe(rows, keys, seconds, measured=measured) < _SURPRISE and self.measuring.left:
                self.measuring.reset()
        elif times.typical:
            self.cost.observe_cold(rows, keys, seconds - times.forward)
        self._steps += 1
        if self._keep is not None and self._steps >= _KEPT and self._steps.bit_count() == 1:
            self._keep(self)
