"""A request's text in a draft model's own tokens, and its drafts in the target's.

Tokens of both are compared by their bytes. Two ways, after Timor et al. 2025 (arXiv 2502.05202):

`intersection` reads token by token: one that both vocabularies have is the same token, any other is spelled with the
draft model's. It drafts shared tokens alone, with the noise of the target's ids, so that draws agree as they do with
one vocabulary.

`text` reads the text anew: the end of it is spelled as the draft model's tokenizer has it, which may change tokens
before. It drafts any token, and what these spell becomes the target's tokens, as its tokenizer has them behind the
end of the text. Noise is shared as long as tokens are.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import prod

import torch
from torch import Tensor

from parlay.proposers.methods.draft_model.shared_tokens import SharedTokens
from parlay.text.spelling import Spelling, incomplete
from parlay.types.draft import NO_DRAFT, ROOT, Draft

_LONG, _SHORT = 64, 16  # tokens that are read anew: when so many may be, all but the last few are settled
_RECENT = 16  # of the target's tokens, with which what follows may make up words


@dataclass(slots=True)
class TranslatedText:
    """The text of one request, which grows.

    Attributes:
        own: the text in the draft model's tokens.
        count: number of the target's tokens that it consists of.
        settled: number of tokens of `own` that no further text changes.
        rest: bytes of the tokens behind these.
        recent: the last of the target's tokens that are text.
    """

    own: list[int] = field(default_factory=list)
    count: int = 0
    settled: int = 0
    rest: bytes = b""
    recent: list[int] = field(default_factory=list)


class Translator(ABC):
    """One of the two ways to translate.

    Attributes:
        ids: int64 `[S]`, the expander's ids of the tokens that may be drafted: the target's id where there is one.
        rows: int64 `[S]`, the draft model's ids of these tokens; None for all.
        to_own: int64 `[n]`, the draft model's ids by the expander's.
    """

    ids: Tensor
    rows: Tensor | None = None
    to_own: Tensor

    def __init__(self, shared: SharedTokens) -> None:
        self._shared = shared

    def begin(self) -> TranslatedText:
        """Return the text of a request of which nothing is known."""
        frame = list(self._shared.draft.frame)
        return TranslatedText(frame, settled=len(frame))

    def read(self, text: TranslatedText, tokens: Sequence[int]) -> None:
        """Add further tokens of the target's to a text."""
        if tokens and not text.count and text.own and self._shared.to_draft.get(tokens[0]) == text.own[-1]:
            text.own.pop()  # the prompt begins with its own mark
            text.settled -= 1
        self.extend(text, tokens)
        text.count += len(tokens)

    @abstractmethod
    def extend(self, text: TranslatedText, tokens: Sequence[int]) -> None:
        """Add tokens to `own`."""

    @cached_property
    def _own(self) -> list[int]:
        own: list[int] = self.to_own.tolist()
        return own

    def own_of(self, tokens: Sequence[int]) -> list[int]:
        """Return the draft model's tokens of a draft of the expander's."""
        return [self._own[token] for token in tokens]

    def write(self, text: TranslatedText, draft: Draft, most: int) -> Draft:
        """Return a draft of the expander's behind a text in at most `most` of the target's tokens."""
        return draft


class TokenByToken(Translator):
    """Drafts shared tokens, and reads others as what they are made of."""

    def __init__(self, shared: SharedTokens, vocab_size: int) -> None:
        """Make the tables.

        Args:
            shared: the tokens that both have.
            vocab_size: size of the target's vocabulary.
        """
        super().__init__(shared)
        self.ids, self.rows = shared.ids, shared.rows
        self.to_own = torch.zeros(vocab_size, dtype=torch.int64)
        self.to_own[self.ids] = self.rows
        self._pieces: dict[int, list[int]] = {}

    def extend(self, text: TranslatedText, tokens: Sequence[int]) -> None:  # noqa: D102
        shared = self._shared.to_draft
        for token in tokens:
            own = shared.get(token)
            if own is None:
                text.own += self._spelled(token)
            else:
                text.own.append(own)
        text.settled = len(text.own)

    def _spelled(self, token: int) -> list[int]:
        """Return the pieces of a token that the draft model lacks; of one that is no text there are none."""
        found = self._pieces.get(token)
        if found is None:
            data = self._shared.target.bytes.get(token, b"")
            found = self._pieces[token] = self._shared.draft.spell(data)
        return found


class Retokenised(Translator):
    """Reads and writes text."""

    def __init__(self, shared: SharedTokens, vocab_size: int, draft_size: int) -> None:
        """Make the tables.

        Args:
            shared: the tokens that both have.
            vocab_size: size of the target's vocabulary.
            draft_size: size of the draft model's vocabulary.
        """
        super().__init__(shared)
        self._vocab_size = vocab_size
        every = torch.arange(draft_size)
        self.ids = every + vocab_size  # those of tokens that the target lacks are beyond its own
        self.ids[shared.rows] = shared.ids
        self.to_own = torch.cat([torch.zeros(vocab_size, dtype=torch.int64), every])
        self.to_own[self.ids] = every

    def extend(self, text: TranslatedText, tokens: Sequence[int]) -> None:  # noqa: D102
        target = self._shared.target
        parts: list[bytes] = []
        for token in tokens:
            data = target.bytes.get(token)
            if data is not None:
                parts.append(data)
                text.recent.append(token)
                continue
            self._respell(text, parts)
            own = self._shared.to_draft.get(token)
            text.own += () if own is None else (own,)
            text.settled, text.rest, parts = len(text.own), b"", []
            text.recent.clear()
        self._respell(text, parts)
        del text.recent[:-_RECENT]

    def _respell(self, text: TranslatedText, parts: Sequence[bytes]) -> None:
        """Read what is not settled anew with further bytes, and settle most of it if that has become much."""
        if not parts:
            return
        draft = self._shared.draft
        text.rest += b"".join(parts)
        text.own[text.settled :] = found = draft.spell(text.rest)
        if len(found) < _LONG:
            return
        spelled = [draft.bytes[token] for token in found]
        last = len(spelled) - _SHORT
        place = _word(spelled, last) or last
        if sum(map(len, spelled)) != len(text.rest):  # the draft model has no token for some bytes
            place = len(spelled)
        text.settled += place
        text.rest = b"".join(spelled[place:])

    def write(self, text: TranslatedText, draft: Draft, most: int) -> Draft:  # noqa: D102
        tokens: list[int] = []
        parents: list[int] = []
        probs: list[float] = []
        places: dict[tuple[int, int], int] = {}
        for path in _paths(draft):
            parent = ROOT
            for token, prob in self._target_tokens(text, draft, path):
                place = places.get((parent, token))
                if place is None:
                    if len(tokens) == most:
                        break
                    place = places[parent, token] = len(tokens)
                    tokens.append(token)
                    parents.append(parent)
                    probs.append(prob)
                parent = place
        if not tokens:
            return NO_DRAFT
        return Draft(tuple(tokens), tuple(parents), draft.source[:1] * len(tokens), tuple(probs))

    def _target_tokens(self, text: TranslatedText, draft: Draft, path: Sequence[int]) -> Iterator[tuple[int, float]]:
        """Yield the target's tokens of a path's text, each with the probability of what it is made of."""
        shared, own = self._shared, self.own_of([draft.tokens[node] for node in path])
        probs = [draft.probs[node] if draft.probs is not None else 1.0 for node in path]
        count = next((i for i, token in enumerate(own) if token not in shared.draft.bytes), len(own))
        spelled = [shared.draft.bytes[token] for token in own[:count]]
        recent = [shared.target.bytes[token] for token in text.recent]
        before = b"".join(recent[_word(recent, len(recent)) :])
        data = b"".join(spelled)
        missing = incomplete(before + data)
        data = data[: max(len(data) - missing, 0)]
        begins = list(accumulate(map(len, spelled), initial=0))
        at = 0
        for token in _behind(shared.target, before, data):
            begin, at = at, at + len(shared.target.bytes[token])
            yield token, prod(prob for first, prob in zip(begins, probs, strict=False) if begin <= first < at)
        if count < len(own) and not missing and own[count] in shared.to_target:
            yield shared.to_target[own[count]], probs[count]  # a special token, behind which nothing comes


def _behind(target: Spelling, before: bytes, data: bytes) -> list[int]:
    """Return the tokens of `data` as they come behind those of `before`, which are given."""
    at = 0
    found = target.spell(before + data)
    for place, token in enumerate(found):
        if at >= len(before):
            # A token across the border cannot come: its end is spelled by itself.
            return target.match(data[: at - len(before)]) + found[place:]
        at += len(target.bytes[token])
    return target.match(data)


def _word(parts: Sequence[bytes], last: int) -> int:
    """Return the place of the last part, at `last` or before, with which a word begins; 0 if there is none.

    Tokenizers split texts there, so that what comes before decides nothing behind.
    """
    for place in range(min(last, len(parts) - 1), 0, -1):
        before, begins = parts[place - 1], b"".join(parts[place : place + 2])
        if begins[:1] == b" " and begins[1:2].strip() and not before[-1:].isspace():
            return place
    return 0


def _paths(draft: Draft) -> Iterator[list[int]]:
    """Yield the nodes from the root to each leaf, in the leaves' order."""
    inner = set(draft.parents)
    for leaf in range(len(draft)):
        if leaf in inner:
            continue
        path = [leaf]
        while draft.parents[path[-1]] != ROOT:
            path.append(draft.parents[path[-1]])
        yield path[::-1]


TRANSLATORS: dict[str, Callable[[SharedTokens, int, int], Translator]] = {
    "intersection": lambda shared, vocab_size, draft_size: TokenByToken(shared, vocab_size),
    "text": Retokenised,
}
