"""The time that may be lost on drafts that do not seem to pay: a small share, saved up.

Drafting that never pays costs no more than this. Before its first try a proposer may have to catch up, which may take
longer than the try itself; as many tries as that costs are then worth it, so all of them are saved up for.
"""

_SHARE = 0.005  # of the time that may be lost
_FEW, _MANY = 6.0, 32.0  # tries that are saved up for, at least and at most
_SPARE = 1.2  # factor on a run's cost: most that is saved while there is nothing to try, as the next may cost more
_LUCK = 2  # tries in a row that may be rejected after an accepted one


class Tries:
    """The savings for one device proposer's tries."""

    def __init__(self) -> None:
        self._saved: float | None = None  # seconds; None before a try has a price
        self._run = 0.0  # seconds that a run of tries takes, as last computed
        self._luck = 0  # tries that may be rejected before they are saved up for again

    @property
    def affordable(self) -> bool:
        """Whether enough is saved for a run of tries, as far as its cost is known."""
        return self._saved is not None and self._saved >= self._run

    def save(self, seconds: float) -> None:
        """Save up a share of `seconds` that have passed, in which there was nothing to try."""
        if self._saved is not None:
            self._saved = max(self._saved, min(self._saved + _SHARE * seconds, _SPARE * self._run))

    def take(self, price: float, catching_up: float, seconds: float) -> bool:
        """Save up a share of `seconds` that have passed, and return whether to try now; if so, that is paid.

        Args:
            price: seconds that one try is expected to lose.
            catching_up: seconds that it takes before the first.
            seconds: since this was asked last.
        """
        tries = min(max(catching_up / price, _FEW), _MANY) if price else _FEW
        self._run = catching_up + tries * price
        if self._saved is None:
            self._saved = catching_up + price  # enough for one
        else:
            self._saved = min(self._saved + _SHARE * seconds, self._run + price)
        if self._saved < (price if self._luck and catching_up <= price else self._run):
            return False
        self._saved -= catching_up + price
        if catching_up > price:
            self._luck = max(self._luck, _LUCK, int(tries / 2))
        return True

    def judged(self, *, right: bool) -> None:
        """Record whether a draft was accepted to its end: after one that was, the next may be too."""
        self._luck = _LUCK if right else max(self._luck - 1, 0)
