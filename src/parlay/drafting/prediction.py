"""Predicted output: the user has a text that the answer will mostly repeat, so guess along it.

Idea: OpenAI's predicted outputs; the matching is prompt lookup's (`ngram`), on a text that need not be in the prompt.
While the output goes along the prediction the guesses are its next tokens. Where the two part, the longest n-gram
that now ends the output is looked up in the prediction: first ahead of where they parted, since an edit seldom goes
back, and nearest to it. After such a find no more is guessed than twice what agrees, so that a coincidence is cheap.

No method of the engine's but one more source for whichever is loaded: a request brings it along, it guesses first,
and where it knows nothing the loaded proposer has its turn. What it keeps is part of the request and ends with it.

Wins on edits of code and documents. Loses one draft where the prediction is wrong from the beginning, and next to
nothing later: where no two tokens in a row are in it, there is no guess.
"""

from bisect import bisect_left
from collections.abc import Sequence

from parlay.types.draft import NO_DRAFT, Draft

SOURCE = "prediction"
DEFAULT_LENGTH = 12  # nodes a draft when the user does not say; a prediction is right more often than other guesses
SHORTEST, LONGEST = 2, 4  # n-grams that are looked up
_TRUST = 2  # tokens guessed for each that agrees, after a look-up


class Prediction:
    """A predicted text, and where its n-grams end. The completions of one prompt share it."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens)
        self._ends: dict[tuple[int, ...], list[int]] = {}  # made when first needed: a perfect prediction never does

    def find(self, gram: tuple[int, ...], at: int) -> int | None:
        """Return where an n-gram ends and something follows: from `at` on, else last before, else None."""
        if not self._ends:
            for n in range(SHORTEST, LONGEST + 1):
                for end in range(n, len(self.tokens)):  # where something follows
                    self._ends.setdefault(self.tokens[end - n : end], []).append(end)
        ends = self._ends.get(gram)
        if ends is None:
            return None
        ahead = bisect_left(ends, at)
        return ends[ahead] if ahead < len(ends) else ends[-1]


class Follower:
    """How far one completion has come along a prediction."""

    def __init__(self, prediction: Prediction) -> None:
        self._prediction = prediction
        self._at = 0  # where the output is in the prediction, or was when they parted
        self._trust = len(prediction.tokens)  # most tokens to guess
        self._tail: tuple[int, ...] = ()  # the end of the output, as long as an n-gram

    @property
    def follows(self) -> bool:
        """Whether there is a guess for what comes next."""
        return self._trust > 0 and self._at < len(self._prediction.tokens)

    def observe(self, tokens: Sequence[int]) -> None:
        """Take note of what was emitted."""
        for token in tokens:
            self._tail = (*self._tail[1 - LONGEST :], token)
            if self.follows and self._prediction.tokens[self._at] == token:
                self._at += 1
                self._trust += _TRUST
            else:
                self._look_up()

    def propose(self, budget: int) -> Draft:
        """Return a chain of at most `budget` nodes: what the prediction goes on with."""
        if not self.follows:
            return NO_DRAFT
        end = self._at + min(budget, self._trust)
        return Draft.chain(self._prediction.tokens[self._at : end], SOURCE)

    def _look_up(self) -> None:
        self._trust = 0
        for n in range(len(self._tail), SHORTEST - 1, -1):
            found = self._prediction.find(self._tail[-n:], self._at)
            if found is not None:
                self._at, self._trust = found, _TRUST * n
                return
