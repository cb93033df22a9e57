"""How long a step takes on this machine, by its rows and the keys they read, learnt from the steps that ran.

    seconds = pace * (table[rows] + keys * seconds_per_key)

The table is kept at a few numbers of rows (knots), is linear in between and never falls. The cost of a key follows
from that of a row: a step of one row reads all weights once, so a key's bytes cost their share of that. Passes that
were timed at start count only until steps of as many rows have run, plus what other steps took beyond their passes.
`pace` absorbs what slows all steps alike, such as a burst of load from another process: it adapts within a few steps,
while the table, which decides how long drafts are, moves slowly.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from math import inf
from typing import Protocol

KNOTS: tuple[int, ...] = (
    *range(1, 17),
    20,
    24,
    28,
    32,
    40,
    48,
    64,
    96,
    128,
    192,
    256,
    384,
    512,
    1024,
    2048,
    4096,
)  # rows
_PACE = 0.2  # weight of a new step in the pace
_TABLE = 0.02  # weight of a new step in the table, at a number of rows that is known
_MEASURED = 0.2  # the same for a step that was run to measure
_AGED = 1 / 400  # the same per step since the last of that number of rows, if more: old observations are doubtful
_RISE, _FALL = 0.2, 0.5  # weights in the table at a number of rows that is not known yet, upwards and downwards
_TRUSTED = 16  # steps of a number of rows after which it is known
_FEW = 8  # most steps that an earlier run's times count for
MOST = 2.0  # factor beyond which a step's time is clipped: clocks jump, processes are stopped
_CONTRADICTED = 1.5  # factor by which a step takes longer than one of more rows: what is less may be noise
_STALE = 256  # steps after which what is known of a number of rows is doubtful
LEAST = 1e-9  # seconds: no step is faster, but a clock may be wrong
_EVERY = 16  # steps between two updates of the table as it is read
_SOON = 0.08  # relative error from which on it is updated at once


class StepCost:
    """What is known of the cost of one engine's steps.

    Attributes:
        table: seconds by number of rows, from 0 on, at the usual pace and without keys.
    """

    def __init__(self, most_rows: int, key_share: float = 0.0, like: "StepCost | None" = None) -> None:
        """Start without times: every row is assumed to cost as much as the first.

        Args:
            most_rows: most rows of a step.
            key_share: bytes of a token's keys and values, as a share of the bytes of all weights.
            like: cost of the same steps under other circumstances, with which it shares the pace.
        """
        self._paced = like or self
        self._most_rows = most_rows
        self._key_share = key_share
        self._known: dict[int, float] = {}  # seconds by knot
        self._timed: dict[int, float] = {}  # seconds of passes that were timed at start, by knot
        self._weights: dict[int, int] = {}  # observations by knot
        self._seen: dict[int, int] = {}  # number of the step in which a knot was last observed
        self._steps = self._news = 0
        self._pace = 1.0
        self.table: StepTable = StepCostTable((1,), (1.0,), most_rows)

    def derive(self) -> "StepCost":
        """Return the cost of steps under other circumstances, which starts from what is known here."""
        other = StepCost(self._most_rows, self._key_share, self._paced)
        other._known, other._timed, other.table = dict(self._known), dict(self._timed), self.table
        other._weights = dict.fromkeys(self._known, 1)
        return other

    @property
    def pace(self) -> float:
        """By what factor steps now take longer than usual."""
        return self._paced._pace

    @pace.setter
    def pace(self, pace: float) -> None:
        self._paced._pace = pace

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
        extra = self._extra
        return {knot: (self._own(knot, extra), weight) for knot, weight in self._weights.items()}

    def recall(self, known: Mapping[int, tuple[float, int]]) -> None:
        """Start from another run's times, with half the confidence in each."""
        for knot, (seconds, weight) in known.items():
            if knot in KNOTS and LEAST < seconds < inf:
                self._known[knot], self._weights[knot] = seconds, min(weight, _FEW)
        if self._known:
            self._unfold()

    def learn(self, timed: Sequence[tuple[int, float]]) -> None:
        """Take passes that were timed at start: their rows and seconds."""
        for rows, seconds in timed:
            if LEAST < seconds < inf:
                knot = _knot(rows)
                self._known[knot], self._weights[knot] = seconds, 1
                self._timed[knot] = seconds
        if self._known:
            self._unfold()

    def observe(self, rows: int, keys: int, seconds: float, *, measured: bool = False) -> float:
        """Record a step of so many rows, which read so many keys and took `seconds`.

        It counts for more if it is one of a few that were `measured` on purpose.

        Returns:
            By what factor it took longer than expected; 1 if nothing was known.
        """
        if not LEAST < seconds < inf or not 1 <= rows <= self._most_rows:
            return 1.0
        knot, ratio = _knot(rows), 1.0
        self._steps += 1
        stale = self._stale(knot)
        age, self._seen[knot] = self._steps - self._seen.get(knot, self._steps), self._steps
        if knot in self._known:
            # Compared with what is known of this number of rows, not with the table: where more rows turn out
            # cheaper, the two differ permanently, and each step would move them further apart.
            self._known[knot] = self._own(knot, self._extra)
            own = self._known[knot] * self.table[rows] / self.table[min(knot, self._most_rows)]
            ratio = min(max(seconds / (self.pace * (own + keys * self.key)), 1 / MOST), MOST)
            self._weights[knot] += 1
            # A step may be slow for reasons that have nothing to do with its rows, and is seldom too fast.
            rate = most = _RISE if ratio > 1 else _FALL
            if self._weights[knot] >= _TRUSTED:
                self.pace *= ratio**_PACE
                rate = min(max(_MEASURED if measured else _TABLE, age * _AGED), most)
            self._known[knot] *= ratio**rate
            self._news += 1
            if stale and ratio == 1 / MOST:
                self._begin(knot, rows, keys, seconds)
            elif rate < _SOON and self._news < _EVERY:
                return ratio
        elif self._known:
            self._begin(knot, rows, keys, seconds)
        else:
            self._known[knot], self._weights[knot] = seconds, 1
        self._unfold()
        return ratio

    def _begin(self, knot: int, rows: int, keys: int, seconds: float) -> None:
        """Take one step's time for what is known of a number of rows; a slow one may have been stopped."""
        own = max(seconds / self.pace - keys * self.key, seconds / self.pace / 2)
        usual = self.table[min(knot, self._most_rows)]
        self._known[knot], self._weights[knot] = min(own / self.table[rows], MOST) * usual, 1
        self._timed.pop(knot, None)

    def _stale(self, knot: int) -> bool:
        """Whether no step of so many rows was seen for long, in this run."""
        first = 0 if knot in self._timed else -_STALE
        return self._steps - self._seen.get(knot, first) >= _STALE

    def bound(self, rows: int, keys: int, seconds: float) -> None:
        """Record a step that took longer than its rows alone; it counts only if none of so many ran for long."""
        if self._stale(_knot(rows)):
            self.observe(rows, keys, seconds)

    def doubtful(self, rows: int) -> int | None:
        """Return the next number of rows above some whose time is doubtful: no such step was seen for long."""
        more = (knot for knot in KNOTS[bisect_right(KNOTS, rows) :] if knot <= self._most_rows)
        return next((knot for knot in more if knot not in self._known or self._stale(knot)), None)

    def observe_cold(self, rows: int, keys: int, seconds: float) -> None:
        """Record how long a step took beyond its pass, for which the weights had to come from memory.

        The pass is taken to be the one that was timed at start, until warm steps of as many rows are known.
        """
        knot = _knot(rows)
        if knot in self._timed and self._weights[knot] < _FEW:
            self.observe(rows, keys, seconds + self.pace * (self._timed[knot] + keys * self.key))

    @property
    def _extra(self) -> float:
        """Seconds that a step takes beyond its pass, from the numbers of rows for which both are known."""
        both = [(min(self._weights[k], _TRUSTED), self._known[k] - own) for k, own in self._timed.items()]
        both = [(weight, more) for weight, more in both if weight > 1]
        return (
            max(sum(weight * more for weight, more in both) / sum(weight for weight, _ in both), 0.0) if both else 0.0
        )

    def _own(self, knot: int, extra: float) -> float:
        """Return what is known of a number of rows, for which so far only a pass may have been timed."""
        alone = self._weights[knot] == 1 and knot in self._timed
        return self._timed[knot] + extra if alone else self._known[knot]

    def _unfold(self) -> None:
        """Compute the table anew from what is known, without what contradicts it: more rows that take far less."""
        self._news, least = 0, inf
        for knot in sorted(self._known, reverse=True):
            if self._known[knot] > _CONTRADICTED * least:
                del self._known[knot], self._weights[knot]
                self._timed.pop(knot, None)
            elif self._weights[knot] > 1:  # otherwise it may be assumed
                least = min(least, self._known[knot])
        knots, extra = sorted(self._known), self._extra
        seconds = isotonic([self._own(k, extra) for k in knots], [float(self._weights[k]) for k in knots])
        self.table = StepCostTable(knots, seconds, self._most_rows)


class StepTable(Protocol):
    """Seconds of a step by its number of rows, as in a list."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: int, /) -> float: ...


class StepCostTable:
    """A table with an entry for every number of rows; only the entries that are read are computed."""

    def __init__(self, knots: Sequence[int], seconds: Sequence[float], most_rows: int) -> None:
        """Interpolate non-decreasing `seconds` at `knots`, ascending; beyond them in proportion to rows."""
        self._knots, self._seconds, self._length = knots, seconds, most_rows + 1
        self._asked: dict[int, float] = {}

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, rows: int) -> float:
        """Return seconds of a step of so many rows."""
        found = self._asked.get(rows)
        if found is None:
            if not 0 <= rows < self._length:
                raise IndexError(rows)
            found = self._asked[rows] = self._at(rows)
        return found

    def _at(self, rows: int) -> float:
        knots, seconds = self._knots, self._seconds
        place = bisect_left(knots, rows)
        if place == 0:
            return seconds[0]
        if place == len(knots):
            return seconds[-1] * rows / knots[-1]
        share = (rows - knots[place - 1]) / (knots[place] - knots[place - 1])
        return seconds[place - 1] + share * (seconds[place] - seconds[place - 1])


class AfterDraftTable:
    """Seconds of steps by rows, from another table beyond so many rows."""

    def __init__(self, table: StepTable, beyond: StepTable, rows: int) -> None:
        """Take the larger of both beyond `rows`."""
        self._table, self._beyond, self._rows = table, beyond, rows

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, rows: int) -> float:
        """Return seconds of a step of so many rows."""
        own = self._table[rows]
        return own if rows <= self._rows else max(own, self._beyond[rows])


def _knot(rows: int) -> int:
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
