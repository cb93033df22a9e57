"""How long a device proposer's next drafts may be: its guesses are made before anybody can say what they are worth.

Known are what drafting so many tokens takes, and how often a guess at each depth was right, given that the one before
it was. Both are learnt from drafts alone, so now and then one is made that does not seem to pay, and one that is a
token longer than seems best. A small share of the time is saved up for that and spent on nothing else: what has
never paid costs no more than this, and where a try is lucky there is enough saved for the next few at once.
"""

from collections.abc import Mapping, Sequence

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
_LUCK = 2  # tries in a row that may go wrong after one that was right
_NODES = 0.1  # share that a draft's nodes take in what is known of their number
_ANEW = 16  # steps after which the best length is found anew, though nothing but the pace has changed
_FIRST = 1  # tokens drafted until it is known what these take


class Ahead:
    """What decides the lengths of one device proposer's drafts.

    Attributes:
        times: what its drafts take.
        trying: whether what is drafted next does not pay, or nobody knows yet; then one request is enough.
        hopeful: whether a draft of one token may pay, if guesses are right a standard error more often than it seems.
        saving: share of the time that drafts of the best length are expected to save.
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
        self._pays, self.trying, self.hopeful, self.saving = False, False, True, 0.0
        self._question: object = None  # for which the best length was found last
        self._table: Sequence[float] = ()
        self._count = 0  # requests to draft for
        self._best, self._paced, self._news, self._asked = 0, [0.0], True, 0
        self._nodes: dict[int, float] = {}  # verified of drafts by their length, as far as that is known
        self._follow = 0.0  # seconds of following a token that the proposer is behind
        self._luck = 0  # tries that may go wrong before they are saved up for again

    def next_length(
        self,
        most: int,
        count: int,
        requests: int,
        table: Sequence[float],
        more: float,
        pace: float,
        margin: float,
        behind: int = 0,
        rerun: float = 0.0,
        passed: int = 1,
    ) -> int:
        """Return how many tokens to draft at the end of this step for the next.

        Args:
            most: tokens.
            count: requests to draft for.
            requests: that will emit.
            table: seconds of a step by rows, at the usual pace.
            more: seconds of the step beside the table.
            pace: how much longer than usual steps take now.
            margin: factor in goodput for which drafting is begun; what runs goes on as long as it gains anything.
            behind: tokens that the proposer has to follow first, of the request of which they are fewest.
            rerun: seconds that the target takes to run tokens of it once more.
            passed: steps since this was asked last.
        """
        self.trying = False
        if most < 1 or count < 1:
            return 0
        if not self.times.known:
            self.trying = True
            return min(most, _FIRST)
        question = most, count, requests
        self._asked, self._count = self._asked + 1, count
        if self._news or question != self._question or table is not self._table or self._asked % _ANEW == 0:
            self._question, self._table, self._news = question, table, False
            self._paced = [seconds / pace for seconds in self.times.by_length(most, count)]
            factor = 1.0 if self._pays else margin
            nodes = [self._verified(length) for length in range(most + 1)]
            asked = self._believed(), count, requests, table, self._paced, more, factor, nodes
            self._best, self.saving = best_draft(*asked)
            at_best = self._chances[0] + (self._chances[0] * (1 - self._chances[0]) / self._weights[0]) ** 0.5
            one = [at_best], count, requests, table, self._paced, more
            self.hopeful = self._weights[0] < _ENOUGH or self._best > 0 or best_draft(*one)[0] > 0
        best, times = self._best, self._paced
        plain = table[min(requests, len(table) - 1)] + more
        self._pays = best > 0
        if best:
            further = min(best + 1, most)
            price = times[further] - times[best]
        else:
            further = 1
            price = times[further] + self._follow * behind / pace + rerun
            self.trying = True
            self._weights = [min(weight, _ENOUGH) for weight in self._weights]
            if self._weights[0] < _ENOUGH:
                return further
        self._saved = price if self._saved is None else min(self._saved + _SHARE * plain * passed, _SAVED * price)
        if further > best and self._saved >= price * (1.0 if self._luck else _KEPT):
            self._saved -= price
            return further
        return best

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
