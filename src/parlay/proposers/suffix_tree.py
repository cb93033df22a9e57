"""Counts and places of the strings that occur in token sequences, and which tokens they make likely next.

`SuffixTree` is the simple form, a table of every string. It is used where no compiler was found, and is the
reference for the native trie (`csrc/suffix.h`), which has the same methods. Which of several equally frequent tokens
is followed depends on history: the one that first reached the count; after something was removed, the one that came
first.

Sources: SuffixDecoding (Oliaro et al. 2411.04975), with its reference implementation's scores; `lookup` is Prompt
Lookup Decoding (Saxena 2023).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np

Tokens = tuple[int, ...]


class Continuation(NamedTuple):
    """A chain of tokens.

    Attributes:
        tokens: the draft tokens.
        probs: probability for each token that it and all before it follow.
        score: sum of `probs`: the expected number of accepted tokens.
        match: number of tokens of context that were found.
    """

    tokens: list[int]
    probs: list[float]
    score: float
    match: int


class Branches(NamedTuple):
    """A tree of what may follow, its likeliest path first.

    Attributes:
        tokens: the draft tokens.
        parents: index of each one's parent, -1 for those that follow at once.
        probs: probability for each token that it and all before it follow.
        score: score of the best chain, see `Continuation`.
    """

    tokens: list[int]
    parents: list[int]
    probs: list[float]
    score: float


class SuffixTree:
    """The simple form. A sequence is identified by its number."""

    def __init__(self, depth: int, latest: bool = False) -> None:
        """Count strings of up to `depth` tokens; see `make_tree`."""
        self._depth, self._latest = depth, latest
        self._counts: dict[Tokens, int] = {}
        self._children: dict[Tokens, list[int]] = {}  # in the order in which they came
        self._best: dict[Tokens, int] = {}
        self._sequences: dict[int, list[int]] = {}
        self._removed: dict[int, int] = {}
        self._number = 0

    @property
    def bytes(self) -> int:
        """How much memory is used, approximately."""
        return 200 * len(self._counts) + 8 * sum(map(len, self._sequences.values()))

    def begin(self) -> int:
        """Start an empty sequence."""
        self._number += 1
        self._sequences[self._number], self._removed[self._number] = [], 0
        return self._number

    def append(self, sequence: int, tokens: Sequence[int]) -> None:
        """Count the strings that end with each of the next tokens of a sequence."""
        known = self._sequences[sequence]
        for token in tokens:
            known.append(token)
            for length in range(min(self._depth, len(known)), 0, -1):
                self._add(tuple(known[-length:]))

    def _add(self, string: Tokens) -> None:
        count = self._counts[string] = self._counts.get(string, 0) + 1
        above, token = string[:-1], string[-1]
        if count == 1:
            self._children.setdefault(above, []).append(token)
        best = self._best.get(above)
        if best is None or count > self._counts[(*above, best)]:
            self._best[above] = token

    def end(self, sequence: int) -> None:
        """Record that a sequence will not grow any more."""

    def remove(self, sequence: int, count: int) -> bool:
        """Uncount the strings that begin at the next `count` places of a sequence; True once it is gone."""
        known = self._sequences[sequence]
        for _ in range(count):
            start = self._removed[sequence]
            if start == len(known):
                break
            for end in range(min(start + self._depth, len(known)), start, -1):
                self._take(tuple(known[start:end]))
            self._removed[sequence] += 1
        if self._removed[sequence] < len(known):
            return False
        del self._sequences[sequence], self._removed[sequence]
        return True

    def _take(self, string: Tokens) -> None:
        above, token = string[:-1], string[-1]
        self._counts[string] -= 1
        if self._counts[string] == 0:
            del self._counts[string]
            self._children[above].remove(token)
        if self._best[above] == token:
            del self._best[above]
            if children := self._children[above]:
                self._best[above] = max(children, key=lambda child: self._counts[(*above, child)])
            else:
                del self._children[above]

    def strings(self) -> Iterator[tuple[Tokens, int]]:
        """Yield every string with its count."""
        yield from self._counts.items()

    def count(self, tokens: Sequence[int]) -> int:
        """Return how often a string of up to `depth` tokens occurs."""
        return self._counts.get(tuple(tokens), 0)

    def guess(
        self, sequence: int, most: int, factor: float, offset: float, min_prob: float
    ) -> tuple[list[int], list[float], float, int]:
        """Draft what follows a growing sequence.

        Args:
            sequence: number of the sequence.
            most: most tokens to draft.
            factor, offset: bound of the draft: `m * factor + offset` tokens after a match of m.
            min_prob: least probability of all tokens so far.

        Returns:
            what `Continuation` has.
        """
        return self.guess_after(self._sequences[sequence], most, factor, offset, min_prob)

    def guess_after(
        self, tokens: Sequence[int], most: int, factor: float, offset: float, min_prob: float
    ) -> tuple[list[int], list[float], float, int]:
        """Draft what follows a text, of which the last `depth` tokens are looked at; otherwise as `guess`."""
        text, best = tuple(tokens[-self._depth :]), Continuation([], [], 0.0, 0)
        for match in range(1, len(text)):
            if text[-match:] not in self._counts:
                break
            found = self._follow(text[-match:], self._longest(match, most, factor, offset), min_prob)
            if found.tokens and found.score >= best.score:
                best = found
        return best

    def branch(
        self, sequence: int, most: int, factor: float, offset: float, min_prob: float
    ) -> tuple[list[int], list[int], list[float], float]:
        """Draft a tree of `most` tokens that follow the match of the best chain; otherwise as `guess`.

        Returns:
            what `Branches` has.
        """
        return self.branch_after(self._sequences[sequence], most, factor, offset, min_prob)

    def branch_after(
        self, tokens: Sequence[int], most: int, factor: float, offset: float, min_prob: float
    ) -> tuple[list[int], list[int], list[float], float]:
        """Draft a tree of what follows a text, as `guess_after` does a chain."""
        chain = Continuation(*self.guess_after(tokens, most, factor, offset, min_prob))
        if not chain.tokens:
            return Branches([], [], [], 0.0)
        match = tuple(tokens[-chain.match :])
        longest = len(match) + self._longest(len(match), most, factor, offset)
        taken: list[tuple[np.float32, Tokens]] = []
        waiting = self._likely(np.float32(1), match, longest, min_prob)
        while waiting and len(taken) < most:
            best = max(waiting, key=lambda one: one[0])  # among equals the one that came first
            waiting.remove(best)
            taken.append(best)
            waiting += self._likely(*best, longest, min_prob)
        made = Branches([], [], [], chain.score)

        def walk(above: Tokens, parent: int) -> None:
            for prob, string in taken:
                if string[:-1] == above:
                    made.tokens.append(string[-1])
                    made.parents.append(parent)
                    made.probs.append(float(prob))
                    walk(string, len(made.tokens) - 1)

        walk(match, -1)
        return made

    def _likely(
        self, prob: np.float32, string: Tokens, longest: int, min_prob: float
    ) -> list[tuple[np.float32, Tokens]]:
        """Return the continuations of a string of some probability: the one that chains follow, then by frequency."""
        if len(string) >= longest:
            return []
        best, counts = self._best.get(string), self._counts
        children = sorted(
            self._children.get(string, ()),
            key=lambda token: (token != best, -counts[(*string, token)], token),
        )
        shares = ((np.float32(counts[(*string, token)]) / np.float32(counts[string]), token) for token in children)
        least = np.float32(min_prob) / prob
        return [(prob * share, (*string, token)) for share, token in shares if share >= least]

    def _longest(self, match: int, most: int, factor: float, offset: float) -> int:
        return min(most, int(np.float32(match * factor + offset + 1e-6)))

    def lookup(self, sequence: int, least: int, most: int, longest: int) -> list[int]:
        """Return what followed where the end of a growing sequence occurred before.

        Only in a tree that never held two sequences at once.

        Args:
            sequence: number of the sequence.
            least: number of tokens of its end that must have occurred; the longest string that has is followed.
            most: most tokens to return.
            longest: most tokens of that string, beside `depth`.

        Returns:
            the tokens that followed, up to the end of the sequence; none without an earlier occurrence.
        """
        text = self._sequences[sequence]
        for length in range(min(self._depth, len(text), longest), least - 1, -1):
            string = text[-length:]
            if self._counts[tuple(string)] == 1:
                continue  # this very place
            ends = range(length, len(text))
            for end in reversed(ends) if self._latest else ends:
                if text[end - length : end] == string:
                    return text[end : end + most]
        return []

    def _follow(self, string: Tokens, most: int, min_prob: float) -> Continuation:
        tokens: list[int] = []
        probs: list[float] = []
        prob, score = np.float32(1), np.float32(0)
        match = len(string)
        while len(tokens) < most and string in self._best:
            child = (*string, self._best[string])
            prob *= np.float32(self._counts[child]) / np.float32(self._counts[string])
            if prob < np.float32(min_prob):
                break
            tokens.append(child[-1])
            probs.append(float(prob))
            score += prob
            string = child
        return Continuation(tokens, probs, float(score), match)


def make_tree(depth: int, *, latest: bool = False) -> SuffixTree:
    """Return an empty tree of strings of up to `depth` tokens: the native one where it was built.

    `latest` is whether `lookup` goes to the last of several earlier places; otherwise to the first.
    """
    try:
        from parlay.kernels import _native
    except ImportError:
        return SuffixTree(depth, latest)
    return cast(SuffixTree, _native.SuffixTrie(depth, latest))
