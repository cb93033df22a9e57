"""Tokens to text, as they come."""

from collections.abc import Sequence
from io import StringIO
from itertools import takewhile

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from parlay.errors import RequestError
from parlay.text.token_bytes import BYTE_TOKEN, DECODING, unfinished
from parlay.text.tokenizer import TextCodec
from parlay.types.params import SamplingParams

_MARK = "\N{REPLACEMENT CHARACTER}"
_CHARACTER = 4  # bytes of the longest
_TAIL = 8  # tokens of a prompt that are looked at first


class IncrementalDecoder:
    """The text of a sequence of tokens as it grows behind a prompt. What was returned is never taken back.

    It is what the text of prompt and output together has beyond that of the prompt: many decoders leave out the
    space before a text's first word, which only a prompt's first word is.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), *, skip_special_tokens: bool) -> None:
        """Start behind the tokens of a prompt."""
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


class Detokenizer:
    """One completion's text, token by token; the cost of a token does not grow with the length of the text."""

    def __init__(self, codec: TextCodec, params: SamplingParams, prompt: Sequence[int] = ()) -> None:
        """Start with no text.

        Args:
            codec: the tokenizer.
            params: the request's parameters: what ends its text, and whether special tokens are part of it.
            prompt: tokens that the text continues.
        """
        self._stop = tuple(params.stop)
        self._include = params.include_stop_str_in_output
        self._immune = params.min_tokens  # so many of the first tokens complete no stop string
        self._decoder = IncrementalDecoder(codec.tokenizer, prompt, skip_special_tokens=params.skip_special_tokens)
        self._tokens = 0
        self._hold = max(map(len, self._stop), default=1) - 1
        self._text = StringIO(newline="\n")  # which translates no line ends
        self._length = 0

    def append(self, token: int) -> str | None:
        """Add a token; return the stop string that it completes, after cutting the text before or behind it."""
        piece = self._decoder.add(token)
        self._tokens += 1
        immune, self._immune = self._immune > 0, self._immune - 1
        if not piece:
            return None
        before = self._length
        self._text.seek(before)
        self._text.write(piece)
        self._length += len(piece)
        if immune or not self._stop:
            return None
        # What the piece completes begins in the last characters.
        begin = max(0, before - self._hold)
        tail = self._from(begin)
        found = [(at, s) for s in self._stop if (at := tail.find(s, max(0, before + 1 - len(s) - begin))) >= 0]
        if not found:
            return None
        at, stop = min(found)
        self._length = begin + at + (len(stop) if self._include else 0)
        self._text.truncate(self._length)
        return stop

    def _from(self, begin: int) -> str:
        self._text.seek(begin)
        return self._text.read()

    @property
    def text(self) -> str:
        """Everything decoded so far, cut once a stop string was found."""
        return self._from(0)

    @property
    def settled(self) -> str:
        """The text without an end that may turn out to begin a stop string; it is never taken back."""
        return self.settled_since(0)

    def settled_since(self, seen: int) -> str:
        """Return what `settled` has after its first `seen` characters, without reading those."""
        begin = min(seen, max(0, self._length - self._hold))
        text = self._from(begin)
        for length in range(min(self._hold, self._length), 0, -1):
            if any(s.startswith(text[-length:]) for s in self._stop):
                text = text[:-length]
                break
        return text[seen - begin :]

    def complete(self, tokens: Sequence[int]) -> str:
        """Return the final text of a whole completion; a last character that is incomplete is left out.

        Args:
            tokens: those that were added, and perhaps further ones.
        """
        return self.text + self._decoder.rest(tokens[self._tokens :])
