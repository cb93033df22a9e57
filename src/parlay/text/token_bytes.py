"""What a single token stands for: text, or bytes that may be part of a character."""

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer

from parlay.rust_panics import Contained

DECODING = Contained("the tokenizer cannot decode these tokens")

_PLAIN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
# The byte that each letter of byte-level BPE stands for; unprintable ones have letters from 256 on.
LETTERS = {chr(byte): byte for byte in _PLAIN} | {
    chr(256 + i): byte for i, byte in enumerate(byte for byte in range(256) if byte not in _PLAIN)
}
BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")  # of SentencePiece's vocabularies


def raw_bytes(tokenizer: Tokenizer, token: int) -> bytes | None:
    """Return a token's bytes where the vocabulary spells bytes; None where it spells text.

    The spelling is that of byte-level BPE, one letter for each byte, or of SentencePiece, one token for each.
    """
    return _raw_bytes(tokenizer.id_to_token(token) or "", _kinds(tokenizer))


def all_bytes(tokenizer: Tokenizer) -> dict[int, bytes]:
    """Return the bytes of every token within a text, by its id.

    Raises:
        RequestError: the tokenizer's library fails.
    """
    kinds = _kinds(tokenizer)
    found: dict[int, bytes] = {}
    with DECODING:
        for spelled, token in tokenizer.get_vocab().items():
            raw = _raw_bytes(spelled, kinds)
            found[token] = _text_within(tokenizer, token).encode() if raw is None else raw
    return found


def spells_bytes(tokenizer: Tokenizer) -> bool:
    """Return whether a text is made up of its tokens' bytes, as they are."""
    return bool(_kinds(tokenizer) & {"ByteLevel", "ByteFallback", "Metaspace"})


def _raw_bytes(spelled: str, kinds: set[str]) -> bytes | None:
    if "ByteLevel" in kinds:
        if all(letter in LETTERS for letter in spelled):
            return bytes(LETTERS[letter] for letter in spelled)
        return spelled.encode()
    byte = BYTE_TOKEN.fullmatch(spelled) if "ByteFallback" in kinds else None
    return bytes([int(byte[1], 16)]) if byte else None


def text_within(tokenizer: Tokenizer, token: int) -> str:
    """Return one token's text as it is within a text, special or not; part of a character is U+FFFD."""
    raw = raw_bytes(tokenizer, token)
    if raw is not None:
        return raw.decode("utf-8", "replace")
    return _text_within(tokenizer, token)


def _text_within(tokenizer: Tokenizer, token: int) -> str:
    # Decoders that leave out the space before the first word leave none out before the second.
    alone, twice = (str(tokenizer.decode(tokens, skip_special_tokens=False)) for tokens in ([token], [token, token]))
    return twice[len(alone) :] if twice.startswith(alone) else alone


def unfinished(tokenizer: Tokenizer, tokens: Sequence[int]) -> int:
    """Return how many U+FFFD stand for the first bytes of a last character whose end is missing, if any."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        raw = raw_bytes(tokenizer, token)
        decoder.decode(raw or b"", final=raw is None)
    missing = len(decoder.getstate()[0])
    return min(missing, 1) if "ByteLevel" in _kinds(tokenizer) else missing


def parts(component: Any) -> Iterator[dict[str, Any]]:
    """Yield the parts of a tokenizer's normaliser, pre-tokenizer or decoder, if it has one, also within sequences."""
    left = [] if component is None else [json.loads(component.__getstate__())]
    while left:
        part = left.pop()
        inner = next((part[name] for name in ("normalizers", "pretokenizers", "decoders") if name in part), None)
        if inner is None:
            yield part
        else:
            left += inner


def _kinds(tokenizer: Tokenizer) -> set[str]:
    return {part["type"] for part in parts(tokenizer.decoder)}
