"""Tokens by their bytes, and bytes in tokens, in tokenizers of every kind that is served."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vocabularies import TEXTS, spelling, trained
from word_tokenizers import KINDS, SPACE

from parlay.text.spelling import Spelling, incomplete

# Of those that spell any text: the others lack most letters.
WHOLE = ("trained", "llama", "gemma")


@pytest.fixture(scope="module")
def spellings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Spelling]:
    made = {"trained": trained(400, TEXTS), **{kind: make() for kind, make in KINDS.items()}}
    return {kind: spelling(own, tmp_path_factory.mktemp("spelling") / "own") for kind, own in made.items()}


def joined(own: Spelling, tokens: list[int]) -> bytes:
    return b"".join(own.bytes[token] for token in tokens)


@pytest.mark.parametrize("kind", WHOLE)
@given(data=st.one_of(st.text().map(str.encode), st.binary(), st.sampled_from([text.encode() for text in TEXTS])))
def test_any_bytes_are_spelled(spellings: dict[str, Spelling], kind: str, data: bytes) -> None:
    own = spellings[kind]
    assert joined(own, own.spell(data)) == data
    assert joined(own, own.match(data)) == data


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("text", [*TEXTS, "Paris for the id", " the id", "\n  return x"])
def test_text_has_the_tokens_that_the_tokenizer_gives_it(
    spellings: dict[str, Spelling], kind: str, text: str
) -> None:
    """Behind other text: a first word may have a space before it that the text does not have."""
    own = spellings[kind]
    before = own.codec.encode("x\n", add_special_tokens=False)
    whole = own.codec.encode("x\n" + text, add_special_tokens=False)
    if whole[: len(before)] == before:
        assert own.spell(text.encode()) == whole[len(before) :]


def test_the_bytes_of_tokens(spellings: dict[str, Spelling]) -> None:
    tokenizers = {kind: own.codec.tokenizer for kind, own in spellings.items()}
    for kind in ("llama", "gemma", "metaspace always"):
        own = spellings[kind]
        assert own.bytes[tokenizers[kind].token_to_id(f"{SPACE}Paris")] == b" Paris"
        assert own.bytes[tokenizers[kind].token_to_id("日")] == "日".encode()
    assert spellings["llama"].bytes[tokenizers["llama"].token_to_id("<0xE6>")] == b"\xe6"
    assert spellings["byte level"].bytes[tokenizers["byte level"].token_to_id("Ġthe")] == b" the"
    assert all(not set(own.bytes) & set(own.special.values()) for own in spellings.values())


def test_a_letter_is_not_spelled_by_its_byte_where_the_vocabulary_has_it(spellings: dict[str, Spelling]) -> None:
    own = spellings["llama"]
    assert own.ids[b"x"] == own.codec.tokenizer.token_to_id("x")
    assert own.ids[b"q"] == own.codec.tokenizer.token_to_id("<0x71>")


def test_what_comes_before_a_text(spellings: dict[str, Spelling]) -> None:
    assert spellings["llama"].frame == (1,)
    assert spellings["trained"].frame == ()


def test_tokens_beyond_the_model_are_left_out(tmp_path: Path) -> None:
    own = spelling(trained(400, TEXTS), tmp_path / "own")
    short = Spelling(own.codec, 300)
    assert max(short.bytes) == 299
    text = TEXTS[0].encode()
    assert max(short.spell(text)) < 300 <= max(own.spell(text))
    assert joined(short, short.spell(text)) == text


def test_bytes_without_a_token_are_left_out(spellings: dict[str, Spelling]) -> None:
    own = spellings["metaspace never"]
    assert joined(own, own.spell(b"the ?? id")) == b"the  id"


@pytest.mark.parametrize("text", ["a", "é", "日", "😀"])
def test_the_beginning_of_a_character(text: str) -> None:
    data = text.encode()
    for size in range(1, len(data)):
        assert incomplete(b"x" + data[:size]) == incomplete(data[:size]) == size
    assert incomplete(data) == incomplete(data + b"x") == 0
    assert incomplete(b"\x80") == incomplete(b"") == 0
