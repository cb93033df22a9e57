"""Text from tokens: characters split over tokens, stop strings split over tokens, nothing lost."""

from codecs import getincrementaldecoder
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest
from checkpoints import EOS, write_byte_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers.convert_slow_tokenizer import bytes_to_unicode

from parlay import ModelError, SamplingParams
from parlay.text.detokenizer import Detokenizer
from parlay.text.tokenizer import TextCodec


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    path = tmp_path_factory.mktemp("codec")
    write_byte_tokenizer(path)
    return TextCodec(path)


def feed(codec: TextCodec, text: str, *stop: str) -> tuple[Detokenizer, int, str | None]:
    """Feed a text byte by byte; gives how many tokens it took to find a stop string, and which."""
    detokenizer = Detokenizer(codec, SamplingParams(stop=stop))
    tokens = codec.encode(text)
    for count, token in enumerate(tokens, start=1):
        found = detokenizer.append(token)
        if found is not None:
            return detokenizer, count, found
    return detokenizer, len(tokens), None


def fed(codec: TextCodec, tokens: list[int], *, skip: bool = True) -> Iterator[Detokenizer]:
    """Feed tokens one by one; yields the detokenizer after each."""
    detokenizer = Detokenizer(codec, SamplingParams(skip_special_tokens=skip))
    for token in tokens:
        detokenizer.append(token)
        yield detokenizer


def test_encoding_is_by_bytes(codec: TextCodec) -> None:
    assert len(codec.encode("né")) == 3
    assert codec.decode(codec.encode("né €𝄞")) == "né €𝄞"
    assert codec.token_text(codec.encode("x")[0]) == "x"


def test_a_character_appears_when_it_is_whole(codec: TextCodec) -> None:
    seen = [detokenizer.text for detokenizer in fed(codec, codec.encode("a€𝄞"))]
    assert seen == ["a", "a", "a", "a€", "a€", "a€", "a€", "a€𝄞"]


@pytest.mark.parametrize("text", ["a€", "a 🎉", "aß", "日本"])
def test_an_unfinished_character_is_left_out(codec: TextCodec, text: str) -> None:
    """As llama.cpp's server and vLLM do: it would go back as U+FFFD into the next prompt."""
    for short in range(1, len(text[-1].encode())):
        tokens = codec.encode(text)[:-short]
        *_, detokenizer = fed(codec, tokens)
        assert detokenizer.text == detokenizer.complete(tokens) == text[:-1]


@pytest.mark.parametrize("text", ["a\ufffd", "\ufffd\ufffd", "€\ufffd"])
def test_a_replacement_character_that_the_model_wrote_is_text(codec: TextCodec, text: str) -> None:
    tokens = codec.encode(text)
    *_, detokenizer = fed(codec, tokens)
    assert detokenizer.complete(tokens) == text


@pytest.mark.parametrize(
    ("text", "stop", "kept", "found"),
    [
        ("hello world", ["wor"], "hello ", "wor"),
        ("hello world", ["o w"], "hell", "o w"),
        ("hello", ["h"], "", "h"),
        ("hello", ["hello"], "", "hello"),
        ("hello", ["hellos"], "hello", None),
        ("ababac", ["abac"], "ab", "abac"),
        ("aaab", ["aab"], "a", "aab"),
        ("one two", ["two", "e t"], "on", "e t"),
        ("x€y", ["€"], "x", "€"),
        ("x€y", ["€y"], "x", "€y"),
        ("𝄞𝄞!", ["𝄞!"], "𝄞", "𝄞!"),
        ("abc", ["bc", "abc"], "", "abc"),
    ],
)
def test_stop_strings(codec: TextCodec, text: str, stop: list[str], kept: str, found: str | None) -> None:
    detokenizer, _, reason = feed(codec, text, *stop)
    assert (detokenizer.text, reason) == (kept, found)


def test_a_stop_string_is_found_with_its_last_token(codec: TextCodec) -> None:
    _, count, _ = feed(codec, "hello world", "o w")
    assert count == len("hello w")


@given(st.text(max_size=20))
def test_any_text_comes_back(codec: TextCodec, text: str) -> None:
    detokenizer, _, _ = feed(codec, text)
    tokens = codec.encode(text)
    assert detokenizer.text == text == detokenizer.complete(tokens)


@settings(max_examples=400)
@given(st.lists(st.one_of(st.integers(0, 255), st.sampled_from([*range(128, 256), EOS])), max_size=24), st.booleans())
def test_any_tokens_decode_as_a_whole_would(codec: TextCodec, tokens: list[int], skip: bool) -> None:
    byte = {letter: byte for byte, letter in bytes_to_unicode().items()}
    last = [byte.get(codec.tokenizer.id_to_token(token)) for token in tokens if not (skip and token == EOS)]
    end = bytes(takewhile(lambda b: b is not None, reversed(last)))[::-1]  # behind the last special token
    detokenizer = Detokenizer(codec, SamplingParams(skip_special_tokens=skip))
    whole = codec.decode(tokens, skip_special_tokens=skip)
    for token in tokens:
        detokenizer.append(token)
        assert whole.startswith(detokenizer.text), "text that was given out must stand"
    reader = getincrementaldecoder("utf-8")("replace")
    reader.decode(end)
    assert detokenizer.complete(tokens) == (whole.removesuffix("\ufffd") if reader.getstate()[0] else whole)


@given(st.text("ab€", max_size=16), st.lists(st.text("ab€", min_size=1, max_size=4), min_size=1, max_size=3))
def test_stop_strings_by_brute_force(codec: TextCodec, text: str, stop: list[str]) -> None:
    detokenizer, _, found = feed(codec, text, *stop)
    # Of the stop strings that the shortest prefix contains, the one that begins first; then the lesser.
    for end in range(len(text) + 1):
        hits = [(text[:end].find(s), s) for s in stop if s in text[:end]]
        if hits:
            at, expected = min(hits)
            assert (detokenizer.text, found) == (text[:at], expected)
            return
    assert (detokenizer.text, found) == (text, None)


@given(st.text("ab€", max_size=16), st.lists(st.text("ab€", min_size=1, max_size=4), max_size=3))
def test_settled_text_is_never_taken_back(codec: TextCodec, text: str, stop: list[str]) -> None:
    final, _, _ = feed(codec, text, *stop)
    detokenizer = Detokenizer(codec, SamplingParams(stop=stop))
    for token in codec.encode(text):
        if detokenizer.append(token) is not None:
            break
        assert final.text.startswith(detokenizer.settled)
        for seen in range(len(detokenizer.settled) + 1):
            assert detokenizer.settled_since(seen) == detokenizer.settled[seen:]
        held = len(detokenizer.text) - len(detokenizer.settled)
        assert held < max(map(len, stop), default=1)


def test_special_tokens(codec: TextCodec) -> None:
    tokens = [*codec.encode("a"), EOS, *codec.encode("b")]
    for skip, expected in [(True, "ab"), (False, f"a<{EOS}>b")]:
        *_, detokenizer = fed(codec, tokens, skip=skip)
        assert detokenizer.text == expected == codec.decode(tokens, skip_special_tokens=skip)


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        TextCodec(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        TextCodec(tmp_path)
    write_byte_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match="tokenizer_config"):
        TextCodec(tmp_path)


@pytest.fixture(scope="module")
def bytes_and_words(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    """A tokenizer like Llama's: a few words, and all bytes for what they do not spell."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for word in ("\u2581", "a", "b", "\u2581a", "ab", "\u20ac"):
        vocab[word] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("\u2581", "a"), ("a", "b")], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    path = tmp_path_factory.mktemp("bytes")
    tokenizer.save(str(path / "tokenizer.json"))
    return TextCodec(path)


def test_bytes_that_make_no_character(bytes_and_words: TextCodec) -> None:
    """A whole run of bytes decodes anew when one of them turns out wrong; text that is out stays."""
    first = 3  # the token of byte 0
    tokens = [first + ord("s"), first + 0xCC, bytes_and_words.tokenizer.token_to_id("ab"), 259, 260]
    seen = [(one.text, one.complete(tokens)) for one in fed(bytes_and_words, tokens)]
    assert [text for text, _ in seen] == ["s", "s", "s\ufffdab", "s\ufffdab ", "s\ufffdab a"]
    assert seen[-1][1] == "s\ufffdab a"
    *_, unfinished = fed(bytes_and_words, tokens[:2])
    assert (unfinished.text, unfinished.complete(tokens[:2])) == ("s", "s")
