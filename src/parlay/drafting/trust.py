"""Whether drafts that look promising are accepted as often as they promise.

Each node has a calibrated probability, right on average. But of several drafts the one that promises most is taken,
and verified only if it promises enough: that selects drafts whose probabilities happen to be too high. So promising
drafts are counted apart, verified or not, and what the next ones promise is scaled down by how many were accepted.
"""

from collections import defaultdict
from collections.abc import Sequence

_PRIOR = 4.0  # nodes, as many accepted as expected
_LATELY = 128.0  # nodes that count, about


class Trust:
    """How far each source's probabilities are to be trusted, for greedy and for sampled requests."""

    def __init__(self) -> None:
        self._sums: defaultdict[tuple[str, bool], list[float]] = defaultdict(lambda: [_PRIOR, _PRIOR])

    def factor(self, source: str, sampled: bool) -> float:
        """Return the factor for a draft's expected tokens, at most 1."""
        promised, right = self._sums[source, sampled]
        return min(right / promised, 1.0)

    def observe(self, source: str, sampled: bool, judged: Sequence[tuple[float, bool]]) -> None:
        """Record the judged nodes of a promising draft: the probability of each, and whether it was accepted."""
        sums, keep = self._sums[source, sampled], max(1 - len(judged) / _LATELY, 0.0)
        sums[0] = keep * (sums[0] - _PRIOR) + sum(prob for prob, _ in judged) + _PRIOR
        sums[1] = keep * (sums[1] - _PRIOR) + sum(right for _, right in judged) + _PRIOR
