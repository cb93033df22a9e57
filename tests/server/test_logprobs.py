"""Log-probabilities in OpenAI's shapes: texts that make up the answer, bytes of characters, places in the text."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from checkpoints import write_llama
from serving import Live, engine_of
from word_tokenizers import KINDS

from parlay.server.openai.logprobs import Offsets, chat_logprobs, completion_logprobs, prompt_offsets
from parlay.text.tokenizer import TextCodec
from parlay.types.output import Logprob


@cache
def codec_of(kind: str) -> TextCodec:
    with TemporaryDirectory() as folder:
        KINDS[kind]().save(f"{folder}/tokenizer.json")
        return TextCodec(Path(folder))


def tables(codec: TextCodec, tokens: list[int], others: list[int]) -> list[dict[int, Logprob]]:
    """Return tables in which each token is the least likely of itself and others."""
    return [
        {t: Logprob(-float(rank), rank, codec.token_text(t)) for rank, t in enumerate([*others, token], start=1)}
        for token in tokens
    ]


# Characters of two, three and four bytes; those of Llama's kind are single bytes behind a space.
@pytest.mark.parametrize("kind", ["byte level", "llama", "gemma"])
@pytest.mark.parametrize("text", ["🎉🎉 the", "nï", "x 👩‍🚀", "東京"])
def test_bytes_make_up_the_text(kind: str, text: str) -> None:
    codec = codec_of(kind)
    tokens = codec.encode(text, add_special_tokens=False)
    content = chat_logprobs(codec, tokens, tables(codec, tokens, []), 1)["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode().strip() == text
    for entry in content:
        assert entry["bytes"] == entry["top_logprobs"][0]["bytes"]
        assert entry["token"].encode() == bytes(entry["bytes"]) or entry["token"].startswith("\\x")


@pytest.mark.parametrize("kind", ["byte level", "llama"])
def test_no_entry_is_lost_where_tokens_are_parts_of_characters(kind: str) -> None:
    codec = codec_of(kind)
    tokens = codec.encode("🎉", add_special_tokens=False)[-4:]
    found = completion_logprobs(codec, tokens[-1:], tables(codec, tokens[-1:], tokens[:-1]), [0])
    # As OpenAI spells them: https://platform.openai.com/docs/api-reference/completions, of 🎉's bytes f0 9f 8e 89.
    assert found["tokens"] == ["bytes:\\x89"]
    assert found["top_logprobs"] == [
        {"bytes:\\xf0": -1.0, "bytes:\\x9f": -2.0, "bytes:\\x8e": -3.0, "bytes:\\x89": -4.0}
    ]


@pytest.mark.parametrize("kind", ["byte level", "llama"])
def test_tokens_as_ids(kind: str) -> None:
    """vLLM's form, with which clients find tokens whose texts are the same or incomplete."""
    codec = codec_of(kind)
    *others, token = codec.encode("🎉", add_special_tokens=False)[-3:]
    found = tables(codec, [token], others)
    completed = completion_logprobs(codec, [token], found, [0], as_ids=True)
    (entry,) = chat_logprobs(codec, [token], found, 3, as_ids=True)["content"]
    assert completed["tokens"] == [entry["token"]] == [f"token_id:{token}"]
    named = {f"token_id:{one}": -float(rank) for rank, one in enumerate([*others, token], start=1)}
    assert completed["top_logprobs"] == [named]
    assert {one["token"]: one["logprob"] for one in entry["top_logprobs"]} == named
    assert entry["bytes"] == list(codec.token_bytes(token))


def test_tokens_with_and_without_a_space_are_two() -> None:
    codec = codec_of("llama")
    spaced, bare = (codec.tokenizer.token_to_id(name) for name in ("\u2581id", "id"))
    found = completion_logprobs(codec, [spaced], tables(codec, [spaced], [bare]), [0])
    assert (found["tokens"], found["top_logprobs"]) == ([" id"], [{"id": -1.0, " id": -2.0}])


@pytest.mark.parametrize("kind", ["llama", "gemma", "byte level", "metaspace first", "metaspace never", "word piece"])
def test_tokens_lie_where_their_text_does(kind: str) -> None:
    codec = codec_of(kind)
    prompt, text = codec.encode("the Paris"), " for x"
    output = codec.encode("the Paris for x")[len(prompt) :]
    whole = "the Paris" + text
    offsets = Offsets(codec, prompt, skip_special_tokens=True, begin=9)
    places = [*prompt_offsets(codec, prompt, "the Paris"), *offsets.add(output, text, finished=True)]
    for token, place in zip([*prompt, *output], places, strict=True):
        name = codec.token_text(token)
        # The first word has no space before it, and what the tokenizer puts before the text is none of it.
        assert name == "<s>" or whole.startswith(name, place) or (place == 0 and whole.startswith(name.lstrip()))
    assert places == sorted(places)
    assert codec.token_text(prompt[0]) != "<s>" or places[:2] == [0, 0]


@pytest.mark.parametrize("kind", ["llama", "byte level"])
@pytest.mark.parametrize("prompt", ["😊🚀日本 the x", "x='ééééé", "naïve 👩‍🚀"])
def test_places_count_characters(kind: str, prompt: str) -> None:
    codec = codec_of(kind)
    tokens = codec.encode(prompt)
    offsets = prompt_offsets(codec, tokens, prompt)
    spelled = b""
    for token, offset in zip(tokens, offsets, strict=True):
        assert prompt[:offset] == spelled.decode(errors="ignore").removeprefix("<s>").removeprefix(" ")
        spelled += codec.token_bytes(token)
    assert max(offsets) < len(prompt)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    tokenizer, path = KINDS["llama"](), tmp_path_factory.mktemp("llama")
    write_llama(path, vocab_size=tokenizer.get_vocab_size(), eos_token_id=2)
    tokenizer.save(str(path / "tokenizer.json"))
    with engine_of(path, max_model_len=64) as engine, Live(engine) as server:
        yield server


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("more", "text", "offsets"),
    [
        ({}, " for for for", [0, 4, 8]),
        ({"stop": "r f"}, " fo", [0, 3]),
        ({"echo": True}, "the Paris for for for", [0, 0, 3, 9, 13, 17]),
        ({"echo": True, "return_sources": True}, "the Paris for for for", [0, 0, 3, 9, 13, 17]),
    ],
    ids=str,
)
def test_completions_keep_the_first_space(
    live: Live, stream: bool, more: dict[str, Any], text: str, offsets: list[int]
) -> None:
    word = codec_of("llama").tokenizer.token_to_id("\u2581for")
    asked = {"prompt": "the Paris", "max_tokens": 3, "temperature": 0, "allowed_token_ids": [word], "logprobs": 1}
    found = live.post("/v1/completions", {**asked, **more, "stream": stream})
    lines = found.text.splitlines() if stream else [f"data: {found.text}"]
    choices = [c for line in lines if line.startswith("data: {") for c in json.loads(line[6:])["choices"]]
    assert "".join(choice["text"] for choice in choices) == text
    assert [place for choice in choices for place in choice["logprobs"]["text_offset"]] == offsets
    if "return_sources" in more:
        assert "".join(piece for choice in choices for piece, _, _ in choice["sources"]) == text
