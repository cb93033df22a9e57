"""What asking host proposers costs and gains, and whether to ask them.

Asking takes microseconds, which matters where a step takes a millisecond. While drafts save at least the time that
asking takes, every request is asked for. While they do not, a small share of the time is saved up until all requests
can be asked for once: this bounds the cost of drafting that never pays, and a text that begins to repeat itself is
noticed. All requests, since the rows of one may cost more than it gains, while those of all together pay.
After an accepted node the next is likely to be accepted too, so that request is asked for again in any case.
"""

_SHARE = 0.005  # of the time that may be spent on asking without a gain
_FREE = 256  # requests asked for before anything is decided
_LATELY = 512  # and about how many of the latest count
_SAVED = 8  # requests that can be saved up for, or all if there are more; and whose asking may be owed at most
_MOST = 4.0  # longest time that counts, as a factor of the usual one: processes are stopped now and then
_NEWS = 0.05  # weight of a new time in the moving average


class Account:
    """What asking gains and costs in one engine.

    Attributes:
        seconds: spent since start.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._each = 0.0  # seconds of asking for one request
        self._balance = 0.0  # seconds saved by drafts lately, less those spent on asking that was not saved up for
        self._asked = 0
        self._saved = 0.0  # seconds that may be spent without a gain
        self._most = 0  # most requests at once since savings were last spent; with few left there is little to learn
        self._paid = False  # whether the next asking is paid for out of savings

    @property
    def pays(self) -> bool:
        """Whether drafts have saved the time that asking takes, or too few are known."""
        return self._asked < _FREE or self._balance >= 0

    def save(self, step: float, requests: int = 1) -> None:
        """Save up a share of the `step` seconds that are about to be spent with so many requests."""
        self._most = max(self._most, requests)
        self._saved = min(self._saved + _SHARE * step, max(self._most, _SAVED) * self._each)
        self._paid = False

    @property
    def affords(self) -> bool:
        """Whether enough is saved to ask for as many requests as ran at once since savings were last spent."""
        return self._saved >= self._most * self._each

    def pay(self) -> bool:
        """Whether enough is saved for asking; if so, it is spent on the requests asked for next."""
        self._paid = self.affords
        if self._paid:
            self._most = 0
        return self._paid

    def spend(self, seconds: float, asked: int) -> None:
        """Record how long it took to ask for so many requests, one or more."""
        self.seconds += seconds
        each = seconds / asked
        if self._each:
            each = min(each, _MOST * self._each)
            self._each += _NEWS * (each - self._each)
        else:
            self._each = each
        self._asked += asked
        self._balance -= min(asked / _LATELY, 1.0) * self._balance
        if self._paid:
            self._saved -= asked * each
        else:
            self._balance -= asked * each
        # A loss long ago must not outweigh a try that pays now.
        self._balance = max(self._balance, -_SAVED * self._each)

    def gain(self, seconds: float) -> None:
        """Record the seconds that drafts have saved; negative where their rows cost more."""
        self._balance += seconds
