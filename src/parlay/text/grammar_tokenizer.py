"""A tokenizer as llguidance reads one."""

import json
from typing import Any

from tokenizers import Tokenizer

from parlay.text.token_bytes import all_bytes, parts, spells_bytes


class GrammarTokenizer:
    """The bytes of tokens, and the tokens of text that a grammar forces: for `llguidance.TokenizerWrapper`.

    llguidance could read `tokenizer.json` itself. That holds the interpreter's lock three times as long, and makes a
    second tokenizer.

    Attributes:
        eos_token_id: an end-of-sequence token.
        bos_token_id: none, since answers do not begin with it.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end: int) -> None:
        """Wrap a tokenizer.

        Args:
            tokenizer: the tokenizer.
            vocab_size: number of the model's tokens; further ones are left out.
            end: an end-of-sequence token.

        Raises:
            ValueError: texts are not made up of the bytes of tokens.
        """
        if not spells_bytes(tokenizer):
            raise ValueError(
                "its tokens are not pieces of text as it is (its decoder is not ByteLevel, ByteFallback or Metaspace)"
            )
        self.eos_token_id = end
        self._tokenizer, self._vocab_size = _without_prefix(tokenizer), vocab_size

    @property
    def tokens(self) -> list[bytes]:
        """The bytes of each token within a text; each access reads the vocabulary.

        Raises:
            RequestError: the tokenizer's library fails.
        """
        found = all_bytes(self._tokenizer)
        return [found.get(token, b"") for token in range(self._vocab_size)]

    @property
    def special_token_ids(self) -> list[int]:
        """The tokens that text cannot spell."""
        added = self._tokenizer.get_added_tokens_decoder()
        return [token for token, one in added.items() if one.special and token < self._vocab_size]

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of text as they are within a text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _without_prefix(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that puts no space before the first word, which may be the one given."""
    both = [*parts(tokenizer.normalizer), *parts(tokenizer.pre_tokenizer)]
    if not any(_bare(part) != part for part in both):
        return tokenizer
    spec = json.loads(tokenizer.to_str(), object_hook=_bare)
    return Tokenizer.from_str(json.dumps(spec))


def _bare(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a tokenizer without the space that it puts before the first word."""
    match part:
        case {"type": "Prepend"}:
            return {"type": "Sequence", "normalizers": []}
        case {"type": "Metaspace"}:
            return {**part, "prepend_scheme": "never"}
        case {"type": "ByteLevel", "add_prefix_space": True}:
            return {**part, "add_prefix_space": False}
    return part
