"""How likely a node is to be accepted, learnt from earlier nodes.

Most proposers are overconfident, each in its own way, and some give no probabilities. For each source of nodes, with
greedy and sampled requests apart, a logistic model maps the proposer's estimate of a node to how often such nodes are
accepted once their parent is:

    log-odds = slope * (the proposer's own log-odds, 0 if it gave none) + intercept + what the node's depth adds

Nodes below a rejected one are never judged and are not learnt from, so draft lengths do not bias the result, as they
do accepted / drafted. The probabilities decide how much is drafted, never which tokens come out.

The model is that of vLLM's adaptive verification, with the same prior. A depth's offset from the common intercept is
regularised, so that shallow nodes also inform deep ones, of which few are ever reached.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from parlay.acceptance.tree import depths
from parlay.types.draft import ROOT, Draft
from parlay.types.params import DrawParams, SamplingParams
from parlay.types.plan import Verdict

DEPTHS = 8  # deeper nodes count as this one: few are reached, and their acceptance is much alike
_SURE = 0.99  # a proposer's estimates are clipped here: beyond, they tell little (counts of 1 of 1, for example)
_LIMIT = 7.0  # log-odds; no estimate is nearer to 0 or 1 than .001

# Prior of slope, intercept and depths; vLLM's: an estimate of .5 becomes .45, and log-odds are halved.
_PRIOR = np.array([0.5, -0.2] + [0.0] * DEPTHS)
# Of a node with likelier siblings before it, which must be wrong: a second child's worth has to be shown.
_LATER = np.array([0.5, -2.0] + [0.0] * DEPTHS)
# How firmly the prior is held, in the unit of the Hessian: a judged node at even odds adds a quarter. The intercept
# gives way within a few nodes, a depth's offset within two dozen.
_RIDGE = np.array([1.0, 0.5] + [1.0] * DEPTHS)

# The following were chosen on recordings of `suffix`, `ngram` and `draft_model` with tiny-code, by the nodes' log
# loss, as long as a change of acceptance is still followed within 200 nodes.
_FIRST, _EVERY = 8, 64  # judged nodes between refinements, at first and, after some doublings, at last
_DECAY = 0.8  # factor on the weight of earlier nodes after so many: about 300 nodes count
_WINDOW = 768  # most nodes kept; earlier ones would weigh a fifteenth, or stem from a few large steps
# Sums that far from the expected are no drift but a change, after which little of the past is kept.
_SURPRISE = 5.0  # standard deviations
_FORGET = 0.1
_STRIDE = 2.0  # most log-odds that one refinement moves an estimate: far from the optimum Newton's method overshoots


class Calibration:
    """What is known about the nodes of every source; one object for all requests and proposers of an engine.

    Attributes:
        step: of the engine, by which pauses are counted.
    """

    def __init__(self, pause: int = 0) -> None:
        """Begin with nothing learnt; once much is, a source's model is refined at most once in `pause` steps."""
        self.step = 0
        self._pause = pause
        # By source, whether sampled, and whether siblings come before.
        self._models: dict[tuple[str, bool, bool], _Model] = {}

    def apply(self, draft: Draft, params: DrawParams | SamplingParams, least: float = 0.0) -> Draft:
        """Return a draft with a calibrated probability on every node, strictly between 0 and 1.

        Args:
            draft: the proposer's, with its own estimates if it has any.
            params: of the request that it is for.
            least: a chain of one source ends where the probability to be accepted falls below, after at least a node.
        """
        if not draft.tokens:
            return draft
        odds = (0.0,) * len(draft) if draft.probs is None else tuple(map(log_odds, draft.probs))
        if draft.source.count(draft.source[0]) == len(draft) and draft.is_chain:
            model = self._model(draft.source[0], params.temperature > 0)
            self._refine(model)
            probs = tuple(model.estimates(odds, least))
            n = len(probs)
            q = draft.q and draft.q[:n]
            return Draft(draft.tokens[:n], draft.parents[:n], draft.source[:n], probs, q, odds[:n])
        return self.estimate(Draft(draft.tokens, draft.parents, draft.source, None, draft.q, odds), params)

    def estimate(self, draft: Draft, params: DrawParams | SamplingParams) -> Draft:
        """Return a draft, of whose nodes the proposers' log-odds are known, with calibrated probabilities.

        A node with siblings before it can be accepted only where these are rejected; its model says how often it then
        is.
        """
        assert draft.odds is not None
        sampled, taken = params.temperature > 0, dict[int, float]()
        probs = []
        for source, odds, depth, parent in zip(draft.source, draft.odds, depths(draft), draft.parents, strict=True):
            model = self._model(source, sampled, parent in taken)
            self._refine(model)
            before = taken.get(parent, 0.0)
            probs.append((1 - before) * model.estimate(odds, depth))
            taken[parent] = before + probs[-1]
        return Draft(draft.tokens, draft.parents, draft.source, tuple(probs), draft.q, draft.odds)

    def observe(
        self, draft: Draft, verdict: Verdict, params: DrawParams | SamplingParams, *, joined: bool = False
    ) -> list[tuple[int, bool]]:
        """Learn from what became of a draft, or would have become of it had it been verified.

        Args:
            draft: one that `apply` has returned.
            verdict: the target's, whose path goes along this draft.
            params: as for `apply`.
            joined: whether it is a union of drafts that are learnt from one by one, so that nodes without siblings
                before them are not learnt from again.

        Returns:
            The nodes that the target judged, and whether each was accepted.
        """
        if draft.probs is None or draft.odds is None:
            return []
        # The target chose a token after the root and each accepted node, unless the request ended at the last.
        path, tokens = verdict.path, len(verdict.tokens)
        judged: list[tuple[int, bool]] = []
        sampled = params.temperature > 0
        if draft.is_chain:
            for node in range(min(len(draft), len(path) + 1, tokens)):
                accepted = node < len(path)
                if not joined:
                    self._model(draft.source[node], sampled).observe(draft.odds[node], node + 1, accepted)
                judged.append((node, accepted))
            return judged
        parents = (ROOT, *path)[:tokens]
        settled: dict[int, bool] = {}  # whether one of the children so far was accepted
        for node, depth in enumerate(depths(draft)):
            parent = draft.parents[node]
            if parent in parents:
                accepted, later, over = node in path, parent in settled, settled.get(parent, False)
                if not over and (later or not joined):
                    self._model(draft.source[node], sampled, later).observe(draft.odds[node], depth, accepted)
                settled[parent] = over or accepted
                judged.append((node, accepted))
        return judged

    def _model(self, source: str, sampled: bool, later: bool = False) -> "_Model":
        key = source, sampled, later
        found = self._models.get(key)
        if found is None:
            found = self._models[key] = _Model(_LATER if later else _PRIOR)
        return found

    def _refine(self, model: "_Model") -> None:
        """Refine a model if it is time: here and not sooner, so that a step's nodes are learnt from together."""
        if model.due and self.step >= model.wake:
            model.wake = self.step + (self._pause if model.grown else 0)
            model.refine()


class _Model:
    """One source's nodes under one kind of request. Depths begin at 1.

    Attributes:
        wake: the step from which on it may be refined.
    """

    def __init__(self, prior: NDArray[np.float64] = _PRIOR) -> None:
        """Begin with `prior` weights."""
        self.wake = 0
        self._prior = self._weights = prior
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
        """Whether it knows enough to be refined less often."""
        return self._every == _EVERY

    def estimate(self, odds: float, depth: int) -> float:
        """Return how likely a node is to be accepted, given its proposer's log-odds."""
        sure = self._slope * odds + self._intercepts[min(depth, DEPTHS) - 1]
        return 1 / (1 + exp(-max(-_LIMIT, min(sure, _LIMIT))))

    def estimates(self, odds: Sequence[float], least: float = 0.0) -> list[float]:
        """Return the same for the nodes of a chain, up to where the probability to reach one falls below `least`."""
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
        """Record a judged node."""
        self._judged.append((odds, min(depth, DEPTHS), accepted))

    def refine(self) -> None:
        """Take one Newton step towards the weights that explain the nodes in memory best."""
        odds, depth, accepted = np.array(self._judged).T
        rows = np.zeros((len(odds), len(_PRIOR)))
        rows[:, 0], rows[:, 1] = odds, 1
        rows[np.arange(len(rows)), 1 + depth.astype(int)] = 1
        likely = _sigmoid(rows @ self._weights)
        surprise = abs((accepted - likely).sum()) > _SURPRISE * (likely * (1 - likely)).sum() ** 0.5
        worth = self._worth * (_FORGET if surprise else _DECAY ** (len(rows) / _EVERY))
        rows = np.concatenate([self._rows, rows])[-_WINDOW:]
        accepted = np.concatenate([self._accepted, accepted])[-_WINDOW:]
        worth = np.concatenate([worth, np.ones(len(odds))])[-_WINDOW:]

        likely = _sigmoid(rows @ self._weights)
        gradient = rows.T @ (worth * (accepted - likely)) - _RIDGE * (self._weights - self._prior)
        curvature = (rows.T * (worth * likely * (1 - likely))) @ rows + np.diag(_RIDGE)
        move = np.linalg.solve(curvature, gradient)
        weights = self._weights + move * (_STRIDE / max(np.abs(rows @ move).max(), _STRIDE))
        # Only now, and all at once: an error or an interrupt before leaves everything as it was.
        self._rows, self._accepted, self._worth, self._weights = rows, accepted, worth, weights
        self._every, self._judged = min(2 * self._every, _EVERY), []
        self._unfold()

    def _unfold(self) -> None:
        """Keep the weights as Python numbers, which are faster one by one."""
        self._slope, common, *depth = self._weights.tolist()
        self._intercepts = [common + own for own in depth]


@lru_cache(1 << 14)  # ratios of counts take few values
def log_odds(prob: float) -> float:
    """Return the log-odds of a proposer's estimate, clipped; 0 for what is no probability."""
    if not 0 <= prob <= 1:  # broken weights may give anything
        return 0.0
    prob = min(max(prob, 1 - _SURE), _SURE)
    return log(prob / (1 - prob))


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-x)))
