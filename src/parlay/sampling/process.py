"""From raw logits to the distribution that a token is drawn from.

Order: temperature, min-p, top-k, top-p. Each row is processed alone, so its result depends on nothing else.
"""

import numpy as np
from numpy.typing import NDArray

from parlay.sampling.order import largest
from parlay.types.params import SamplingParams

_FIRST_GUESS = 128


def process(logits: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float32]:
    """Return scores `[vocab]`: logits over temperature, `-inf` where a filter removes the token.

    Args:
        logits: `[vocab]`; NaN counts as `-inf`.
        params: with a temperature above 0.
    """
    scores: NDArray[np.float32] = logits / np.float32(params.temperature)
    scores[np.isnan(scores)] = -np.inf
    if not params.filters:
        return scores
    kept = _kept(scores, params)
    filtered = np.full_like(scores, -np.inf)
    filtered[kept] = scores[kept]
    return filtered


def _kept(scores: NDArray[np.float32], params: SamplingParams) -> NDArray[np.int64]:
    """Return the ids that survive the filters, in the total order."""
    best = scores.max()
    if np.isinf(best):
        return largest(scores, 1)  # no distribution to speak of
    weights = np.exp((scores - best).astype(np.float64))
    limit = params.top_k if params.top_k > 0 else scores.size
    if params.min_p > 0:
        limit = min(limit, int(np.count_nonzero(weights >= params.min_p)))
    limit = max(min(limit, scores.size), 1)
    if params.top_p >= 1:
        return largest(scores, limit)
    # The nucleus is usually small: sort a few of the best tokens, and more only while they do not suffice. What
    # survives does not depend on how many are looked at, since a running sum over a prefix is its own prefix.
    total = weights.sum() if limit == scores.size else weights[largest(scores, limit)].sum()
    looked_at = min(limit, _FIRST_GUESS)
    while True:
        order = largest(scores, looked_at)
        reached = np.cumsum(weights[order]) >= params.top_p * total
        if reached.any():
            return order[: int(reached.argmax()) + 1]
        if looked_at == limit:
            return order
        looked_at = min(limit, looked_at * 8)
