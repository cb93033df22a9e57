"""Chooses before every step which nodes are verified, and how long a device proposer's next drafts may be.

It holds the measured costs of steps and of drafting, and how often nodes of each depth are accepted. Nodes that were
left out are learnt from too: a step that emits their tokens would have accepted them.
"""

from collections.abc import Callable, Mapping, Sequence

from parlay.drafting.cost import StepCost
from parlay.drafting.device_lengths import DeviceLengths, Step
from parlay.drafting.goodput import choose
from parlay.drafting.looks import Looks

# Factors in goodput for which drafting is begun, and continued: a smaller expected gain may as well be a loss, since
# neither costs nor probabilities are known that exactly.
_BEGIN, _GO_ON = 1.06, 1.04
_AHEAD = 1.03  # and for which a device proposer begins; what it has drafted is verified if it gains anything
# Steps without a draft after which the best one is verified all the same, at first and at last: the cost of rows is
# learnt by running some.
_IDLE, _SELDOM = 64, 1024
_RARELY = 128  # steps with drafts after which, at last, one runs without, see `Looks`
# A device proposer's weights evict the target's from the processor's caches: the first step after its drafts takes
# longer than plain steps in a row, and does not count. So it pauses for several steps, less often.
_PAUSE, _PAUSES = 4, 512
_SURPRISE = 0.85  # of the expected seconds of such a step: if it took less, pauses are as frequent as at first again
_AT_LEAST = 0.7  # of plain decoding's goodput that a draft must promise then
_NODES = (1, 2, 4, 8, 16)  # draft sizes whose price is computed
_HOPELESS = 0.95  # tokens: no node is that likely to be accepted
# Seconds of a step without drafts below which drafts are chains of one proposer: joining several drafts and judging
# every branch takes a tenth of a millisecond.
_SHORT = 0.005
_KEPT = 64  # steps after which costs are saved for the first time; then after each doubling


class Controller:
    """Decides the lengths of one engine's drafts.

    Attributes:
        cost: of steps.
        price: tokens that a plain step emits in the time that one more row takes, at least.
        looks: whether this step is run for what it tells about costs.
        plain: seconds of the latest step that had room for drafts, without drafts and prompts.
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
            chances: acceptance of its nodes at depth 1, 2, ..., as far as known.
            keep: is called now and then with what is known of steps and of drafting, to save it for the next run.
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
        self._idle, self._patience = 0, _IDLE  # steps in which nothing paid; after how many to try all the same

    def asks(self, requests: int, rows: int, keys: int) -> bool:
        """Find the price of a row, and return whether any node could be worth it.

        Args:
            requests: number of requests that emit in this step.
            rows: number of rows without drafts.
            keys: number of keys that these rows read.
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
        """Whether a device proposer skips drafting to measure costs."""
        return self._pauses.left > 0

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
            chances: for each draft the probabilities that its nodes are accepted, see `goodput.survivals`.
            requests: number of requests that emit in this step.
            rows: number of rows without drafts.
            keys: number of keys that these rows read.
            waiting: whether further requests are queued.
            from_device: whether a device proposer made some of the drafts, whose cost is already paid.
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
        # Prompts take their time with or without drafts, and must not make a draft's row look cheap in comparison.
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
        """Return the tokens that plain steps emit in the time that a device proposer takes to catch up.

        Args:
            rows: rows that the target runs once more for it.
            behind: tokens that it has to process.
        """
        if not self.plain:
            return 0.0
        seconds = self.extra(self._rows, rows) + self._lengths.following(behind) / self.cost.pace
        return seconds * self._emitting / self.plain

    def saving(self, most: int, count: int, requests: int, keys: int) -> float:
        """Return the expected share of the time that a device proposer's drafts save once it has caught up.

        Args:
            most: tokens of each draft.
            count: number of requests that it would draft for.
            requests: number of requests that will emit.
            keys: number of keys that these read.
        """
        return self._lengths.saving(most, count, self._step(requests, keys))

    def _step(self, requests: int, keys: int) -> Step:
        return Step(requests, self.cost.table, keys * self.cost.key, self.cost.pace, _AHEAD)

    @property
    def device_gain(self) -> float:
        """Expected tokens that a device proposer's longest draft adds."""
        return self._lengths.gain

    @property
    def hopeful(self) -> bool:
        """Whether a device proposer's drafts may pay, by what is known of them."""
        return self._lengths.hopeful

    @property
    def affords(self) -> bool:
        """Whether a device proposer may be tried though its drafts do not seem to pay."""
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
            most: most tokens.
            count: number of requests that it would draft for.
            requests: number of requests that will emit.
            keys: number of keys that these read.
            near: number of those requests for which it has least to catch up, with which it may be tried.
            behind: tokens that it has to catch up for these.
            again: of those tokens, the ones that the target has to run once more before.
            passed: steps since the last call.
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
        """Learn at which depths 1, 2, ... a device proposer's draft was accepted, as far as it was judged.

        Args:
            levels: see `parlay.acceptance.tree.levels`.
            length: nodes on the draft's longest path.
            nodes: its nodes that were verified; 0 if none were.
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
            rows: number of rows that it ran.
            keys: number of keys that these read.
            seconds: of the whole step without a device proposer's part.
            lengths: of the drafts that a device proposer then made; empty where it did more than draft.
            drafting: seconds of these.
            behind: tokens that it had to process first.
            settled: whether `seconds` is typical of such steps; if not, they do not count.
        """
        if settled and self.cost.observe(rows, keys, seconds) < _SURPRISE and self.looks:
            self._looks.surprise()
            self._pauses.surprise()
            self._patience = _IDLE
        self._lengths.timed(lengths, drafting, behind, settled)
        self._steps += 1
        if self._keep is not None and self._steps >= _KEPT and self._steps.bit_count() == 1:
            self._keep(self.cost, self._lengths)
