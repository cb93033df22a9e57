"""How long a device proposer's next drafts may be: its guesses are made before anybody can say what they are worth.

Known are what drafting so many tokens takes, and how often a guess at each depth is right (`Acceptance`). Both are
learnt from drafts alone, so now and then one is made that does not seem to pay, and one that is a token longer than
seems best. A small share of the time is saved up for that and spent on nothing else (`Tries`).
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from parlay.drafting.acceptance import Acceptance
from parlay.drafting.goodput import best_draft
from parlay.drafting.times import LONG, DraftTimes
from parlay.drafting.tries import Tries

_FOLLOW = 0.3  # share that is learnt of following tokens
_LOST = 0.1  # share of a try's seconds that are lost at least, however likely it is right
_NODES = 0.1  # share that a draft's nodes take in what is known of their number
_ANEW = 16  # steps after which the best length is found anew, though nothing but the pace has changed
_FIRST = 1  # tokens drafted until it is known what these take


class Step(NamedTuple):
    """The step that drafts are verified in.

    Attributes:
        requests: that emit.
        table: seconds of a step by rows, at the usual pace.
        more: seconds of the step beside the table.
        pace: how much longer than usual steps take now.
        margin: factor in goodput for which drafting is begun; what runs goes on as long as it gains anything.
    """

    requests: int
    table: Sequence[float]
    more: float
    pace: float
    margin: float

    def seconds(self, nodes: int) -> float:
        """Return what it takes with so many nodes, at the usual pace."""
        return self.table[min(self.requests + nodes, len(self.table) - 1)] + self.more


class DeviceLengths:
    """What decides the lengths of one device proposer's drafts.

    Attributes:
        acceptance: of its guesses.
        times: what its drafts take.
        tries: that may be lost on drafts that do not seem to pay.
        trying: whether what is drafted next does not pay, or nobody knows yet; then a few requests are enough.
        hopeful: whether any draft may pay, if guesses are right a standard error more often than it seems.
    """

    def __init__(self, length: int, times: Mapping[int, float] | None = None, chances: Sequence[float] = ()) -> None:
        """Begin with drafts of at most `length` tokens, and with what is known of their times and acceptance."""
        self.acceptance, self.times = Acceptance(length, chances), DraftTimes(times)
        self.tries = Tries()
        self._pays, self.trying, self.hopeful = False, False, True
        self._promising = 0  # tokens that may pay, if guesses are right more often than it seems
        self._answers = dict[tuple[int, int, int], tuple[int, float, list[float]]]()  # of `_best`
        self._table: Sequence[float] = ()  # for which those are
        self._count = 0  # requests to draft for
        self._news, self._asked = True, 0
        self._nodes: dict[int, float] = {}  # verified of drafts by their length, as far as that is known
        self._follow = 0.0  # seconds of following a token that the proposer is behind

    def saving(self, most: int, count: int, step: Step) -> float:
        """Return the share of the time that drafts of at most so many tokens would save if these requests had them.

        Args:
            most: tokens.
            count: requests to draft for.
            step: the one that drafts would be verified in.
        """
        if most < 1 or count < 1 or not self.times.known:
            return 0.0
        best, saving, paced = self._best(most, count, step)
        self._promising = (
            best or best_draft(self.acceptance.at_best(), count, step.requests, step.table, paced, step.more)[0]
        )
        self.hopeful = self._promising > 0 or not self.acceptance.enough
        return saving

    def next_length(
        self,
        most: int,
        count: int,
        step: Step,
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
            step: the one that drafts would be verified in.
            near: of these, requests of which the proposer has to follow the fewest tokens first: a try is for them.
            behind: tokens that these are.
            rerun: seconds that the target takes to run tokens of them once more.
            passed: steps since this was asked last.
            ready: whether any request is worth following what the proposer is behind; if not, all it does is tries.
        """
        self.trying, plain = False, step.seconds(0)
        if most < 1 or count < 1:
            self.tries.save(plain * passed)
            return 0
        if not self.times.known:
            self.trying = True
            return min(most, _FIRST)
        self._asked, self._count = self._asked + 1, count
        best, _, times = self._best(most, count, step)
        best *= ready
        self._pays = best > 0
        further, catching_up = min(max(best + 1, self._promising), most), 0.0
        price = times[further] - times[best]
        if not best:
            self.trying = True
            self.acceptance.doubt()
            if not self.acceptance.enough:
                return further
            # Following what it lacks is paid for once, guesses after that are cheap; and of a guess no more is lost
            # than what it is not worth.
            catching_up = self._follow * behind / step.pace + rerun
            worth = sum(accumulate(self.acceptance.believed()[:further], mul)) * plain / step.requests
            price = self.times.of(further, near) / step.pace
            price = max(price + step.seconds(near * further) - plain - near * worth, _LOST * price)
        takes = self.tries.take(price, catching_up, plain * passed) if further > best else False
        return further if takes else best

    def _best(self, most: int, count: int, step: Step) -> tuple[int, float, list[float]]:
        """Return the best length, the share of the time that it saves, and seconds by length at the usual pace."""
        if self._news or step.table is not self._table or self._asked >= _ANEW:
            self._answers.clear()
            self._table, self._news, self._asked = step.table, False, 0
        found = self._answers.get((most, count, step.requests))
        if found is None:
            paced = [seconds / step.pace for seconds in self.times.by_length(most, count)]
            factor = 1.0 if self._pays else step.margin
            nodes = [self._verified(length) for length in range(most + 1)]
            asked = self.acceptance.believed(), count, step.requests, step.table, paced, step.more, factor, nodes
            found = self._answers[most, count, step.requests] = (*best_draft(*asked), paced)
        return found

    @property
    def gain(self) -> float:
        """Tokens that the longest draft is expected to add."""
        return sum(accumulate(self.acceptance.believed(), mul), 0.0)

    def judged(self, levels: Sequence[bool], length: int = 0, nodes: int = 0) -> None:
        """Learn whether a draft was right at depths 1, 2, ..., as far as it was judged.

        Args:
            levels: of the best path at each depth.
            length: of the draft, along its longest path.
            nodes: of it that were verified; 0 if none were.
        """
        self._news = True
        if nodes:
            before = self._nodes.get(length, float(nodes))
            self._nodes[length] = before + _NODES * (nodes - before)
        self.tries.judged(right=all(levels))
        self.acceptance.judged(levels, pays=self._pays)

    def timed(self, lengths: Sequence[int], seconds: float, behind: int = 0, settled: bool = True) -> None:
        """Learn what drafts of these lengths took together, after following tokens that the proposer was `behind`.

        `settled` is as for `DraftTimes.observe`.
        """
        if not any(lengths) or not 0 < seconds < LONG:
            return
        self._news = True
        if behind:
            own = self.times.of(max(lengths), sum(map(bool, lengths)))
            self._follow += _FOLLOW * (max(seconds - own, 0.0) / behind - self._follow)
        else:
            self.times.observe(lengths, seconds, self._count, settled=settled)

    def following(self, tokens: int) -> float:
        """Return the seconds that following so many tokens takes."""
        return self._follow * tokens

    def _verified(self, length: int) -> float:
        """Return how many nodes of a draft of some length are verified: as is known of one as long, or nearly."""
        shorter = max((known for known in self._nodes if known <= length), default=0)
        longer = min((known for known in self._nodes if known > length), default=0)
        if not shorter and longer:
            return max(self._nodes[longer] * length / longer, length)
        return max(self._nodes.get(shorter, 0.0), shorter) + length - shorter
