"""How many rows of prompts a step may have beside requests that decode.

A step takes the longer, the more rows it has, and every request in it waits. Chunked prefill bounds that wait by a
number of rows; here the number follows from what steps take on this machine, so that one bound suits a small model
and a large one:

    seconds of a step = seconds with its decoding requests alone + rows of prompts * seconds per row

Both are running means. What a row takes is learnt from the steps that it bounds, so it grows with the keys that rows
far in a long prompt have to read. What the others take grows with their texts: now and then a step goes without the
prompts, to see it. A small model's steps may take longer than the bound says, as long as users cannot notice: in
chunks of a few rows its prompts would take several times as long.
"""

from bisect import bisect_right

_RATE = 0.3  # weight of a new step in a mean
_EVERY = 16  # steps with prompts after which one goes without: a thirtieth of the time, where prompts have half of it
_UNNOTICED = 0.05  # seconds of a step: twenty tokens per second are faster than people read
_LEAST = 1 / 32  # share of a step without prompts that prompts take at least, however quick the step with them was
_MOST = 4.0  # multiple of the mean at which a step's time is clipped: clocks jump, processes are stopped
_SIZES = [size for power in range(24) for size in (1 << power, 3 << power >> 1) if size > 1 or power == 0]


class PrefillBudget:
    """Learns what steps take, and bounds by how much prompts may lengthen them."""

    def __init__(self, most_rows: int, slowdown: float) -> None:
        """Create a budget without measurements, and so without a bound.

        Args:
            most_rows: most rows of a step.
            slowdown: factor by which rows of prompts may lengthen a step, if that is noticed.
        """
        self._most_rows, self._slowdown = most_rows, slowdown
        self._alone: dict[int, float] = {}  # seconds of steps without prompts, by number of requests
        self._row = 0.0  # seconds that a row of a prompt takes
        self._since = 0  # steps with prompts since one without

    def rows(self, decoding: int) -> int:
        """Return how many rows of prompts a step may have beside so many requests.

        At least one, so that prompts move on, but for the steps without; and of a few sizes, since passes of each
        number of rows are recorded once.
        """
        alone = self._seconds(decoding)
        if not decoding or alone is None:
            return self._most_rows
        if self._since >= _EVERY:
            return 0
        spare = max(self._slowdown * alone, _UNNOTICED) - alone
        row = self._row or alone / decoding  # until one is known, as much as a request takes
        most = min(max(spare / row, 1.0), self._most_rows)
        return _SIZES[bisect_right(_SIZES, most) - 1]

    def observe(self, decoding: int, rows: int, seconds: float) -> None:
        """Record a step.

        Args:
            decoding: number of requests that decode.
            rows: number of rows of prompts beside them.
            seconds: duration of the step.
        """
        if seconds <= 0 or not decoding + rows:
            return
        self._since = self._since + 1 if rows and decoding else 0
        if not rows:
            self._alone[decoding] = _mean(self._alone.get(decoding), seconds)
        elif not decoding:
            self._row = _mean(self._row or None, seconds / rows)
        elif (alone := self._seconds(decoding)) is not None:
            self._row = _mean(self._row or None, max(seconds - alone, _LEAST * alone) / rows)

    def _seconds(self, decoding: int) -> float | None:
        """Return the seconds of a step with so many requests, estimated from the nearest number that is known."""
        if not self._alone:
            return None
        nearest = min(self._alone, key=lambda known: abs(known - decoding))
        more = (decoding - nearest) * self._row
        return (
            self._alone[nearest] + more if more >= 0 else max(self._alone[nearest] + more, self._alone[nearest] / 2)
        )


def _mean(known: float | None, new: float) -> float:
    return new if known is None else known + _RATE * (min(new, _MOST * known) - known)
