"""How often each token occurs, laid out for arithmetic on the tokens that do."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class TokenCounts:
    """Counts of the output's tokens; tokens of the prompt are listed with what the output has of them.

    The cost of adding a token does not depend on their number.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        distinct = dict.fromkeys(prompt)
        self._prompt = len(distinct)
        self._place = {token: place for place, token in enumerate(distinct)}
        self._ids = np.fromiter(distinct, dtype=np.int64, count=len(distinct))
        self._counts = np.zeros(len(distinct), dtype=np.float32)

    @property
    def table(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Distinct tokens in no particular order, and how often each occurs in the output."""
        listed = len(self._place)
        return self._ids[:listed], self._counts[:listed]

    def add(self, token: int) -> None:
        """Count one more occurrence."""
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros(place + 8, dtype=np.int64)))
            self._counts = np.concatenate((self._counts, np.zeros(place + 8, dtype=np.float32)))
        self._ids[place] = token
        self._counts[place] += 1

    def take_back(self, token: int) -> None:
        """Undo the last `add` that has not been undone yet, which was of `token`."""
        place = self._place[token]
        self._counts[place] -= 1
        if place >= self._prompt and self._counts[place] == 0:
            del self._place[token]  # the last place: what was listed later has been taken back
