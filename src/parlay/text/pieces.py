"""Tokens to text, piece by piece."""

from collections.abc import Sequence
from itertools import takewhile

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from parlay.errors import RequestError
from parlay.rust_panics import Contained
from parlay.text.token_bytes import BYTE_TOKEN, unfinished

DECODING = Contained("the tokenizer cannot decode these tokens")

_MARK = "\N{REPLACEMENT CHARACTER}"
_CHARACTER = 4  # bytes of the longest
_TAIL = 8  # tokens of a prompt that are looked at first


class Pieces:
    """The text of a sequence of tokens as it grows behind a prompt. What was returned is never taken back.

    It is what the text of prompt and output together has beyond that of the prompt: many decoders leave out the
    space before a text's first word, which only a prompt's first word is.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), *, skip_special_tokens: bool) -> None:
        """Begin behind the tokens of a prompt."""
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        # Tokens whose text was returned, or is the prompt's, and those behind them.
        self._context, self._pending = self._tail(prompt), list[int]()
        # A prompt may end within a character, which the output completes.
        while self._context and self._decode(self._context).endswith(_MARK):
            self._pending.insert(0, self._context.pop())
            if len(self._pending) == _CHARACTER:  # which it is none then
                self._context.clear()
        self._shown = self._decode(self._pending)
        self._stream = DecodeStream(ids=self._context, skip_special_tokens=skip_special_tokens)
        for token in self._pending:
            self._stream.step(tokenizer, token)

    def add(self, token: int) -> str:
        """Return the text that a token adds, which is empty while a character is incomplete."""
        self._pending.append(token)
        try:
            with DECODING:
                piece = self._stream.step(self._tokenizer, token) or ""
        except RequestError:
            raise
        except Exception:
            # Raised by the library: where bytes are tokens, some that make no character change earlier bytes' text.
            # What was returned stays, and decoding starts anew behind it.
            piece = self._decode(self._pending)
            self._stream = DecodeStream(ids=self._pending, skip_special_tokens=self._skip)
        if piece:
            self._context, self._pending = self._pending, []
            if self._shown:
                piece, self._shown = self._new(piece), ""
        return piece

    def rest(self, further: Sequence[int] = ()) -> str:
        """Return the text of the pending tokens and further ones, the last ones of the output.

        A character that is still incomplete then has none.
        """
        pending = [*self._pending, *further]
        before, text = self._decode(self._context), self._decode([*self._context, *pending])
        text = text[len(before) :] if text.startswith(before) else self._decode(pending)
        text = self._new(text)
        if not text.endswith(_MARK):
            return text
        visible = [token for token in pending if self._decode([token])]
        return text.removesuffix(_MARK * unfinished(self._tokenizer, visible))

    def _new(self, piece: str) -> str:
        """Return what a piece has beyond what the prompt's text shows of it."""
        pairs = zip(piece, self._shown, strict=False)
        return piece[sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) :]

    def _decode(self, tokens: list[int]) -> str:
        with DECODING:
            return str(self._tokenizer.decode(tokens, skip_special_tokens=self._skip))

    def _tail(self, prompt: Sequence[int]) -> list[int]:
        """Return the end of a prompt behind which tokens have the same text as behind all of it.

        It has a word or a sign, before which spaces are left out if anywhere, and begins within no run of bytes,
        which decode together.
        """
        size = _TAIL
        while size < len(prompt):
            tail = list(prompt[-size:])
            if not BYTE_TOKEN.fullmatch(self._tokenizer.id_to_token(tail[0]) or ""):
                text = self._decode(tail)
                if not text.isspace() and text.strip(f"{_MARK} "):
                    return tail
            size *= 2
        return list(prompt)
