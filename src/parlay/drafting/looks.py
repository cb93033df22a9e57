"""When an engine that drafts runs steps without drafts: the cost of plain steps is learnt by running some.

Where they seem more expensive than they are, none would run otherwise. It is done after a few steps with drafts, and
then less and less often.
"""

_BUSY = 8  # steps with drafts after which it is done first


class Looks:
    """The steps without drafts of one kind.

    Attributes:
        left: steps still to go without, this one among them.
    """

    def __init__(self, length: int, seldom: int) -> None:
        """Go without for `length` steps each time, at last once after `seldom` steps with drafts."""
        self.left = 0
        self._length, self._seldom = length, seldom
        self._busy, self._stamina = 0, _BUSY

    def step(self, *, drafted: bool) -> None:
        """Begin a step; `drafted`: whether the one before had drafts."""
        self.left = max(self.left - 1, 0)
        self._busy += drafted

    def begin(self) -> int:
        """Return for how many steps to go without from now on; 0 if it is not due."""
        if self._busy < self._stamina:
            return 0
        self._busy, self._stamina = 0, min(2 * self._stamina, self._seldom)
        self.left = self._length
        return self.left

    def surprise(self) -> None:
        """Return to the initial frequency."""
        self._stamina = _BUSY
