"""Which piece of a completion's text came with which token."""

from collections import deque
from collections.abc import Sequence

from tokenizers import Tokenizer

from parlay.engine.pieces import Pieces


class Attribution:
    """Cuts a growing completion's text by who supplied each token; never beyond the completion's own text."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._pieces = Pieces(tokenizer, skip_special_tokens=skip_special_tokens)
        self._ends: deque[tuple[int, str]] = deque()  # where the text of each token ends, and its source
        self._decoded = 0
        self._tokens = 0
        self._shown = 0

    def update(self, tokens: Sequence[int], sources: Sequence[str], text: str) -> list[tuple[str, str | None]]:
        """Return what `text` has that was not returned before, in pieces with their sources.

        Args:
            tokens: all tokens so far.
            sources: who supplied each of them.
            text: the completion's text so far, which may lag behind the tokens and at last be cut or completed. What
                an incomplete last character decodes to is a piece without a source.
        """
        for token, source in zip(tokens[self._tokens :], sources[self._tokens :], strict=True):
            self._decoded += len(self._pieces.add(token))
            self._ends.append((self._decoded, source))
        self._tokens = len(tokens)
        new: list[tuple[str, str | None]] = []
        while self._ends and self._shown < len(text):
            end, source = self._ends[0]
            if piece := text[self._shown : end]:
                new.append((piece, source))
            self._shown = max(self._shown, min(end, len(text)))
            if end > len(text):
                break
            self._ends.popleft()
        if not self._ends and self._shown < len(text):
            new.append((text[self._shown :], None))
            self._shown = len(text)
        return new
