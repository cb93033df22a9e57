"""How likely a guessed token is to be accepted, learnt from what became of earlier ones.

Most proposers overrate themselves, each in its own way, and some say nothing at all. For each source of nodes, greedy
and sampled requests apart, a logistic model turns what the proposer thinks of a node into how often such nodes are
accepted once their parent is:

    log-odds = slope * (the proposer's own log-odds, 0 if it gave none) + intercept + what the node's depth adds

Nodes below a rejected one are never judged and teach nothing. So what is learnt does not depend on how long drafts
are, as accepted / drafted would. Probabilities steer how much is drafted, never which tokens come out.

The model is that of vLLM's adaptive verification, and begins where its does. Depths differ from a common intercept
only as far as they have shown to, so that shallow nodes teach about deep ones, of which few are ever reached.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from parlay.types.draft import ROOT, Draft
from parlay.types.params import SamplingParams
from parlay.types.plan import Verdict
from parlay.verify.tree import depths

DEPTHS = 8  # deeper nodes count as the last of these: few are reached, and those are much alike
_SURE = 0.99  # a proposer's estimates are taken no further: beyond, they tell little (counts of 1 of 1, for example)
_LIMIT = 7.0  # log-odds; no estimate is nearer to 0 or 1 than .001

# Slope, intercept and depths before anything is known; vLLM's: even odds are .45, and certainty is halved.
_PRIOR = np.array([0.5, -0.2] + [0.0] * DEPTHS)
# How firmly each is held, in the unit of the Hessian: a judged node at even odds adds a quarter. The intercept gives
# way within a few nodes, a depth's own share within two dozen.
_RIDGE = np.array([1.0, 0.5] + [1.0] * DEPTHS)

# The following were chosen on records of `suffix`, `ngram` and `draft_model` with tiny-code, by how well each node
# was foretold (log loss), so far as a change of acceptance is still followed within 200 nodes.
_FIRST, _EVERY = 8, 64  # judged nodes between refinements, at first and, when that has doubled often enough, at last
_DECAY = 0.8  # what so many nodes leave of the weight of earlier ones: about 300 nodes count
_WINDOW = 768  # most nodes kept; those before would count a fifteenth, or be of a few large steps ago
# Sums that far from what was expected are no drift but a change, after which little of the past is worth keeping.
_SURPRISE = 5.0  # standard deviations
_FORGET = 0.1
_STRIDE = 2.0  # log-odds that a refinement moves an estimate at most: far from its aim, Newton's method overshoots


class Calibration:
    """What is known about the nodes of every source: one for all requests and proposers of an engine.

    Attributes:
        step: of the engine, by which pauses are counted.
    """

    def __init__(self, pause: int = 0) -> None:
        """Begin with nothing learnt; once much is, a source's model is refined at most once in so many steps."""
        self.step = 0
        self._pause = pause
        self._models: defaultdict[tuple[str, bool], _Model] = defaultdict(_Model)

    def apply(self, draft: Draft, params: SamplingParams, least: float = 0.0) -> Draft:
        """Return a draft with a calibrated probability on every node, strictly between 0 and 1.

        Args:
            draft: the proposer's, with its own estimates if it has any.
            params: of the request that it is for.
            least: a chain of one source ends before a node that is less likely to be accepted, but for the first.
        """
        if not draft.tokens:
            return draft
        odds = (0.0,) * len(draft) if draft.probs is None else tuple(map(log_odds, draft.probs))
        if draft.source.count(draft.source[0]) == len(draft) and draft.is_chain:
            model = self._models[draft.source[0], params.temperature > 0]
            self._refine(model)
            probs = tuple(model.estimates(odds, least))
            n = len(probs)
            return Draft(draft.tokens[:n], draft.parents[:n], draft.source[:n], probs, draft.q, odds[:n])
        models = self._models_of(draft, params)
        for model in models.values():
            self._refine(model)
        nodes = zip(draft.source, odds, depths(draft), strict=True)
        probs = tuple(models[source].estimate(own, depth) for source, own, depth in nodes)
        return Draft(draft.tokens, draft.parents, draft.source, probs, draft.q, odds)

    def observe(self, draft: Draft, verdict: Verdict, params: SamplingParams) -> list[tuple[int, bool]]:
        """Learn from what became of a draft, or would have become of it had it been verified.

        Args:
            draft: one that `apply` has returned.
            verdict: the target's, whose path goes along this draft.
            params: as for `apply`.

        Returns:
            The nodes that the target judged, and whether each was accepted.
        """
        if draft.probs is None or draft.odds is None:
            return []
        # The target chose a token after the root and each accepted node, unless the request ended at the last.
        path, tokens = verdict.path, len(verdict.tokens)
        models, judged = self._models_of(draft, params), []
        if draft.is_chain:
            for node in range(min(len(draft), len(path) + 1, tokens)):
                models[draft.source[node]].observe(draft.odds[node], node + 1, node < len(path))
                judged.append((node, node < len(path)))
            return judged
        parents = (ROOT, *path)[:tokens]
        for node, depth in enumerate(depths(draft)):
            if draft.parents[node] in parents:
                accepted = node in path
                models[draft.source[node]].observe(draft.odds[node], depth, accepted)
                judged.append((node, accepted))
        return judged

    def _refine(self, model: "_Model") -> None:
        """Refine a model if it is time: here and not sooner, so that a step's nodes are learnt from together."""
        if model.due and self.step >= model.wake:
            model.wake = self.step + (self._pause if model.grown else 0)
            model.refine()

    def _models_of(self, draft: Draft, params: SamplingParams) -> dict[str, "_Model"]:
        sampled = params.temperature > 0
        return {source: self._models[source, sampled] for source in set(draft.source)}


class _Model:
    """One source's nodes under one kind of request. Depths begin at 1.

    Attributes:
        wake: the step from which on it may be refined.
    """

    def __init__(self) -> None:
        self.wake = 0
        self._weights = _PRIOR
        self._rows = np.zeros((0, len(_PRIOR)))  # of each node kept: what its weights are multiplied by
        self._accepted = np.zeros(0)
        self._worth = np.zeros(0)
        self._judged: list[tuple[float, int, bool]] = []  # since the last refinement
        self._every = _FIRST
        self._unfold()

    @property
    def due(self) -> bool:
        """Whether enough nodes were judged since it was refined."""
        return len(self._judged) >= self._every

    @property
    def grown(self) -> bool:
        """Whether it knows enough to be refined more seldom."""
        return self._every == _EVERY

    def estimate(self, odds: float, depth: int) -> float:
        """Return how likely a node is to be accepted, given its proposer's log-odds."""
        sure = self._slope * odds + self._intercepts[min(depth, DEPTHS) - 1]
        return 1 / (1 + exp(-max(-_LIMIT, min(sure, _LIMIT))))

    def estimates(self, odds: Sequence[float], least: float = 0.0) -> list[float]:
        """Return the same for the nodes of a chain, as far as one is as likely to be reached and accepted."""
        slope, intercepts, last = self._slope, self._intercepts, DEPTHS - 1
        found: list[float] = []
        survival = 1.0
        for place, own in enumerate(odds):
            sure = slope * own + intercepts[place if place < last else last]
            prob = 1 / (1 + exp(-sure if -_LIMIT < sure < _LIMIT else -_LIMIT if sure > 0 else _LIMIT))
            survival *= prob
            if survival < least and found:
                break
            found.append(prob)
        return found

    def observe(self, odds: float, depth: int, accepted: bool) -> None:
        """Take note of a judged node."""
        self._judged.append((odds, min(depth, DEPTHS), accepted))

    def refine(self) -> None:
        """Go one Newton step towards the weights that explain best what is remembered."""
        odds, depth, accepted = np.array(self._judged).T
        self._judged.clear()
        self._every = min(2 * self._every, _EVERY)
        rows = np.zeros((len(odds), len(_PRIOR)))
        rows[:, 0], rows[:, 1] = odds, 1
        rows[np.arange(len(rows)), 1 + depth.astype(int)] = 1
        likely = _sigmoid(rows @ self._weights)
        surprise = abs((accepted - likely).sum()) > _SURPRISE * (likely * (1 - likely)).sum() ** 0.5
        self._rows = np.concatenate([self._rows, rows])[-_WINDOW:]
        self._accepted = np.concatenate([self._accepted, accepted])[-_WINDOW:]
        worth = self._worth * (_FORGET if surprise else _DECAY ** (len(rows) / _EVERY))
        self._worth = np.concatenate([worth, np.ones(len(rows))])[-_WINDOW:]

        likely = _sigmoid(self._rows @ self._weights)
        gradient = self._rows.T @ (self._worth * (self._accepted - likely)) - _RIDGE * (self._weights - _PRIOR)
        curvature = (self._rows.T * (self._worth * likely * (1 - likely))) @ self._rows + np.diag(_RIDGE)
        move = np.linalg.solve(curvature, gradient)
        self._weights = self._weights + move * (_STRIDE / max(np.abs(self._rows @ move).max(), _STRIDE))
        self._unfold()

    def _unfold(self) -> None:
        """Keep the weights as numbers of Python's own, which are faster one by one."""
        self._slope, common, *depth = self._weights.tolist()
        self._intercepts = [common + own for own in depth]


@lru_cache(1 << 14)  # counts have few ratios
def log_odds(prob: float) -> float:
    """Return the log-odds of a proposer's estimate, within reason; 0 for what is no probability."""
    if not 0 <= prob <= 1:  # a sick target's states may hold anything
        return 0.0
    prob = min(max(prob, 1 - _SURE), _SURE)
    return log(prob / (1 - prob))


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-x)))
