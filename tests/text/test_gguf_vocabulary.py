"""Tokenizers put into GGUF files: what is read back does the same with every text."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import read_config, write_llama
from gguf_files import tokenizer_keys
from hypothesis import given
from hypothesis import strategies as st
from test_gguf_tokenizer import PATTERNS, PIECES, TEXTS, spm_keys, write_tokenizer
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from parlay import ModelError
from parlay.checkpoints.find import find_model
from parlay.checkpoints.gguf.writer import Value
from parlay.text.gguf_tokenizer import read_gguf_tokenizer
from parlay.text.gguf_vocabulary import vocabulary
from parlay.text.pre_tokenizers import SAME_AS
from parlay.text.tokenizer import TextCodec

SIZES = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "head_dim": 8, "vocab_size": 1200}
ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.text("aB1 \n\r\t'slLt.-é²", max_size=40)
Change = Callable[[Tokenizer], None]


MERGES = 800  # of the embedded model's, in whose vocabulary the bytes come first


def tiny(pre: str = "ufakzeka") -> dict[str, Any]:
    keys = tokenizer_keys(find_model("tiny-code"), pre)
    merges, tokens, types = (f"tokenizer.ggml.{name}" for name in ("merges", "tokens", "token_type"))
    kept = len(keys[tokens]) - len(keys[merges]) + MERGES
    return keys | {merges: keys[merges][:MERGES], tokens: keys[tokens][:kept], types: keys[types][:kept]}


def directory(path: Path, keys: dict[str, Any], change: Change | None = None, **about: Any) -> Path:
    """Write a model directory whose tokenizer is the one that some keys stand for, perhaps changed."""
    write_llama(path / "model", **SIZES)
    tokenizer, found = read_gguf_tokenizer(write_tokenizer(path / "source.gguf", keys))
    if change is not None:
        change(tokenizer)
    tokenizer.save(str(path / "model" / "tokenizer.json"))
    (path / "model" / "tokenizer_config.json").write_text(json.dumps({**found, **about}))
    return path / "model"


def written(model: Path) -> dict[str, Value]:
    config = read_config(model)
    return vocabulary(model, "llama", config.vocab_size, config.eos_token_ids, config.raw)


def reread(path: Path, keys: dict[str, Value]) -> TextCodec:
    return TextCodec(write_tokenizer(path / "written.gguf", keys))


def alike(one: TextCodec, other: TextCodec, text: str) -> None:
    ids = one.encode(text)
    assert other.encode(text) == ids
    for skip in (False, True):
        assert other.decode(ids, skip_special_tokens=skip) == one.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("pre", [*PATTERNS, "dbrx", "llama3", "smollm"])
def test_every_pre_tokenizer_is_found_again(tmp_path: Path, pre: str) -> None:
    """Or one that does the same."""
    model = directory(tmp_path, tiny(pre))
    keys = written(model)
    assert keys["tokenizer.ggml.pre"] == {"llama3": "llama-bpe", "smollm": "refact"}.get(pre, pre)
    assert "tokenizer.huggingface.json" not in keys
    ours, theirs = reread(tmp_path, keys), TextCodec(model)
    assert ours.tokenizer.get_vocab() == theirs.tokenizer.get_vocab()
    for text in TEXTS:
        alike(theirs, ours, text)
    if pre in ("llama-bpe", "tekken"):
        given(ANY)(lambda text: alike(theirs, ours, text))()


def isolated(pattern: str) -> list[Any]:
    return [pre_tokenizers.Split(Regex(pattern), "isolated"), bytes_alone()]


def bytes_alone() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


@pytest.mark.parametrize(
    ("steps", "whole", "pre"),
    [
        (isolated(QWEN), False, "qwen2"),
        (isolated(LLAMA), True, "llama-bpe"),
        (isolated(LLAMA), False, "dbrx"),
        ([pre_tokenizers.Split(Regex(LLAMA), "removed", invert=True), bytes_alone()], False, "dbrx"),
        ([BYTES], False, "gpt-2"),
        ([pre_tokenizers.Digits(individual_digits=True), BYTES], False, "refact"),
    ],
    ids=["Qwen 2", "Llama 3", "GPT-4", "Phi-4", "GPT-2", "SmolLM"],
)
def test_pre_tokenizers_as_hugging_face_spells_them(tmp_path: Path, steps: list[Any], whole: bool, pre: str) -> None:
    def change(tokenizer: Tokenizer) -> None:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        tokenizer.model.ignore_merges = whole

    model = directory(tmp_path, tiny(), change)
    keys = written(model)
    assert keys["tokenizer.ggml.pre"] == pre
    assert "tokenizer.huggingface.json" not in keys


def test_tiny_codes_own_tokenizer(tmp_path: Path) -> None:
    model = find_model("tiny-code")
    keys = written(model)
    given_there = tokenizer_keys(model, "ufakzeka")
    assert keys.items() >= {k: v for k, v in given_there.items() if v is not None}.items()
    theirs, ours = TextCodec(model), reread(tmp_path, keys)
    messages = [{"role": "user", "content": "hello"}]
    assert ours.chat(messages) == theirs.chat(messages)
    given(ANY)(lambda text: alike(theirs, ours, text))()


@pytest.mark.parametrize(("prefix", "order"), [(True, 1), (False, 1), (True, -1)])
def test_sentence_pieces(tmp_path: Path, prefix: bool, order: int) -> None:
    """Also where the pieces' numbers do not rise as they are merged later."""
    pieces = [*PIECES[:259], *PIECES[259:][::order]]
    changes = {"tokens": [p for p, _, _ in pieces], "scores": [s for _, s, _ in pieces]}
    kinds = [kind for _, _, kind in pieces]
    model = directory(tmp_path, spm_keys(add_space_prefix=prefix, token_type=kinds, **changes))
    keys = written(model)
    assert "tokenizer.huggingface.json" not in keys
    assert keys["tokenizer.ggml.token_type"][: len(PIECES)] == kinds  # type: ignore[index]
    assert keys["tokenizer.ggml.token_type"][len(PIECES) :] == [5] * (SIZES["vocab_size"] - len(PIECES))  # type: ignore[index]
    theirs, ours = TextCodec(model), reread(tmp_path, keys)
    assert ours.tokenizer.get_vocab() == theirs.tokenizer.get_vocab()
    for text in TEXTS:
        alike(theirs, ours, text)
    given(st.text(max_size=30) | st.text("thein ratodfslu\n", max_size=60))(lambda text: alike(theirs, ours, text))()


def test_what_frames_a_text_and_ends_an_answer(tmp_path: Path) -> None:
    frame = {"add_bos_token": True, "bos_token_id": 2, "add_eos_token": True, "eos_token_id": 3}
    model = directory(tmp_path, {**tiny(), **{f"tokenizer.ggml.{k}": v for k, v in frame.items()}})
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "eos_token_id": [7, 3, 0, 9]}))
    (model / "chat_template.jinja").write_text("hi {{ bos_token }}{{ messages[0].content }}")
    keys = written(model)
    assert keys.items() >= {f"tokenizer.ggml.{k}": v for k, v in frame.items()}.items()
    assert keys["tokenizer.ggml.eot_token_id"] == 7
    assert keys["tokenizer.ggml.eom_token_id"] == 9  # 0 is named like an end
    codec = reread(tmp_path, keys)
    assert codec.encode("def")[0] == 2
    assert codec.encode("def")[-1] == 3
    assert codec.chat([{"role": "user", "content": "there"}]) == "hi <|system|>there"


def test_named_templates_are_written_too(tmp_path: Path) -> None:
    """Under the keys that llama.cpp's converter gives them."""
    named = {"default": "D{{ messages[0].content }}", "tool_use": "T{{ tools }}", "rag": "R"}
    templates = [{"name": name, "template": text} for name, text in named.items()]
    keys = written(directory(tmp_path, tiny(), chat_template=templates))
    assert keys["tokenizer.chat_template"] == named["default"]
    assert keys["tokenizer.chat_template.tool_use"] == named["tool_use"]
    assert keys["tokenizer.chat_templates"] == ["rag", "tool_use"]
    codec = reread(tmp_path, keys)
    assert {name: codec.template_for(name, tools=False) for name in codec.template_names} == named


def swallow(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens([AddedToken("<|swallows|>", rstrip=True)])


def compose(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.NFC()


def metaspace(tokenizer: Tokenizer) -> None:
    """As Mistral's: the space before a text is not repeated after special tokens."""
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)


@pytest.mark.parametrize(
    ("keys", "change", "text"),
    [
        (tiny(), swallow, "a<|swallows|>  b"),
        (tiny(), compose, "cafe\u0301s"),
        (spm_keys(), metaspace, "<s>a</s>def"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_keys_cannot_say_goes_along_whole(
    tmp_path: Path, keys: dict[str, Any], change: Change, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = directory(tmp_path, keys, change)
    with caplog.at_level(logging.WARNING, logger="parlay"):
        keys = written(model)
    assert "more than a GGUF file's keys can express" in caplog.text
    theirs, ours = TextCodec(model), reread(tmp_path, keys)
    alike(theirs, ours, text)
    given(ANY)(lambda text: alike(theirs, ours, text))()
    keys.pop("tokenizer.huggingface.json")
    poorer = reread(tmp_path, keys)
    assert poorer.encode(text) != theirs.encode(text)
    alike(theirs, poorer, "def read(path):")


def lowercase(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Lowercase()


def split_by_hand(pattern: str) -> Change:
    def change(tokenizer: Tokenizer) -> None:
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        splits = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([splits, bytes_])

    return change


def prefix(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)


def frame_twice(tokenizer: Tokenizer) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|user|> <|system|> $A", special_tokens=[("<|user|>", 3), ("<|system|>", 2)]
    )


def unigram(tokenizer: Tokenizer) -> None:
    tokenizer.model = models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0, byte_fallback=False)


def many(tokenizer: Tokenizer) -> None:
    tokenizer.add_tokens([f"further{i}" for i in range(200)])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lowercase, "would tokenize .* differently"),
        (split_by_hand(r"\p{N}{1,2}|\p{L}+|\s+"), "no name for"),
        (prefix, "no name for"),
        (frame_twice, "would tokenize .* differently|lacks the key"),
        (unigram, "kind 'Unigram' cannot be written"),
        (many, "more than the 1200 that it embeds"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_tokenizers_that_a_file_cannot_hold(tmp_path: Path, change: Change, words: str) -> None:
    model = directory(tmp_path, tiny(), change)
    with pytest.raises(ModelError, match=words) as error:
        written(model)
    assert str(model) in str(error.value)


def test_every_name_that_is_read_is_known_to_be_one_of_the_patterns() -> None:
    assert set(SAME_AS.values()) <= set(PATTERNS)
