"""Which piece of a completion's text came with which token, and which nodes were rejected between them."""

from collections import deque
from collections.abc import Sequence

from tokenizers import Tokenizer

from parlay.text.detokenizer import IncrementalDecoder
from parlay.text.token_bytes import DECODING, text_within
from parlay.types.output import Rejected

# Text, who supplied it, and whether it is part of the completion or a rejected node.
Piece = tuple[str, str | None, bool]


class Attribution:
    """Splits a growing completion's text by the source of each token; never beyond the completion's own text."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), *, skip_special_tokens: bool = True) -> None:
        """Create one for a completion of a prompt's tokens."""
        self._tokenizer = tokenizer
        self._pieces = IncrementalDecoder(tokenizer, prompt, skip_special_tokens=skip_special_tokens)
        # Where the text of each token ends, and its source; or a rejected node's text and source.
        self._waiting: deque[tuple[int, str] | tuple[str, str]] = deque()
        self._rejected_nodes: deque[Rejected] = deque()  # rejected behind the tokens so far
        self._text = ""  # what was not returned yet
        self._decoded = 0
        self._tokens = 0
        self._rejected = 0
        self._shown = 0

    def update(
        self,
        tokens: Sequence[int],
        sources: Sequence[str],
        text: str,
        rejected: Sequence[Rejected] = (),
        *,
        finished: bool = False,
    ) -> list[Piece]:
        """Return the part of `text` that was not returned before; as `add`, but with everything so far."""
        return self.add(
            tokens[self._tokens :],
            sources[self._tokens :],
            text[self._shown + len(self._text) :],
            rejected[self._rejected :],
            finished=finished,
        )

    def add(
        self,
        tokens: Sequence[int],
        sources: Sequence[str],
        text: str,
        rejected: Sequence[Rejected] = (),
        *,
        finished: bool = False,
    ) -> list[Piece]:
        """Return the text that was not returned before, in pieces with their sources.

        Args:
            tokens: further tokens.
            sources: name of the proposer of each of them, "target" or "grammar".
            text: further text, which may lag behind the tokens and at last be cut or completed. The decoded form of
                an incomplete last character is a piece without a source.
            rejected: further rejected nodes. Each is a piece of its own, before the text that comes next.
            finished: nothing more will come; nodes behind the end of the text are then returned too.
        """
        self._rejected_nodes += rejected
        self._rejected += len(rejected)
        for token, source in zip(tokens, sources, strict=True):
            self._wait()
            self._decoded += len(self._pieces.add(token))
            self._waiting.append((self._decoded, source))
            self._tokens += 1
        if finished:
            self._wait()
        text, begin = self._text + text, self._shown
        known = begin + len(text)
        new: list[Piece] = []
        while self._waiting and (finished or self._shown < known):
            end, source = self._waiting[0]
            if isinstance(end, str):
                new.append((end, source, False))
            else:
                if piece := text[self._shown - begin : max(0, end - begin)]:
                    new.append((piece, source, True))
                self._shown = max(self._shown, min(end, known))
                if end > known and not finished:
                    break
            self._waiting.popleft()
        if not self._waiting and self._shown < known:
            new.append((text[self._shown - begin :], None, True))
            self._shown = known
        self._text = text[self._shown - begin :]
        return new

    def _wait(self) -> None:
        """Queue the nodes that were rejected before the next token."""
        while self._rejected_nodes and self._rejected_nodes[0].at <= self._tokens:
            node = self._rejected_nodes.popleft()
            self._waiting.append((self._alone(node.token_id), node.source))

    def _alone(self, token: int) -> str:
        with DECODING:
            return text_within(self._tokenizer, token)
