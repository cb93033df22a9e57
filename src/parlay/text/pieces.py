"""Tokens to text, piece by piece."""

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from parlay.errors import RequestError
from parlay.panics import Contained

DECODING = Contained("the tokenizer cannot decode these tokens")


class Pieces:
    """The text of a sequence of tokens as it grows. What was returned is never taken back."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        self._pending: list[int] = []  # tokens whose text was not returned yet

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
            piece = self.rest
            self._stream = DecodeStream(ids=self._pending, skip_special_tokens=self._skip)
        if piece:
            self._pending.clear()
        return piece

    @property
    def rest(self) -> str:
        """The decoded tokens of an incomplete character, should nothing follow."""
        with DECODING:
            return str(self._tokenizer.decode(self._pending, skip_special_tokens=self._skip))
