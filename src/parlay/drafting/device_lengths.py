"""How long a device proposer's next drafts may be: these are made before anything can say what their nodes are worth.

Known are the time of drafting so many tokens and the acceptance at each depth (`Acceptance`). Both are learnt from
drafts alone, so now and then one is made that does not seem to pay, and one that is a token longer than seems best. A
small share of the time is saved up for that and spent on nothing else (`Tries`).
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from parlay.drafting.acceptance import Acceptance
from parlay.drafting.goodput import best_draft
from parlay.drafting.times import LONG, DraftTimes
from parlay.drafting.tries import Tries

_FOLLOW = 0.3  # weight of a new time in that of processing tokens
_LOST = 0.1  # least share of a try's seconds that is counted as lost, however likely it is to be accepted
_NODES = 0.1  # weight of a draft's nodes in their moving average
_ANEW = 16  # steps after which the best length is computed anew, though only the pace has changed
_FIRST = 1  # tokens drafted until it is known how long these take


class Step(NamedTuple):
    """The step that drafts are verified in.

    Attributes:
        requests: number of requests that emit.
        table: seconds of a step by rows, at the usual pace.
        more: seconds of the step beside the table.
        pace: by what factor steps now take longer than usual.
        margin: factor in goodput for which drafting is begun; it is continued as long as it gains anything.
    """

    requests: int
    table: Sequence[float]
    more: float
    pace: float
    margin: float

    def seconds(self, nodes: int) -> float:
        """Return the time with so many nodes, at the usual pace."""
        return self.table[min(self.requests + nodes, len(self.table) - 1)] + self.more


class DeviceLengths:
    """Decides the lengths of one device proposer's drafts.

    Attributes:
        acceptance: of its nodes.
        times: how long its drafts take.
        tries: the time that may be lost on drafts that do not seem to pay.
        trying: whether the next drafts do not pay, or this is unknown; then a few requests are enough.
        hopeful: whether any draft may pay if acceptance is a standard error higher than estimated.
    """

    def __init__(self, length: int, times: Mapping[int, float] | None = None, chances: Sequence[float] = ()) -> None:
        """Begin with drafts of at most `length` tokens, and with what is known of their times and acceptance."""
        self.acceptance, self.times = Acceptance(length, chances), DraftTimes(times)
        self.tries = Tries()
        self._pays, self.trying, self.hopeful = False, False, True
        self._promising = 0  # tokens that may pay if acceptance is higher than estimated
        self._answers = dict[tuple[int, int, int], tuple[int, float, list[float]]]()  # of `_best`
        self._table: Sequence[float] = ()  # for which those hold
        self._count = 0  # requests to draft for
        self._news, self._asked = True, 0
        self._nodes: dict[int, float] = {}  # verified nodes of drafts by their length, as far as known
        self._follow = 0.0  # seconds of processing a token that the proposer is behind

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
            near: number of those requests for which the proposer has least to catch up: a try is for them.
            behind: tokens that it has to catch up for these.
            rerun: seconds that the target takes to run some of those tokens once more.
            passed: steps since the last call.
            ready: whether any request is worth catching up for; if not, only tries are made.
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
            # Catching up is paid for once, and nodes after that are cheap; a node loses no more than the part of its
            # cost that its expected gain does not cover.
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
        """Expected tokens that the longest draft adds."""
        return sum(accumulate(self.acceptance.believed(), mul), 0.0)

    def judged(self, levels: Sequence[bool], length: int = 0, nodes: int = 0) -> None:
        """Learn at which depths 1, 2, ... a draft was accepted, as far as it was judged.

        Args:
            levels: of the best path at each depth.
            length: nodes on the draft's longest path.
            nodes: its nodes that were verified; 0 if none were.
        """
        self._news = True
        if nodes:
            before = self._nodes.get(length, float(nodes))
            self._nodes[length] = before + _NODES * (nodes - before)
        self.tries.judged(right=all(levels))
        self.acceptance.judged(levels, pays=self._pays)

    def timed(self, lengths: Sequence[int], seconds: float, behind: int = 0, settled: bool = True) -> None:
        """Learn the time of drafts of these lengths together, after processing tokens that the proposer was `behind`.

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
        """Return the seconds that processing so many tokens takes."""
        return self._follow * tokens

    def _verified(self, length: int) -> float:
        """Return how many nodes of a draft of some length are verified, as known of the nearest length."""
        shorter = max((known for known in self._nodes if known <= length), default=0)
        longer = min((known for known in self._nodes if known > length), default=0)
        if not shorter and longer:
            return max(self._nodes[longer] * length / longer, length)
        return max(self._nodes.get(shorter, 0.0), shorter) + length - shorter
