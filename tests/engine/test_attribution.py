"""Pieces of a text by who supplied them, with rejected guesses at their places."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import Metaspace
from tokenizers.models import WordLevel

from parlay import SamplingParams
from parlay.checkpoints.find import find_model
from parlay.engine.attribution import Attribution
from parlay.text.detokenizer import Detokenizer
from parlay.text.tokenizer import TextCodec
from parlay.types.output import Rejected

TEXT = "def naïve(☃):\n    return 1"


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return TextCodec(find_model("tiny-code"))


def alternating(count: int) -> list[str]:
    return ["target" if i % 2 else "ngram" for i in range(count)]


@given(st.data())
def test_pieces_in_any_order_of_arrival(codec: TextCodec, data: st.DataObject) -> None:
    """What came in parts is what comes at once: accepted pieces make the text, rejected ones keep their places."""
    tokens = codec.encode(data.draw(st.text(alphabet="aé☃ \n", max_size=12)), add_special_tokens=False)
    sources = alternating(len(tokens))
    guesses = data.draw(st.lists(st.integers(0, len(tokens)), max_size=6).map(sorted))
    rejected = [Rejected(at, 40 + i, "draft") for i, at in enumerate(guesses)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=4)))
    growing, pieces = Detokenizer(codec, SamplingParams()), []
    attribution = Attribution(codec.tokenizer)
    for begin, end in pairwise([0, *cuts, len(tokens)]):
        for token in tokens[begin:end]:
            growing.append(token)
        known = [r for r in rejected if r.at < end]
        pieces += attribution.update(tokens[:end], sources[:end], growing.text, known)
    whole = growing.complete(tokens)
    pieces += attribution.update(tokens, sources, whole, rejected, finished=True)
    assert "".join(text for text, _, accepted in pieces if accepted) == whole
    assert [text for text, _, accepted in pieces if not accepted] == [codec.token_text(r.token_id) for r in rejected]
    assert pieces == Attribution(codec.tokenizer).update(tokens, sources, whole, rejected, finished=True)
    for guess in rejected:  # a guess stands behind all text of the tokens before it
        before = pieces[: pieces.index((codec.token_text(guess.token_id), "draft", False))]
        certain = codec.decode(tokens[: guess.at]).rstrip("\N{REPLACEMENT CHARACTER}")
        assert len("".join(text for text, _, accepted in before if accepted)) <= len(codec.decode(tokens[: guess.at]))
        assert "".join(text for text, _, accepted in before if accepted).startswith(certain)


def test_a_step_in_the_order_of_the_page(codec: TextCodec) -> None:
    tokens = [token for letter in "abcd" for token in codec.encode(letter, add_special_tokens=False)]
    x, y = (codec.encode(letter, add_special_tokens=False)[0] for letter in "xy")
    attribution = Attribution(codec.tokenizer)
    rejected = [Rejected(2, x, "ngram"), Rejected(2, y, "ngram"), Rejected(3, y, "ngram")]
    sources = ["ngram", "ngram", "target", "target"]
    assert attribution.update(tokens[:3], sources[:3], "abc", rejected[:2]) == [
        ("a", "ngram", True),
        ("b", "ngram", True),
        ("x", "ngram", False),
        ("y", "ngram", False),
        ("c", "target", True),
    ]
    assert attribution.update(tokens, sources, "abcd", rejected) == [("y", "ngram", False), ("d", "target", True)]


def test_half_a_character(codec: TextCodec) -> None:
    """A guess that is half a character shows as the replacement character, and halves none of the text's."""
    first, *others = codec.encode("☃", add_special_tokens=False)
    assert others, "the tokenizer has a token for it"
    guess = Rejected(1, others[0], "ngram")
    attribution = Attribution(codec.tokenizer)
    assert attribution.update([first], ["ngram"], "", []) == []
    tokens = [first, *others]
    assert attribution.update(tokens, ["ngram"] * len(tokens), "☃", [guess]) == [
        ("\N{REPLACEMENT CHARACTER}", "ngram", False),
        ("☃", "ngram", True),
    ]


def test_guesses_behind_a_cut_come_at_the_end(codec: TextCodec) -> None:
    tokens = codec.encode(TEXT, add_special_tokens=False)
    rejected = [Rejected(0, 50, "a"), Rejected(len(tokens), 51, "a")]
    for finished in (False, True):
        pieces = Attribution(codec.tokenizer).update(
            tokens, alternating(len(tokens)), "def", rejected, finished=finished
        )
        assert "".join(text for text, _, accepted in pieces if accepted) == "def"
        assert sum(not accepted for _, _, accepted in pieces) == 1 + finished


def test_the_space_before_a_word_is_kept() -> None:
    """Some decoders leave it out at the beginning of a text, which no guess is."""
    tokenizer = Tokenizer(WordLevel({"\u2581go": 0, "\u2581on": 1, "ing": 2}))
    tokenizer.decoder = Metaspace()  # type: ignore[assignment]
    assert tokenizer.decode([0]) == "go"
    rejected = [Rejected(1, 1, "a"), Rejected(1, 2, "a")]
    pieces = Attribution(tokenizer).update([0, 0], ["target"] * 2, "go go", rejected)
    assert [text for text, _, _ in pieces] == ["go", " on", "ing", " go"]
