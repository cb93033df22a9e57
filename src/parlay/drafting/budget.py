"""The time that may be lost on what is not expected to pay: a small share, saved up in a token bucket.

From it every action is bought whose gain is uncertain: asking a host proposer, running a head, a longer draft. What
drafts have saved flows back, so what pays is never short of budget; what does not is tried now and then, and costs no
more than the share.
"""

SHARE = 0.005  # share of the time


class ExplorationBudget:
    """Seconds that may be lost.

    Attributes:
        balance: seconds; below 0, what has been lost beyond.
        capacity: most seconds that are saved.
        debt: most seconds that are owed: a loss long ago must not outweigh a trial that pays now.
    """

    def __init__(self) -> None:
        self.balance = self.capacity = self.debt = 0.0

    def hold(self, capacity: float, debt: float) -> None:
        """Save, and owe, up to so many seconds from now on."""
        self.capacity, self.debt = capacity, debt

    def fill(self) -> None:
        """Save as much as there is room for."""
        self.balance = self.capacity

    def save(self, seconds: float) -> None:
        """Save the share of `seconds` that have passed."""
        self.add(SHARE * seconds)

    def add(self, seconds: float) -> None:
        """Add what was gained, or take what was lost."""
        self.balance = max(min(self.balance + seconds, self.capacity), -self.debt)
