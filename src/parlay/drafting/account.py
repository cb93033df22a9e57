"""What asking host proposers costs and gains, and whether to ask them.

Asking takes microseconds, which is much where a step takes a millisecond. While guesses save at least the time that
asking for them takes, everybody is asked. While they do not, a small share of the time is saved up until everybody
can be asked once: what never pays costs no more than this, and a text that begins to repeat itself is noticed. One
request alone would not tell: in a batch its rows may cost more than it gains, where those of all together pay. Where
a guess was right the next is likely to be too, so that request is asked again in any case.
"""

_SHARE = 0.005  # of the time that may be lost on asking
_FREE = 256  # requests asked before anything is decided
_LATELY = 512  # and those that count, about
_SAVED = 8  # requests that can be saved up for, or all if they are more; and whose asking may be owed at most
_MOST = 4.0  # factor beyond which a time tells no more: processes are stopped
_NEWS = 0.05  # share of what is unexpected that the usual time takes


class Account:
    """What asking comes to in one engine.

    Attributes:
        seconds: spent since start.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._each = 0.0  # seconds of asking for one request
        self._balance = 0.0  # seconds saved by guesses lately, less those spent on asking that was not saved up for
        self._asked = 0
        self._saved = 0.0  # seconds that may be lost
        self._most = 0  # requests at once since these were spent last; where few are left less is to be learnt
        self._paid = False  # whether the next asking is paid for out of what is saved

    @property
    def pays(self) -> bool:
        """Whether guesses have saved what asking for them takes, or too few are known."""
        return self._asked < _FREE or self._balance >= 0

    def save(self, step: float, requests: int = 1) -> None:
        """Save up a share of the `step` seconds that are about to be spent with so many requests."""
        self._most = max(self._most, requests)
        self._saved = min(self._saved + _SHARE * step, max(self._most, _SAVED) * self._each)
        self._paid = False

    @property
    def affords(self) -> bool:
        """Whether there is enough saved to ask for as many requests as there were at once since that was done."""
        return self._saved >= self._most * self._each

    def pay(self) -> bool:
        """Whether there is enough saved for asking; if so, it is spent on the requests asked for next."""
        self._paid = self.affords
        if self._paid:
            self._most = 0
        return self._paid

    def spend(self, seconds: float, asked: int) -> None:
        """Take note of how long it took to ask for so many requests, one or more."""
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
        # What went wrong long ago must not outweigh a try that goes right now.
        self._balance = max(self._balance, -_SAVED * self._each)

    def gain(self, seconds: float) -> None:
        """Take note of what guesses have saved; less than nothing where their rows cost more."""
        self._balance += seconds
