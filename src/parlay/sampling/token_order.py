"""The one total order of tokens: higher logit first, then lower id."""

import numpy as np
from numpy.typing import NDArray


def largest(scores: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Return the ids of the `count` first tokens in the total order.

    Selects before sorting, since most callers want few of many.

    Args:
        scores: `[vocab]`, no NaN.
        count: number of ids; more than there are gives all.
    """
    if count >= scores.size:
        return np.argsort(-scores, kind="stable")
    threshold = np.partition(scores, scores.size - count)[scores.size - count]
    candidates = np.flatnonzero(scores >= threshold)  # ascending ids, so that a stable sort breaks ties by id
    return candidates[np.argsort(-scores[candidates], kind="stable")][:count]


def rank(scores: NDArray[np.float32], token: int) -> int:
    """Return the place of `token` in the total order, 1 for the first."""
    score = scores[token]
    return 1 + int(np.count_nonzero(scores > score)) + int(np.count_nonzero(scores[:token] == score))
