"""An answer's text is what prompt and answer together have beyond the prompt, whatever the kind of tokenizer."""

import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from checkpoints import write_llama
from hypothesis import given, settings
from hypothesis import strategies as st
from word_tokenizers import BYTES, KINDS

from parlay import LLM, RequestError, SamplingParams
from parlay.engine.attribution import Attribution
from parlay.text.detokenizer import Detokenizer, IncrementalDecoder
from parlay.text.tokenizer import TextCodec

SPACED = "\u2581"


@cache
def codec_of(kind: str) -> TextCodec:
    with TemporaryDirectory() as folder:
        KINDS[kind]().save(f"{folder}/tokenizer.json")
        return TextCodec(Path(folder))


def text_behind(codec: TextCodec, prompt: list[int], output: list[int], skip: bool = True) -> str:
    """Return an output's text, and check what is given out on the way."""
    detokenizer = Detokenizer(codec, SamplingParams(skip_special_tokens=skip), prompt)
    before = ""
    for token in output:
        detokenizer.append(token)
        assert detokenizer.text.startswith(before)
        before = detokenizer.text
    text = detokenizer.complete(output)
    pieces = Attribution(codec.tokenizer, prompt, skip_special_tokens=skip).update(
        output, ["target"] * len(output), text, finished=True
    )
    assert "".join(piece for piece, _, _ in pieces) == text
    return text


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(st.data(), st.booleans())
def test_as_the_library_decodes_both_together(kind: str, data: st.DataObject, skip: bool) -> None:
    codec = codec_of(kind)
    library = codec.tokenizer
    named = sorted(i for name, i in library.get_vocab().items() if name not in BYTES)
    tokens = data.draw(st.lists(st.sampled_from(named), max_size=40))
    at = data.draw(st.integers(0, len(tokens)))
    whole, before = (library.decode(part, skip_special_tokens=skip) for part in (tokens, tokens[:at]))
    text = text_behind(codec, tokens[:at], tokens[at:], skip)
    if "\ufffd" in whole:  # of letters that are single bytes
        assert whole.rstrip("\ufffd").endswith(text.rstrip("\ufffd"))
    else:
        assert whole == before + text


@pytest.mark.parametrize("kind", ["llama", "gemma", "byte level"])
@settings(max_examples=60, deadline=None)
@given(st.text("ab 日é🎉x\n", max_size=30), st.data())
def test_a_character_that_prompt_and_output_share(kind: str, text: str, data: st.DataObject) -> None:
    """The output's text begins with it, since the prompt's has a sign for the missing end."""
    codec = codec_of(kind)
    tokens = codec.encode(text, add_special_tokens=False)
    at = data.draw(st.integers(0, len(tokens)))
    lengths = [len(codec.encode(text[:length], add_special_tokens=False)) for length in range(len(text) + 1)]
    known = max(length for length, count in enumerate(lengths) if count <= at)
    assert text_behind(codec, tokens[:at], tokens[at:]) == text[known:]


@pytest.mark.parametrize("mark", ["\ufffd", "a\ufffd\ufffd"])
def test_a_prompt_may_end_in_a_replacement_character_of_its_own(mark: str) -> None:
    codec = codec_of("byte level")
    prompt = codec.encode(mark)
    assert text_behind(codec, prompt, codec.encode(" x")) == " x"


def test_long_prompts_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = codec_of("llama")
    prompt = codec.encode("the Paris" * 10_000)
    longest = []

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(codec.tokenizer, name)

        def decode(self, tokens: list[int], **options: bool) -> str:
            longest.append(len(tokens))
            return codec.tokenizer.decode(tokens, **options)

    monkeypatch.setattr("parlay.text.detokenizer.DecodeStream", lambda ids, **_: longest.append(len(ids)))
    IncrementalDecoder(Counting(), prompt, skip_special_tokens=True)  # type: ignore[arg-type]
    assert max(longest) < 20


@pytest.mark.parametrize("kind", ["llama", "byte level"])
def test_a_prompt_of_no_characters_is_decoded_a_few_times(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = codec_of(kind)
    byte = codec.encode("é", add_special_tokens=False)[-1]
    decode, longest = IncrementalDecoder._decode, []
    monkeypatch.setattr(
        IncrementalDecoder, "_decode", lambda self, tokens: longest.append(len(tokens)) or decode(self, tokens)
    )
    assert text_behind(codec, [byte] * 5000, codec.encode(" x", add_special_tokens=False)[-1:]) != "\ufffd"
    assert sum(longest) < 100_000  # not 5000 times 5000


# ------------------------------------------------------------------------------------------------ with an engine


@cache
def engine(kind: str) -> LLM:
    tokenizer = KINDS[kind]()
    with TemporaryDirectory() as folder:
        path = write_llama(Path(folder), vocab_size=tokenizer.get_vocab_size(), eos_token_id=2)
        tokenizer.save(str(path / "tokenizer.json"))
        return LLM(str(path), max_model_len=128, speculative_config=None)


@pytest.fixture
def llm() -> LLM:
    return engine("llama")


def test_generated_text_keeps_its_first_space(llm: LLM) -> None:
    word = llm.engine.codec.tokenizer.token_to_id(SPACED + "for")
    only = SamplingParams(temperature=0, max_tokens=2, allowed_token_ids=[word], logprobs=1)
    (output,) = llm.generate("the Paris", only)
    one = output.outputs[0]
    assert one.text == " for for"
    assert [table[word].decoded_token for table in one.logprobs or ()] == [" for", " for"]
    *_, last = llm.stream("the Paris", only)
    assert last.outputs[0].text == " for for"


def test_a_stop_string_matches_at_the_first_word(llm: LLM) -> None:
    word = llm.engine.codec.tokenizer.token_to_id(SPACED + "for")
    stop = SamplingParams(temperature=0, max_tokens=4, allowed_token_ids=[word], stop=[" for"])
    one = llm.generate("the Paris", stop)[0].outputs[0]
    assert (one.text, len(one.token_ids), one.stop_reason) == ("", 1, " for")


@pytest.mark.parametrize("word", ["for", "\n", " ", "Paris"])
def test_bad_words_are_neither_written_after_a_space_nor_within(llm: LLM, word: str) -> None:
    library = llm.engine.codec.tokenizer
    named = [library.token_to_id(name) for name in ("x", "<0x0A>", SPACED, "for", SPACED + "for", "Paris")]
    asked = SamplingParams(temperature=2, seed=3, max_tokens=60, allowed_token_ids=named)
    banned = SamplingParams(temperature=2, seed=3, max_tokens=60, allowed_token_ids=named, bad_words=[word])
    free, text = (llm.generate("the Paris", params)[0].outputs[0].text for params in (asked, banned))
    assert word in free
    assert word not in (text.replace(" for", "") if word == " " else text)  # another token, as documented


@pytest.mark.parametrize("word", [" ", "\n", "\t "])
def test_a_bad_word_without_tokens_is_refused(word: str) -> None:
    with pytest.raises(RequestError, match="no tokens"):
        codec_of("word piece").spellings(word)


@pytest.mark.parametrize("kind", ["llama", "gemma", "metaspace first", "metaspace always", "metaspace never"])
@pytest.mark.parametrize("form", [" for( for){0,3}", "for( x){1,2}", "   return (x|id)"])
def test_text_has_the_form_that_was_asked_for(kind: str, form: str) -> None:
    asked = SamplingParams(temperature=1, seed=3, max_tokens=60, structured_outputs={"regex": form})
    one = engine(kind).generate("the Paris", asked)[0].outputs[0]
    assert one.finish_reason == "stop"
    assert re.fullmatch(form, one.text)


@pytest.mark.parametrize("kind", ["word piece", "suffixed"])
def test_forms_of_tokenizers_without_spaces_are_refused(kind: str) -> None:
    asked = SamplingParams(structured_outputs={"regex": "for"})
    with pytest.raises(RequestError, match="does not support this tokenizer"):
        engine(kind).generate({"prompt_token_ids": [5]}, asked)
