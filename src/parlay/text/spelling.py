"""A tokenizer's tokens by their bytes, and any bytes in its tokens."""

from collections.abc import Sequence
from itertools import accumulate

from parlay.errors import RequestError
from parlay.text.token_bytes import BYTE_TOKEN, all_bytes
from parlay.text.tokenizer import TextCodec

_CHARACTER = 4  # bytes of the longest
_ANCHOR = "\n"  # behind it a text begins without the space that tokenizers put before a first word


class Spelling:
    """What the tokens of one model are made of.

    Attributes:
        codec: the tokenizer.
        bytes: bytes of each token that stands for text, by its id: those of successive tokens make up the text.
        ids: tokens by their bytes, which no two tokens share here.
        special: ids of special tokens by their names.
        end: the token that ends a text, if the tokenizer's config names one.
        frame: the special tokens that the tokenizer puts before a text.
    """

    def __init__(self, codec: TextCodec, size: int) -> None:
        """Read a tokenizer.

        Args:
            codec: the tokenizer.
            size: tokens of the model; further ones of the tokenizer are left out.
        """
        self.codec, tokenizer = codec, codec.tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.special = {
            one.content: token for token, one in added.items() if token in codec.special_ids and token < size
        }
        spelled = all_bytes(tokenizer)
        self.bytes = {
            token: data for token, data in spelled.items() if data and token < size and token not in codec.special_ids
        }
        # A byte's own token is not the one that text has, where the vocabulary has both.
        named = {token: bool(BYTE_TOKEN.fullmatch(name)) for name, token in tokenizer.get_vocab().items()}
        plain = sorted(self.bytes, key=lambda token: (named[token], token in added, token))
        self.ids: dict[bytes, int] = {}
        for token in plain:
            self.ids.setdefault(self.bytes[token], token)
        self._longest = max(map(len, self.ids), default=0)
        self.end = codec.end if codec.end is not None and codec.end < size else None
        self.frame = self._frame()

    def _frame(self) -> tuple[int, ...]:
        special = set(self.special.values())
        try:
            found = self.codec.encode("")
        except RequestError:
            return ()
        before = next((i for i, token in enumerate(found) if token not in special or token == self.end), len(found))
        return tuple(found[:before])

    def spell(self, data: bytes) -> list[int]:
        """Return tokens that are exactly these bytes, those that the tokenizer gives to text where it can.

        Bytes of which the vocabulary has none are left out.
        """
        whole = len(data) - incomplete(data)
        found = self._encoded(data[:whole]) if whole else []
        if found is None:
            return self.match(data)
        return found + self.match(data[whole:])

    def match(self, data: bytes) -> list[int]:
        """Return tokens of bytes, always the longest that fits."""
        found: list[int] = []
        at = 0
        while at < len(data):
            ends = range(min(len(data), at + self._longest), at, -1)
            end = next((end for end in ends if data[at:end] in self.ids), None)
            if end is not None:
                found.append(self.ids[data[at:end]])
            at = at + 1 if end is None else end
        return found

    def size(self, tokens: Sequence[int]) -> int:
        """Return how many bytes tokens have."""
        return sum(len(self.bytes.get(token, b"")) for token in tokens)

    def _encoded(self, data: bytes) -> list[int] | None:
        """Return the tokens of text as the tokenizer finds them within a text; None if they have other bytes."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return None
        for given in (text, text[1:] if text[0] == " " else "", _ANCHOR + text):
            if not given:
                continue
            try:
                found = self.codec.encode(given, add_special_tokens=False)
            except RequestError:
                return None
            sizes = [len(self.bytes.get(token, b"")) for token in found]
            lead = sum(sizes) - len(data)  # bytes before those that are wanted
            begin = next((i for i, end in enumerate(accumulate(sizes, initial=0)) if end == lead), None)
            if begin is not None and b"".join(self.bytes.get(t, b"\xff") for t in found[begin:]) == data:
                return found[begin:]
        return None


def incomplete(data: bytes) -> int:
    """Return how many of the last bytes begin a character whose end is missing."""
    for size in range(1, min(_CHARACTER, len(data) + 1)):
        first = data[-size]
        if first >= 0xC0:
            wanted = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
            return size if wanted > size else 0
        if first < 0x80:
            return 0
    return 0
