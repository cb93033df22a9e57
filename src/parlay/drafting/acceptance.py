"""How often a device proposer's nodes are accepted, by depth, given that the parent was.

Two estimates are kept for each depth: a recent one, which follows a change within a few dozen nodes, and a long-term
one. The recent estimate is used, smoothed by the other: a few rejected nodes do not end drafting that has paid
for thousands of tokens. The next run starts from the long-term estimate.
"""

from collections.abc import Sequence

_PRIOR = 0.6  # acceptance of a node before anything is known
_DEEPER = 0.95  # of its parent's acceptance, where that is more: an accepted node's child is nearly as often accepted
_FEW, _MANY = 4, 50  # nodes that the recent estimate rests on, at first and at most
_ENOUGH = 16  # with fewer nodes nothing is given up; while nothing pays no more count, so that a change is seen
_UNLIKELY = 0.0005  # a run of accepted, or of rejected, nodes that was no likelier than this is a change
_AGAIN = 2  # nodes that count after a change
_LONG = 500  # most nodes that the long-term estimate rests on
_HELD = 50  # most nodes that the long-term estimate counts for in the one that is used


class Acceptance:
    """What is known of one proposer's nodes at depth 1, 2, ...; it knows nothing of requests or time."""

    def __init__(self, length: int, known: Sequence[float] = ()) -> None:
        """Begin with drafts of at most `length` tokens, and with an earlier run's long-term estimates."""
        seen = len(known[:length])
        self._now = [*known[:length], *[_PRIOR] * (length - seen)]
        self._weights = [float(_ENOUGH)] * seen + [float(_FEW)] * (length - seen)  # nodes that each rests on
        self._all = list(self._now)
        self._counts = [float(_HELD)] * seen + [0.0] * (length - seen)
        self._runs = [(True, 1.0)] * length  # of equal outcomes, and how likely the run was

    @property
    def enough(self) -> bool:
        """Whether enough is known to give up drafting."""
        return self._weights[0] >= _ENOUGH

    @property
    def known(self) -> list[float]:
        """The long-term estimates, for the depths at which enough nodes were judged to tell the next run.

        That is as soon as drafting may be given up, or every run would have to find out anew.
        """
        enough = _ENOUGH - _FEW
        return [chance for chance, count in zip(self._all, self._counts, strict=True) if count >= enough]

    def believed(self) -> list[float]:
        """Return the expected acceptance of the next nodes; where a depth was never reached, from its parent's."""
        found: list[float] = []
        estimates = zip(self._now, self._weights, self._all, self._counts, strict=True)
        for chance, weight, whole, count in estimates:
            held = min(count, _HELD)
            own = (chance * weight + whole * held) / (weight + held)
            found.append(max(own, _DEEPER * found[-1]) if found and weight <= _FEW else own)
        return found

    def at_best(self) -> list[float]:
        """Return the same, one standard error higher."""
        known = zip(self.believed(), self._weights, strict=True)
        return [min(chance + (chance * (1 - chance) / weight) ** 0.5, 1.0) for chance, weight in known]

    def doubt(self) -> None:
        """Rest on few nodes while nothing seems to pay: the text may have changed meanwhile."""
        self._weights = [min(weight, _ENOUGH) for weight in self._weights]

    def judged(self, levels: Sequence[bool], *, pays: bool) -> None:
        """Learn whether nodes at depth 1, 2, ... were accepted, as far as they were judged.

        Where drafts do not seem to pay, few are made, and the latest count more.
        """
        for level, right in enumerate(levels[: len(self._now)]):
            if self._weights[level] <= _FEW:
                self._now[level] = self.believed()[level]
            chance = self._now[level]
            before, likely = self._runs[level]
            likely = (likely if right == before else 1.0) * (chance if right else 1 - chance)
            self._runs[level] = right, likely
            weight = self._weights[level] if likely > _UNLIKELY else min(self._weights[level], _AGAIN)
            weight = self._weights[level] = min(weight + 1, _MANY if pays else _ENOUGH)
            self._now[level] = chance + (right - chance) / weight
            count = self._counts[level] = min(self._counts[level] + 1, _LONG)
            self._all[level] += (right - self._all[level]) / count
