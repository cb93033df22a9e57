"""How long a step takes on this machine, by its rows and the keys they read, learnt from the steps that ran.

    seconds = pace * (table[rows] + keys * seconds_per_key)

The table is kept at a few numbers of rows (knots), is linear in between and never falls. The cost of a key follows
from that of a row: a step of one row reads all weights once, so a key's bytes cost their share of that. Passes that
were timed at start count only until steps of as many rows have run, plus what other steps took beyond their passes.
`pace` absorbs what slows all steps alike, such as a burst of load from another process: it adapts within a few steps,
while the table, which decides how long drafts are, moves slowly.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

# Rows: every number up to 16, beyond which one more matters less, then four for each doubling.
KNOTS: tuple[int, ...] = (*range(1, 16), *(rows << power for power in range(2, 10) for rows in range(4, 8)), 4096)
_PACE = 0.2  # weight of a new step in the pace
_TABLE = 0.02  # and in the table, for each step since the last of that number: old observations are doubtful
_RISE, _FALL = 0.2, 0.5  # but at most so much, upwards and downwards, as for a number of rows that is not known yet
_TRUSTED = 16  # steps of a number of rows after which it is known; and between updates of the table that is read
_MOST = 2.0  # factor beyond which a time is clipped: clocks jump, processes are stopped
_FADES = 0.95  # weight of earlier drafts when one more was timed
_LINE = 0.1  # square of the lengths' deviation from which on the slope of a draft's cost is the measured one
_DOUBLED = 2**0.5  # by what factor drafts for twice as many requests are expected to take longer


@dataclass(slots=True)
class _Knot:
    """What is known of a number of rows.

    Attributes:
        seconds: of a step, at the usual pace and without keys.
        steps: from how many this is known.
        passed: seconds of a pass alone that was timed at start, if it was.
        seen: number of the last step.
    """

    seconds: float
    steps: int = 1
    passed: float = 0.0
    seen: int = 0


class StepCost:
    """What is known of the cost of one engine's steps.

    Attributes:
        table: seconds by number of rows, from 0 on, at the usual pace and without keys.
        pace: by what factor steps now take longer than usual.
    """

    def __init__(self, most_rows: int, key_share: float = 0.0) -> None:
        """Begin with nothing known: every row is assumed to cost as much as the first.

        Args:
            most_rows: most rows of a step.
            key_share: bytes of a token's keys and values, as a share of the bytes of all weights.
        """
        self._most_rows = most_rows
        self._key_share = key_share
        self._knots: dict[int, _Knot] = {}
        self._extra = 0.0  # seconds that a step takes beyond its pass
        self._steps = self._news = 0
        self.pace = 1.0
        self.table: Sequence[float] = [float(max(rows, 1)) for rows in range(most_rows + 1)]

    @property
    def key(self) -> float:
        """Seconds that one more key takes, at the usual pace."""
        return self._key_share * self.table[min(1, self._most_rows)]

    def seconds(self, rows: int, keys: int = 0) -> float:
        """Return how long a step of so many rows takes that reads so many keys."""
        return self.pace * (self.table[min(rows, self._most_rows)] + keys * self.key)

    @property
    def known(self) -> dict[int, tuple[float, int]]:
        """Seconds by number of rows, and from how many steps each is known."""
        return {rows: (self._own(knot), knot.steps) for rows, knot in self._knots.items()}

    def recall(self, known: Mapping[int, tuple[float, int]]) -> None:
        """Start from another run's times, with half the confidence in each."""
        for rows, (seconds, steps) in known.items():
            if rows in KNOTS and 0 < seconds < inf:
                self._knots[rows] = _Knot(seconds, min(steps, _TRUSTED // 2))
        self._unfold()

    def learn(self, timed: Sequence[tuple[int, float]]) -> None:
        """Take passes that were timed at start: their rows and seconds."""
        for rows, seconds in timed:
            if 0 < seconds < inf:
                self._knots[_nearest(rows)] = _Knot(seconds, passed=seconds)
        self._unfold()

    def observe(self, rows: int, keys: int, seconds: float) -> float:
        """Record a step of so many rows, which read so many keys and took `seconds`.

        Returns:
            By what factor it took longer than expected; 1 if nothing was known.
        """
        if not 0 < seconds < inf or not 1 <= rows <= self._most_rows:
            return 1.0
        self._steps += 1
        place, usual, key = _nearest(rows), seconds / self.pace, keys * self.key
        scale = self.table[rows] / self.table[min(place, self._most_rows)]
        knot = self._knots.get(place)
        if knot is None:
            own = max(usual - key, usual / 2) / scale if self._knots else usual
            self._knots[place] = _Knot(own, seen=self._steps)
            self._unfold()
            return 1.0
        # Compared with what is known of this number of rows, not with the table: where more rows turn out cheaper,
        # the two differ permanently, and each step would move them further apart.
        own = self._own(knot)
        ratio = min(max(usual / (own * scale + key), 1 / _MOST), _MOST)
        # A step may be slow for reasons that have nothing to do with its rows, and is seldom too fast.
        rate = _RISE if ratio > 1 else _FALL
        age, knot.seen, knot.steps = self._steps - knot.seen, self._steps, knot.steps + 1
        known = knot.steps >= _TRUSTED
        if known:
            self.pace *= ratio**_PACE
            rate = min(_TABLE * age, rate)
        knot.seconds = own * ratio**rate
        self._news += 1
        if not known or self._news >= _TRUSTED:
            self._unfold()
        return ratio

    def _own(self, knot: _Knot) -> float:
        """Return what is known of a number of rows, for which so far only a pass may have been timed."""
        return knot.passed + self._extra if knot.passed and knot.steps == 1 else knot.seconds

    def _unfold(self) -> None:
        """Compute the table anew from what is known."""
        if not self._knots:
            return
        self._news = 0
        both = [(min(one.steps, _TRUSTED), one) for one in self._knots.values() if one.passed and one.steps > 1]
        if both:
            more = sum(weight * (one.seconds - one.passed) for weight, one in both)
            self._extra = max(more / sum(weight for weight, _ in both), 0.0)
        rows, knots = zip(*sorted(self._knots.items()), strict=True)
        seconds = isotonic([self._own(one) for one in knots], [float(one.steps) for one in knots])
        last = max(self._most_rows, rows[-1] + 1)  # beyond the knots in proportion to rows
        at, times = (*rows, last), (*seconds, seconds[-1] * last / rows[-1])
        self.table = np.interp(np.arange(self._most_rows + 1), at, times).tolist()


class DraftCost:
    """How long a device proposer's drafts take: a line in their length, at the usual pace, by number of requests.

    Numbers of requests are grouped by powers of two; one that was not seen yet is expected to cost what its nearest
    neighbour does, or a share more for each doubling.
    """

    def __init__(self, known: Mapping[int, Sequence[float]] | None = None) -> None:
        """Begin with an earlier run's sums."""
        # By size, decayed: how many drafts, and of these the sums of lengths, their squares, seconds, and products.
        self._sums = {
            size: [*map(float, sums)] for size, sums in (known or {}).items() if len(sums) == 5 and min(sums) > 0
        }
        self._begun = set[tuple[int, int]]()  # of which the first draft was seen, which records its passes

    @property
    def known(self) -> dict[int, list[float]]:
        """The sums, to start another run from."""
        return self._sums

    def observe(self, length: int, count: int, seconds: float, *, settled: bool = True) -> None:
        """Record drafts of one length for so many requests; `settled`: whether their step recorded no pass."""
        size = count.bit_length()
        if not length or not 0 < seconds < inf:
            return
        if (size, length) not in self._begun:
            self._begun.add((size, length))
            return
        sums = self._sums.get(size)
        if sums is None:
            sums = self._sums[size] = [0.0] * 5
        elif not settled:
            return
        else:
            usual = self._at(sums, length)
            seconds = min(max(seconds, usual / _MOST), _MOST * usual)
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
        return seconds + slope * (length - mean)


def _nearest(rows: int) -> int:
    """Return the nearest knot, by ratio."""
    place = bisect_left(KNOTS, rows)
    if place == len(KNOTS):
        return KNOTS[-1]
    if place and rows * rows < KNOTS[place] * KNOTS[place - 1]:
        place -= 1
    return KNOTS[place]


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the non-decreasing values nearest to some, by pooling neighbours (Ayer and others 1955)."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for value, weight in zip(values, weights, strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, wa, na), (b, wb, nb) = pools[-2:]
            pools[-2:] = [((a * wa + b * wb) / (wa + wb), wa + wb, na + nb)]
    return [mean for mean, _, count in pools for _ in range(count)]
