"""Whether proposers on the host are asked: their drafts cost nothing but the time to find them."""

from parlay.drafting.budget import ExplorationBudget

_ASKS = 256  # calls of a host proposer, one per request, before anything is decided; and most that the budget saves
_STEPS = 8  # plain steps: losses that drafts which have paid may cause before asking ends
_OWED = 32  # most debt, in calls for one request
_NEWS = 0.05  # weight of a new time in the moving average of asking
_MOST = 4.0  # longest time that counts, as a factor of the usual one: processes are stopped now and then


class HostProposerBudget:
    """Whether host proposers draft: while what they save covers the time it takes, and as the budget allows.

    Attributes:
    """

    def __init__(self) -> None:
        self._each = 0.0  # seconds for one request
        self._asked = 0
        self._budget = ExplorationBudget()

    def affords(self, count: int) -> bool:
        """Whether host proposers may draft for so many requests: at first always, since nothing is known."""
        return self._asked < _ASKS or self._budget.balance >= count * self._each

    def save(self, plain: float) -> None:
        """Save a share of a step's seconds."""
        self._budget.hold(max(_ASKS * self._each, _STEPS * plain), _OWED * self._each)
        self._budget.save(plain)

    def spend(self, seconds: float, count: int) -> None:
        """Record how long it took to ask for so many requests, one or more."""
        self._asked += count
        each = seconds / count
        self._each += (_NEWS * (min(each, _MOST * self._each) - self._each)) if self._each else each
        self._budget.add(-count * min(each, _MOST * self._each))

    def gain(self, seconds: float) -> None:
        """Record the seconds that drafts have saved; negative where their rows cost more."""
        self._budget.add(seconds)
