"""Predicted output: the user has a text that the answer will mostly repeat, which is drafted from.

Idea: OpenAI's predicted outputs; the matching is prompt lookup's (`ngram`), on a text that need not be in the prompt.
While the output follows the prediction, the nodes are its next tokens. Where the two part, the longest n-gram that
now ends the output is looked up in the prediction: first ahead of where they parted, since an edit seldom goes back,
and nearest to it. After a match at most twice as many tokens are drafted as agree: a coincidence costs little.

This is no method of the engine but a further proposer on the host, which a request brings along: it is asked first,
and where it has no node the loaded ones are. Its state is part of the request and ends with it.

Wins on edits of code and documents. Loses one draft where the prediction is wrong from the beginning, and next to
nothing later: where no two tokens in a row are in it, there is no node.
"""

from bisect import bisect_left
from collections.abc import Sequence

from parlay.types.draft import NO_DRAFT, Draft

SOURCE = "prediction"
DEFAULT_LENGTH = 12  # nodes of a draft by default; a prediction is accepted more often than other drafts
SHORTEST, LONGEST = 2, 4  # n-grams that are looked up
_TRUST = 2  # nodes for each token that agrees, after a look-up


class Prediction:
    """A predicted text and an index of its n-grams. The completions of one prompt share it."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens)
        self._ends: dict[tuple[int, ...], list[int]] = {}  # made when first needed, never for a perfect prediction

    def find(self, gram: tuple[int, ...], at: int) -> int | None:
        """Return where an n-gram with a successor ends: from `at` on, else last before, else None."""
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
        self._trust = len(prediction.tokens)  # most tokens to draft
        self._seen = 0  # tokens of the output
        self._tail: tuple[int, ...] = ()  # the end of the output, as long as an n-gram

    @property
    def follows(self) -> bool:
        """Whether there is a node for what comes next."""
        return self._trust > 0 and self._at < len(self._prediction.tokens)

    def observe(self, output: Sequence[int]) -> None:
        """Follow what was emitted, from where this was called last."""
        for token in output[self._seen :]:
            self._tail = (*self._tail[1 - LONGEST :], token)
            if self.follows and self._prediction.tokens[self._at] == token:
                self._at += 1
                self._trust += _TRUST
            else:
                self._look_up()
        self._seen = len(output)

    def propose(self, budget: int) -> Draft:
        """Return a chain of at most `budget` nodes: the prediction's next tokens."""
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
