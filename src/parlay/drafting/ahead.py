"""How long a device proposer's next drafts may be: its guesses are made before anybody can say what they are worth.

Known are what drafting so many tokens takes, and how often a guess at each depth was right, given that the one before
it was. Both are learnt from drafts alone, so now and then one is made that does not seem to pay, and one that is a
token longer than seems best. A small share of the time is saved up for that and spent on nothing else: what has
never paid costs no more than this, and where a try is lucky there is enough saved for the next few at once.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from parlay.drafting.goodput import best_draft
from parlay.drafting.times import LONG, DraftTimes

_PRIOR = 0.6  # acceptance of a node, before anything is known
_DEEPER = 0.95  # of its parent's, where that is more: what is right now is nearly as often right a token later
_FEW, _MANY = 4, 50  # nodes that an estimate rests on, at first and at most
_ENOUGH = 16  # without as many nothing is given up; and while nothing pays no more count, so that a change is seen
_UNLIKELY = 0.0005  # a run of guesses right, or wrong, that was no likelier is a change
_AGAIN = 2  # nodes that count after one
_FOLLOW = 0.3  # share that is learnt of following tokens
_SHARE = 0.005  # of the time that may be lost on tries
_SAVED = 7.0  # tries that can be saved up for
_KEPT = 6.0  # of which so many must be there for one after another that was not lucky
_LOST = 0.1  # share of a try's seconds that are lost at least, however likely it is right
_LUCK = 2  # tries in a row that may go wrong after one that was right
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


class Ahead:
    """What decides the lengths of one device proposer's drafts.

    Attributes:
        times: what its drafts take.
        trying: whether what is drafted next does not pay, or nobody knows yet; then one request is enough.
        hopeful: whether a draft of one token may pay, if guesses are right a standard error more often than it seems.
    """

    def __init__(self, length: int, times: Mapping[int, float] | None = None, chances: Sequence[float] = ()) -> None:
        """Begin with drafts of at most `length` tokens, and with what is known of their times and acceptance."""
        known = len(chances[:length])
        # At each depth, given that the parent is accepted; and the nodes that each rests on.
        self._chances = [*chances[:length], *[_PRIOR] * (length - known)]
        self._weights = [float(_ENOUGH)] * known + [float(_FEW)] * (length - known)
        self._runs = [(True, 1.0)] * length  # of guesses alike, and how likely it was
        self.times = DraftTimes(times)
        self._saved: float | None = None  # seconds that may be lost; None before a try has a price
        self._pays, self.trying, self.hopeful = False, False, True
        self._answers = dict[tuple[int, int, int], tuple[int, float, list[float]]]()  # of `_best`
        self._table: Sequence[float] = ()  # for which those are
        self._count = 0  # requests to draft for
        self._news, self._asked = True, 0
        self._nodes: dict[int, float] = {}  # verified of drafts by their length, as far as that is known
        self._follow = 0.0  # seconds of following a token that the proposer is behind
        self._luck = 0  # tries that may go wrong before they are saved up for again

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
        at_best = self._chances[0] + (self._chances[0] * (1 - self._chances[0]) / self._weights[0]) ** 0.5
        self.hopeful = best > 0 or self._weights[0] < _ENOUGH
        if not self.hopeful:
            one = [at_best], count, step.requests, step.table, paced, step.more
            self.hopeful = best_draft(*one)[0] > 0
        return saving

    def next_length(
        self,
        most: int,
        count: int,
        step: Step,
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
            behind: tokens that the proposer has to follow first, of the request of which they are fewest.
            rerun: seconds that the target takes to run tokens of it once more.
            passed: steps since this was asked last.
            ready: whether any request is worth following what the proposer is behind; if not, all it does is tries.
        """
        self.trying = False
        if most < 1 or count < 1:
            return 0
        if not self.times.known:
            self.trying = True
            return min(most, _FIRST)
        self._asked, self._count = self._asked + 1, count
        best, _, times = self._best(most, count, step)
        best *= ready
        self._pays = best > 0
        plain = step.seconds(0)
        further, catching_up = min(best + 1, most), 0.0
        price = times[further] - times[best]
        if not best:
            self.trying = True
            self._weights = [min(weight, _ENOUGH) for weight in self._weights]
            if self._weights[0] < _ENOUGH:
                return further
            # Following what it lacks is paid for once, guesses after that are cheap; and of a guess no more is lost
            # than what it is not worth.
            catching_up = self._follow * behind / step.pace + rerun
            worth = self._chances[0] * plain / step.requests
            price = max(price + step.seconds(1) - plain - worth, _LOST * price)
        if self._saved is None:
            self._saved = catching_up + price
        else:
            self._saved = min(self._saved + _SHARE * plain * passed, catching_up + _SAVED * price)
        if further > best and self._saved >= catching_up + price * (1.0 if self._luck else _KEPT):
            self._saved -= catching_up + price
            if catching_up > price:
                self._luck = max(self._luck, _LUCK)
            return further
        return best

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
            asked = self._believed(), count, step.requests, step.table, paced, step.more, factor, nodes
            found = self._answers[most, count, step.requests] = (*best_draft(*asked), paced)
        return found

    @property
    def chances(self) -> list[float]:
        """How often a guess at depth 1, 2, ... was right, given that its parent was, as far as that is known."""
        return [chance for chance, weight in zip(self._chances, self._weights, strict=True) if weight >= _ENOUGH]

    @property
    def gain(self) -> float:
        """Tokens that the longest draft is expected to add."""
        gain, survival = 0.0, 1.0
        for chance in self._believed():
            survival *= chance
            gain += survival
        return gain

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
        self._luck = _LUCK if all(levels) else max(self._luck - 1, 0)
        for level, right in enumerate(levels[: len(self._chances)]):
            chance = self._chances[level] = self._believed()[level]
            before, likely = self._runs[level]
            likely = (likely if right == before else 1.0) * (chance if right else 1 - chance)
            self._runs[level] = right, likely
            known = self._weights[level] if likely > _UNLIKELY else min(self._weights[level], _AGAIN)
            weight = self._weights[level] = min(known + 1, _MANY if self._pays else _ENOUGH)
            self._chances[level] = chance + (right - chance) / weight

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

    def _believed(self) -> list[float]:
        """Return the acceptance of nodes at each depth, of those that were never judged by their parents'."""
        found: list[float] = []
        for chance, weight in zip(self._chances, self._weights, strict=True):
            unseen = found and weight <= _FEW
            found.append(max(chance, _DEEPER * found[-1]) if unseen else chance)
        return found

    def _verified(self, length: int) -> float:
        """Return how many nodes of a draft of some length are verified: as is known of one as long, or nearly."""
        shorter = max((known for known in self._nodes if known <= length), default=0)
        longer = min((known for known in self._nodes if known > length), default=0)
        if not shorter and longer:
            return max(self._nodes[longer] * length / longer, length)
        return max(self._nodes.get(shorter, 0.0), shorter) + length - shorter
