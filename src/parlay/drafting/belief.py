"""How likely a draft token is to be accepted, given that its parent was: decayed counts of what became of others.

Draft tokens are counted by source (greedy and sampled requests apart, and later siblings apart), by depth and by the
proposer's own confidence. A cell with few counts leans on all depths of its confidence, and these on a prior: the
proposer's confidence, tempered, and scaled by how often the source has been right compared with it. For a device
proposer, whose drafts are planned before they exist, the counts by depth alone say what a draft is worth.

Tokens below a rejected one are never judged and not counted, so draft lengths do not bias the result, as they do
accepted / drafted. The probabilities decide how much is drafted, never which tokens come out.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import exp, log

from parlay.types.draft import ROOT, Draft
from parlay.types.draft_tree import depths
from parlay.types.params import DrawParams, SamplingParams
from parlay.types.plan import Verdict

DEPTHS = 8  # deeper tokens count as this one: few are reached, and their acceptance is much alike
# Log-odds that part the bins of confidence; 0 stands for proposers that give no probabilities.
_EDGES = (-2.0, -1.0, -0.5, -0.01, 0.01, 0.5, 1.0, 1.6, 2.4, 3.4, 4.4)
_CENTRES = (-2.7, -1.5, -0.75, -0.25, 0.0, 0.25, 0.75, 1.3, 2.0, 2.9, 3.9, 4.6)
_BINS = len(_CENTRES)
# The prior of a confidence: vLLM's adaptive verification halves log-odds too; a later sibling has to show its use.
_SLOPE, _FIRST, _LATER = 0.5, -0.2, -2.0
_FEW = 6.0  # draft tokens that a prior counts for
_MANY = 160.0  # draft tokens after which earlier ones fade
_DEEPER = 0.95  # prior of a depth that was never reached, as a share of the acceptance at the depth before
_START = 0.6  # acceptance at depth 1 of a device proposer of which nothing is known
ENOUGH = 16.0  # draft tokens after which a device proposer may be given up; and that count while it is off


class _Count:
    """How many draft tokens of one kind were judged, and how many of these were accepted."""

    __slots__ = ("accepted", "judged")

    def __init__(self) -> None:
        self.accepted = self.judged = 0.0

    def add(self, accepted: bool) -> None:
        if self.judged >= _MANY:
            self.limit(_MANY - 1)
        self.judged += 1
        self.accepted += accepted

    def limit(self, most: float) -> None:
        """Let no more than so many tokens count."""
        if self.judged > most:
            self.accepted *= most / self.judged
            self.judged = most

    def mean(self, prior: float) -> float:
        return (self.accepted + _FEW * prior) / (self.judged + _FEW)


class SourceBelief:
    """What is known of one source's draft tokens under one kind of request. Depths begin at 1."""

    def __init__(self, centre: float = _FIRST) -> None:
        self._prior = [_sigmoid(_SLOPE * odds + centre) for odds in _CENTRES]
        self._depths = [_Count() for _ in range(DEPTHS)]
        self._bins = [_Count() for _ in range(_BINS)]
        self._cells = [[_Count() for _ in range(_BINS)] for _ in range(DEPTHS)]
        self._right = self._expected = 0.0  # tokens, by the counts and by the prior

    @property
    def enough(self) -> bool:
        """Whether enough is known to give up drafting."""
        return self._depths[0].judged >= ENOUGH

    def estimate(self, odds: float, depth: int) -> float:
        """Return how likely a draft token is to be accepted, given its proposer's log-odds."""
        place = bisect_right(_EDGES, odds)
        prior = min(self._prior[place] * (self._right + _FEW) / (self._expected + _FEW), 0.999)
        chance = self._cells[min(depth, DEPTHS) - 1][place].mean(self._bins[place].mean(prior))
        return min(max(chance, 0.001), 0.999)

    def judge(self, odds: float, depth: int, accepted: bool) -> None:
        """Count a draft token that was judged."""
        place, level = bisect_right(_EDGES, odds), min(depth, DEPTHS) - 1
        self._cells[level][place].add(accepted)
        self._bins[place].add(accepted)
        keep = 1 - 1 / _MANY
        self._right = keep * self._right + accepted
        self._expected = keep * self._expected + self._prior[place]

    def reach(self, levels: Sequence[bool]) -> None:
        """Count a draft by depth: whether its best path was accepted at depth 1, 2, ..., as far as it was judged."""
        for count, accepted in zip(self._depths, levels, strict=False):
            count.add(accepted)

    def levels(self, length: int, deviations: float = 0.0) -> list[float]:
        """Return the expected acceptance at depth 1, 2, ..., so many standard errors above the mean."""
        found: list[float] = []
        before = _START / _DEEPER
        for count in self._depths[:length]:
            before = chance = count.mean(_DEEPER * before)
            found.append(min(chance + deviations * (chance * (1 - chance) / (count.judged + 1)) ** 0.5, 1.0))
        return found + found[-1:] * (length - len(found))

    def decay(self) -> None:
        """Forget all but the latest draft tokens while nothing seems to pay: the text may have changed meanwhile."""
        for count in self._depths:
            count.limit(ENOUGH)

    @property
    def known(self) -> list[list[float]]:
        """Accepted and judged tokens by depth, then by confidence, to start another run from."""
        return [[round(count.accepted, 2), round(count.judged, 2)] for count in (*self._depths, *self._bins)]

    def recall(self, known: Sequence[Sequence[float]]) -> None:
        """Start from another run's counts, which are reduced to a part."""
        for count, (accepted, judged) in zip((*self._depths, *self._bins), known, strict=False):
            count.accepted, count.judged = min(accepted, judged), judged
            count.limit(2 * ENOUGH)


class Belief:
    """What is known of every source; one object for all requests and proposers of an engine."""

    def __init__(self, known: Mapping[str, Sequence[Sequence[float]]] | None = None) -> None:
        """Start from an earlier run's counts by source."""
        self._sources: dict[tuple[str, bool, bool], SourceBelief] = {}
        for name, counts in (known or {}).items():
            source, sampled, later = (*name.split(" "), "", "")[:3]
            self.of(source, bool(sampled), bool(later)).recall(counts)

    @property
    def known(self) -> dict[str, list[list[float]]]:
        """The counts by source."""
        return {f"{name} {'sampled' * s} {'later' * i}": own.known for (name, s, i), own in self._sources.items()}

    def of(self, source: str, sampled: bool = False, later: bool = False) -> SourceBelief:
        """Return what is known of a source."""
        found = self._sources.get((source, sampled, later))
        if found is None:
            found = self._sources[source, sampled, later] = SourceBelief(_LATER if later else _FIRST)
        return found

    def apply(self, draft: Draft, params: DrawParams | SamplingParams, least: float = 0.0) -> Draft:
        """Return a draft with the probability of every token to be accepted, strictly between 0 and 1.

        Args:
            draft: the proposer's draft, with its own probabilities if it has any.
            params: sampling parameters of the request.
            least: probability of all its tokens below which a chain of one source is cut, behind its first token.
        """
        if not draft.tokens:
            return draft
        odds = (0.0,) * len(draft) if draft.probs is None else tuple(map(log_odds, draft.probs))
        if draft.is_chain and draft.source.count(draft.source[0]) == len(draft):
            source, probs, survival = self.of(draft.source[0], params.temperature > 0), list[float](), 1.0
            for depth, own in enumerate(odds, start=1):
                chance = source.estimate(own, depth)
                survival *= chance
                if survival < least and probs:
                    break
                probs.append(chance)
            n = len(probs)
            q = draft.q and draft.q[:n]
            return Draft(draft.tokens[:n], draft.parents[:n], draft.source[:n], tuple(probs), q, odds[:n])
        return self.estimate(Draft(draft.tokens, draft.parents, draft.source, None, draft.q, odds), params)

    def estimate(self, draft: Draft, params: DrawParams | SamplingParams) -> Draft:
        """Return a draft, of whose tokens the proposers' log-odds are known, with the probability of each.

        A token with siblings before it can be accepted only where these are rejected.
        """
        assert draft.odds is not None
        sampled, taken = params.temperature > 0, dict[int, float]()
        probs = []
        for source, odds, depth, parent in zip(draft.source, draft.odds, depths(draft), draft.parents, strict=True):
            before = taken.get(parent, 0.0)
            probs.append((1 - before) * self.of(source, sampled, parent in taken).estimate(odds, depth))
            taken[parent] = before + probs[-1]
        return Draft(draft.tokens, draft.parents, draft.source, tuple(probs), draft.q, draft.odds)

    def judge(
        self, draft: Draft, verdict: Verdict, params: DrawParams | SamplingParams, *, joined: bool = False
    ) -> list[tuple[int, bool]]:
        """Learn from the acceptance of a draft, or from what it would have been had it been verified.

        Args:
            draft: draft that `apply` has returned.
            verdict: the target's verdict, whose path goes along this draft.
            params: sampling parameters of the request.
            joined: whether it is a union of drafts that are learnt from one by one, so that tokens without siblings
                before them are not learnt from again.

        Returns:
            The nodes that the target judged, and whether each was accepted.
        """
        if draft.odds is None:
            return []
        # The target chose a token after the root and each accepted node, unless the request ended at the last.
        path, tokens, sampled = verdict.path, len(verdict.tokens), params.temperature > 0
        if draft.is_chain:
            judged = [(node, node < len(path)) for node in range(min(len(draft), len(path) + 1, tokens))]
            for node, accepted in () if joined else judged:
                self.of(draft.source[node], sampled).judge(draft.odds[node], node + 1, accepted)
            return judged
        judged, parents = [], (ROOT, *path)[:tokens]
        settled: dict[int, bool] = {}  # whether one of the children so far was accepted
        for node, depth in enumerate(depths(draft)):
            parent = draft.parents[node]
            if parent in parents:
                accepted, later, over = node in path, parent in settled, settled.get(parent, False)
                if not over and (later or not joined):
                    self.of(draft.source[node], sampled, later).judge(draft.odds[node], depth, accepted)
                settled[parent] = over or accepted
                judged.append((node, accepted))
        return judged


@lru_cache(1 << 14)  # ratios of counts take few values
def log_odds(prob: float) -> float:
    """Return the log-odds of a proposer's estimate, clipped; 0 for what is no probability."""
    if not 0 <= prob <= 1:  # broken weights may give anything
        return 0.0
    prob = min(max(prob, 0.001), 0.999)
    return log(prob / (1 - prob))


def _sigmoid(odds: float) -> float:
    return 1 / (1 + exp(-odds))


def survivals(draft: Draft) -> list[float]:
    """Return how likely each draft token is to be accepted with all before it, from the probabilities of `apply`."""
    found: list[float] = []
    for parent, prob in zip(draft.parents, draft.probs or (), strict=True):
        found.append(prob if parent < 0 else found[parent] * prob)
    return found
