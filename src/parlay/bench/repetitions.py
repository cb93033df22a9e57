"""Interleaved repetitions of plain decoding and other methods, and the confidence intervals of their ratios.

On a shared machine times drift by tens of per cent within minutes. In a repetition every method does the same piece
of work, plain decoding once for all of them, so that its ratios compare times within seconds of each other. The
figure is the median of the repetitions' ratios. Its interval is the percentile bootstrap's (Efron 1979): repetitions
are resampled with replacement, and the interval spans the middle 95 % of the medians.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeVar

import numpy as np

R = TypeVar("R")

LEAST_REPETITIONS = 8  # of fewer the bootstrap says little: a handful of equal ratios would look like certainty
_RESAMPLES = 2_000
_PERCENTILES = (2.5, 97.5)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median ratio with its 95 % interval.

    Attributes:
        median: median of the ratios.
        low: the interval's lower end.
        high: its upper end.
        repetitions: number of ratios.
    """

    median: float
    low: float
    high: float
    repetitions: int = field(default=LEAST_REPETITIONS, compare=False)

    @property
    def interval(self) -> list[float] | None:
        """Both ends; None of fewer than `LEAST_REPETITIONS` ratios, which say nothing about it."""
        return [self.low, self.high] if self.repetitions >= LEAST_REPETITIONS else None

    def within(self, precision: float) -> bool:
        """Whether the interval reaches no further to either side than this share of the median."""
        return max(self.median - self.low, self.high - self.median) <= precision * self.median


def estimate(ratios: Sequence[float], seed: int = 0) -> Estimate:
    """Return the median of at least one ratio with its interval; equal arguments give equal intervals."""
    values = np.asarray(ratios, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(len(values), size=(_RESAMPLES, len(values)))
    low, high = np.percentile(np.median(values[drawn], axis=1), _PERCENTILES)
    return Estimate(float(np.median(values)), float(low), float(high), len(values))


@dataclass(frozen=True, slots=True)
class StopRule:
    """When there are enough repetitions.

    Attributes:
        precision: every interval within this share of its median is enough, though not before `LEAST_REPETITIONS`.
        repetitions: most repetitions.
        seconds: no repetition begins later than this.
    """

    precision: float
    repetitions: int
    seconds: float

    def spent(self, repetitions: int, elapsed: float) -> bool:
        """Whether this is the most repetitions or seconds allowed."""
        return repetitions >= self.repetitions or elapsed >= self.seconds

    def precise(self, estimates: Iterable[Estimate], repetitions: int) -> bool:
        """Whether so many repetitions have given intervals that are narrow enough."""
        return repetitions >= LEAST_REPETITIONS and all(one.within(self.precision) for one in estimates)


class Repetitions:
    """The seconds of each method in each repetition.

    Attributes:
        names: names of the methods; the others are compared with the first.
        seconds: seconds by method, one for each repetition.
    """

    def __init__(self, names: Sequence[str], clock: Callable[[], float] = perf_counter) -> None:
        self.names = tuple(names)
        self.seconds: dict[str, list[float]] = {name: [] for name in self.names}
        self._clock = clock

    def __len__(self) -> int:
        return len(self.seconds[self.names[0]])

    def run(
        self,
        methods: Mapping[str, Callable[[], R]],
        tick: Callable[[str], None] = lambda label: None,
        label: str = "",
    ) -> dict[str, R]:
        """Run every method once, and return the results.

        The first method rotates: over as many repetitions as there are methods, each is as often and as far behind
        the first as before it, so that a steady drift of the machine cancels.

        Args:
            methods: the same piece of work, by method.
            tick: called with the label and a method's name before its clock starts.
            label: label of the repetition.
        """
        first = len(self) % len(self.names)
        results: dict[str, R] = {}
        for name in self.names[first:] + self.names[:first]:
            tick(f"{label} {name}".lstrip())
            began = self._clock()
            results[name] = methods[name]()
            self.seconds[name].append(self._clock() - began)
        return results

    def ratios(self, name: str) -> list[float]:
        """Return how many times as fast as the first a method was, in each repetition."""
        return [plain / own for plain, own in zip(self.seconds[self.names[0]], self.seconds[name], strict=True)]

    def estimate(self, name: str) -> Estimate:
        """Return the median of `ratios` with its interval."""
        return estimate(self.ratios(name))
