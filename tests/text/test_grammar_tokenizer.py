"""A tokenizer as grammars read it: llguidance's own reading of `tokenizer.json` is the twin."""

from collections.abc import Callable

import pytest
import word_tokenizers
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from tokenizers import AddedToken, Tokenizer

from parlay.checkpoints.find import find_model
from parlay.text.grammar_tokenizer import GrammarTokenizer

END = 2
UNUSED = 3  # rows of a model that stand for no token


def tiny_code() -> Tokenizer:
    return Tokenizer.from_file(str(find_model("tiny-code") / "tokenizer.json"))


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": tiny_code,
    "a space before the first word": word_tokenizers.llama,
    "a token for each byte": lambda: word_tokenizers.llama(first=False),
}


def both(tokenizer: Tokenizer, size: int) -> tuple[LLTokenizer, LLTokenizer]:
    given = TokenizerWrapper(GrammarTokenizer(tokenizer, size, END))
    return (
        LLTokenizer(given, n_vocab=size, eos_token=[END]),
        LLTokenizer(tokenizer.to_str(), n_vocab=size, eos_token=[END]),
    )


READ = {kind: both(make(), make().get_vocab_size() + UNUSED) for kind, make in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_every_token(kind: str) -> None:
    ours, theirs = READ[kind]
    assert (ours.vocab_size, ours.eos_tokens, ours.is_canonical) == (theirs.vocab_size, [END], True)
    for token in range(ours.vocab_size - UNUSED):
        assert ours.decode_bytes([token]) == theirs.decode_bytes([token])
        assert ours.dbg_tokens([token]) == theirs.dbg_tokens([token])  # which tells special tokens


@pytest.mark.parametrize("kind", KINDS)
@given(st.text(st.sampled_from("deforx :\n\"'{}é日"), max_size=12))
def test_forced_text_is_spelled_as_within_a_text(kind: str, text: str) -> None:
    ours, theirs = READ[kind]
    assert ours.tokenize_str(text) == theirs.tokenize_str(text)
    assert ours.tokenize_bytes(text.encode()[:-1]) == theirs.tokenize_bytes(text.encode()[:-1])


def test_an_added_token_that_is_not_special_is_text() -> None:
    """Such as Qwen's `<tool_call>`, which llguidance's own reading takes for a special one."""
    tokenizer = tiny_code()
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False)])
    (token,) = tokenizer.encode("<tool_call>", add_special_tokens=False).ids
    ours, theirs = both(tokenizer, tokenizer.get_vocab_size())
    for read, permitted in ((ours, True), (theirs, False)):
        matcher = LLMatcher(read, LLMatcher.grammar_from_regex('[^"]*'))
        assert (matcher.validate_tokens([token]) == 1) == permitted


def test_a_space_that_only_the_first_word_has() -> None:
    """llguidance does not know this decoder."""
    tokenizer = word_tokenizers.metaspace("first")
    given = GrammarTokenizer(tokenizer, tokenizer.get_vocab_size(), END)
    assert [given.tokens[token] for token in given("Paris the")] == [b"Paris", b" the"]


@pytest.mark.parametrize("make", [word_tokenizers.word_piece, word_tokenizers.suffixed])
def test_tokens_that_are_not_pieces_of_text(make: Callable[[], Tokenizer]) -> None:
    with pytest.raises(ValueError, match="not pieces of text"):
        GrammarTokenizer(make(), 10, END)
