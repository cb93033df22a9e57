"""How long a device proposer takes: to draft, and to process tokens that it is behind."""

from collections.abc import Mapping, Sequence
from math import exp, inf

from parlay.drafting.cost import LEAST, MOST

_FADES = 0.95  # weight of earlier drafts when one more was timed
_FADING = 1 / 720  # decay of the times of processed tokens per further token: 500 halve them
_LINE = 0.1  # square of the lengths' deviation from which on the slope of a draft's cost is the measured one
_DOUBLED = 2**0.5  # by what factor drafts for twice as many requests are expected to take longer


class DraftCost:
    """How long a device proposer's drafts take: a line in their length, at the usual pace, by number of requests.

    Numbers of requests are grouped by powers of two; one that was not seen yet is expected to cost what its nearest
    neighbour does, or a share more for each doubling.
    """

    def __init__(self, known: Mapping[int, Sequence[float]] | None = None) -> None:
        """Start from an earlier run's sums."""
        sums = {size: [*map(float, own)] for size, own in (known or {}).items() if own and min(own) > 0}
        # By size, decayed: how many drafts, and of these the sums of lengths, their squares, seconds, and products.
        self._sums = {size: own for size, own in sums.items() if size and len(own) == 5}
        self._begun = set[tuple[int, int]]()  # sizes and lengths whose first draft was seen, which records its passes
        followed = sums.get(0, [])
        # Decayed: tokens that the proposer processed behind the target, prompts among them, and seconds.
        self._followed = followed if len(followed) == 2 else [0.0, 0.0]
        self._followed_before = False  # whether any were processed in this run: the first time may compile code

    @property
    def timed(self) -> bool:
        """Whether any draft was timed."""
        return bool(self._sums)

    @property
    def known(self) -> dict[int, list[float]]:
        """The sums, to start another run from; under 0 those of processing tokens."""
        return self._sums | {0: self._followed}

    def observe_following(self, tokens: int, seconds: float, most: float = inf) -> None:
        """Record how long the proposer took to process tokens that it was behind.

        Args:
            tokens: number of tokens.
            seconds: time that it took.
            most: most seconds that count: a process may be stopped for a while.
        """
        first, self._followed_before = not self._followed_before, True
        if first or not -inf < seconds < inf:
            return
        kept, (known, spent) = exp(-_FADING * tokens), self._followed
        self._followed = [kept * known + tokens, kept * spent + max(min(seconds, most), 0.0)]

    def following(self, tokens: int) -> float:
        """Return the seconds that processing so many tokens takes; 0 while that is not known."""
        known, seconds = self._followed
        return seconds / known * tokens if known else 0.0

    def observe(self, length: int, count: int, seconds: float, *, typical: bool = True) -> None:
        """Record drafts of one length for so many requests; `typical`: whether their step recorded no pass."""
        size = count.bit_length()
        if not length or not LEAST < seconds < inf:
            return
        if (size, length) not in self._begun:
            self._begun.add((size, length))
            return
        sums = self._sums.get(size)
        if sums is None:
            sums = self._sums[size] = [0.0] * 5
        elif not typical:
            return
        else:
            usual = self._at(sums, length)
            seconds = min(max(seconds, usual / MOST), MOST * usual)
        for place, value in enumerate((1.0, length, length * length, seconds, length * seconds)):
            sums[place] = _FADES * sums[place] + value

    def by_length(self, most: int, count: int) -> list[float]:
        """Return seconds of drafting 0 to `most` tokens for so many requests."""
        size = count.bit_length()
        nearest = min(self._sums, key=lambda other: (abs(other - size), other))
        factor, sums = _DOUBLED ** (size - nearest), self._sums[nearest]
        return [factor * self._at(sums, length) if length else 0.0 for length in range(most + 1)]

    @staticmethod
    def _at(sums: Sequence[float], length: int) -> float:
        weight, x, xx, y, xy = sums
        mean, seconds = x / weight, y / weight
        # As far as lengths have not differed, a draft is taken to begin with the cost of one more token.
        usual = seconds / (mean + 1)
        slope = (xy / weight - mean * seconds + _LINE * usual) / (xx / weight - mean * mean + _LINE)
        slope = min(max(slope, 0.0), seconds / mean)
        return max(seconds + slope * (length - mean), LEAST)
