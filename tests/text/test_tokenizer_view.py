"""What `LLM.get_tokenizer` gives, compared with transformers' tokenizer."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import parlay
from parlay.errors import ConfigError
from parlay.text.tokenizer import TextCodec
from parlay.text.tokenizer_view import TokenizerView

TINY_CODE = Path(parlay.__file__).parent / "assets" / "tiny-code"
CHAT = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def pair() -> tuple[TokenizerView, Any]:
    return TokenizerView(TextCodec(TINY_CODE)), AutoTokenizer.from_pretrained(TINY_CODE)


def test_tokens_and_ids(pair: tuple[TokenizerView, Any]) -> None:
    ours, theirs = pair
    for tokens in ("a", "<|user|>", "no token", ["a", "<|user|>", "no token"], []):
        assert ours.convert_tokens_to_ids(tokens) == theirs.convert_tokens_to_ids(tokens)
    for ids in (69, 3, [69, 3, 70], []):
        assert ours.convert_ids_to_tokens(ids) == theirs.convert_ids_to_tokens(ids)
    found = ours.convert_ids_to_tokens([69, 3, 70], skip_special_tokens=True)
    assert found == theirs.convert_ids_to_tokens([69, 3, 70], skip_special_tokens=True)
    assert ours.tokenize("def f(x):\n") == theirs.tokenize("def f(x):\n")


@pytest.mark.parametrize("name", ["eos", "bos", "pad", "unk"])
def test_special_tokens(pair: tuple[TokenizerView, Any], name: str) -> None:
    ours, theirs = pair
    for attribute in (f"{name}_token", f"{name}_token_id"):
        assert getattr(ours, attribute) == getattr(theirs, attribute)
    assert sorted(ours.all_special_ids) == sorted(theirs.all_special_ids)
    assert {*ours.all_special_tokens} == {*theirs.all_special_tokens}


def test_an_unknown_token_has_an_id(pair: tuple[TokenizerView, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = pair
    monkeypatch.setitem(ours._codec._config, "unk_token", "<|pad|>")
    assert ours.convert_tokens_to_ids(["no token", "a"]) == [1, 69]


def test_encodings(pair: tuple[TokenizerView, Any]) -> None:
    ours, theirs = pair
    for text in ("def f", ["def f", "x"]):
        assert ours(text) == dict(theirs(text))
        assert ours(text).input_ids == theirs(text).input_ids
    with pytest.raises(AttributeError, match="labels"):
        _ = ours("x").labels


def test_chats(pair: tuple[TokenizerView, Any]) -> None:
    ours, theirs = pair
    whole = ours.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=True)
    assert whole == dict(theirs.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=True))
    assert ours.apply_chat_template(CHAT, truncation=False, padding="do_not_pad") == ours.apply_chat_template(CHAT)
    for name, value in {"truncation": True, "max_length": 0, "return_tensors": "pt", "padding": "longest"}.items():
        with pytest.raises(ConfigError, match=f"does not support {name}; leave it out"):
            ours.apply_chat_template(CHAT, **{name: value})
