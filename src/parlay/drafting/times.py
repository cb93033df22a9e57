"""How long a device proposer's drafts take, by their length and by how many requests they are for.

Seconds are a base, learnt by length, times a factor, learnt by number of requests: more requests make all of a
proposer's passes longer by about the same factor. So an observation for one number corrects the others too, and a
single draft for a new number gives its time at every length. Numbers of requests are grouped by powers of two.
"""

from collections.abc import Mapping, Sequence
from math import inf

_SOONER, _LATER = 0.3, 0.1  # weight of a new time, where drafts took less and where more
_BELIEVED = 0.9  # of what more requests add, after each draft that was made for fewer than could have one
_HALVED = 2**0.5  # by what factor drafts for half as many requests are assumed cheaper, until one is seen
_SHORT, LONG = 1e-9, 60.0  # seconds: no draft takes less, or more


class DraftTimes:
    """What is known of one proposer's times: more requests, or longer drafts, never take less."""

    def __init__(self, known: Mapping[int, float] | None = None) -> None:
        """Begin with seconds of drafts for one request by their length, as far as they are known."""
        self._base = dict(known or {})
        self._factors = {1: 1.0} if known else {}  # by size: the number of bits of a number of requests
        self._tries = dict[int, int]()  # by size, drafts for fewer than that since one of that size was seen
        # Sizes and lengths of which the first draft was seen, which records its passes.
        self._seen = {(1, length) for length in self._base}

    @property
    def known(self) -> dict[int, float]:
        """Seconds of drafts for one request by their length, as far as they are known."""
        factor = self._factor(1)
        return {length: base * factor for length, base in self._base.items()}

    def observe(self, lengths: Sequence[int], seconds: float, count: int = 0, *, settled: bool = True) -> None:
        """Learn how long drafts of these lengths, 0 for none, took together.

        Args:
            lengths: of the drafts of a step.
            seconds: of all of them.
            count: how many requests could have had one.
            settled: whether the step's pass was no new one; beside a new pass those of drafts are often new and
                slower than later ones, so they count only where nothing else is known.
        """
        length, size, asked = max(lengths, default=0), sum(map(bool, lengths)).bit_length(), count.bit_length()
        if not length or not _SHORT < seconds < LONG:
            return
        if (size, length) not in self._seen:
            self._seen.add((size, length))
            return
        if not settled and size in self._factors and length in self._base:
            return
        base, least = self._base.get(length, 0.0), self._factor(size) or 1.0
        most = max(self._factors.get(size, 0.0), least)
        if base < _SHORT and size not in self._factors:
            base = self.of(length, count=2 ** (size - 1)) / least  # between lengths that are known
        if base < _SHORT:
            base, least = seconds / most, most
        elif size not in self._factors:
            least = most = seconds / base
        # As far as it was in doubt what drafts for so many take, this one says it; beyond, it counts for a share.
        before = min(max(seconds, base * least), base * most)
        # The cost is the least that it takes; load on the machine or a new recording may add to it.
        rate = _SOONER if seconds < before else _LATER
        moved = 1 + rate * (min(seconds / before, 2.0) - 1)
        # One draft cannot tell whether its length or the number of requests is the cause: both are, in equal parts.
        self._base[length] = base * moved**0.5
        self._factors[size] = before / base * moved**0.5
        self._tries[size] = 0
        if asked > size:
            self._tries[asked] = self._tries.get(asked, 0) + 1

    def of(self, length: int, count: int) -> float:
        """Return seconds of drafts of one length for so many requests."""
        return self.by_length(length, count)[length]

    def by_length(self, most: int, count: int) -> list[float]:
        """Return seconds of drafting 0 to `most` tokens for so many requests.

        They are linear between lengths that are known and in proportion beyond.
        """
        times, factor, longer = {0: 0.0}, self._factor(count.bit_length()), inf
        for length in sorted(self._base, reverse=True):
            # A shorter draft that took more was slowed by other load.
            times[length] = longer = min(self._base[length], longer)
        known = sorted(times)
        found = []
        for length in range(most + 1):
            above = next((k for k in known if k >= length), None)
            below = max(k for k in known if k <= length)
            if above is None:
                found.append(factor * times[below] * length / max(below, 1))
            else:
                share = (length - below) / max(above - below, 1)
                found.append(factor * (times[below] * (1 - share) + times[above] * share))
        return found

    def _factor(self, size: int) -> float:
        """Return by what factor drafts for requests of some size take longer than the base; 0 if nothing is known.

        Drafts that seem not to pay are tried with one request, which does not tell what more would add. So what they
        add is believed less with every try, until drafts are made for as many again: a time that load on the machine
        has raised is not believed for good. A new size is assumed to be cheap, since one draft will tell.
        """
        factor = 0.0
        for known in sorted(self._factors):
            if known > size:
                if size not in self._factors:
                    factor = max(factor, self._factor(known) / _HALVED ** (known - size))
                break
            factor += max(self._factors[known] - factor, 0.0) * _BELIEVED ** self._tries.get(known, 0)
        return factor
