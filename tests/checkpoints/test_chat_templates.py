"""Which chat template of a model's a conversation gets: as transformers reads and chooses them."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_byte_tokenizer
from text.test_gguf_tokenizer import spm_keys, write_tokenizer
from transformers import PreTrainedTokenizerFast

from parlay import RequestError
from parlay.text.chat import ChatOptions
from parlay.text.tokenizer import TextCodec

USER = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}]
DEFAULT = "D{% for m in messages %}{{ m.content }}{% endfor %}"
TOOL_USE = (
    "T{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
)
RAG = "R{% for m in messages %}{{ m.content }}{% endfor %}"
NAMED = [{"name": "default", "template": DEFAULT}, {"name": "tool_use", "template": TOOL_USE}]


def write(folder: Path, config: Any = None, files: dict[str, str] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    write_byte_tokenizer(folder)
    about = {"tokenizer_class": "PreTrainedTokenizerFast"} | ({} if config is None else {"chat_template": config})
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    for name, text in (files or {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("config", "files"),
    [
        (NAMED, {}),  # Hermes 2 Pro, Mistral 7B v0.3
        ([*NAMED, {"name": "rag", "template": RAG}], {}),  # Command-R
        (DEFAULT, {}),
        (None, {"chat_template.jinja": DEFAULT}),
        (RAG, {"chat_template.jinja": DEFAULT}),
        (None, {"chat_template.jinja": DEFAULT, "additional_chat_templates/tool_use.jinja": TOOL_USE}),
        (RAG, {"chat_template.jinja": DEFAULT, "additional_chat_templates/rag.jinja": RAG}),
    ],
    ids=str,
)
def test_as_transformers(tmp_path: Path, config: Any, files: dict[str, str]) -> None:
    """With every name and none; with tools, where the template has a place for them: see test_tool_prompt.py."""
    path = write(tmp_path, config, files)
    peer, codec = PreTrainedTokenizerFast.from_pretrained(str(path)), TextCodec(path)
    for tools, name in product((None, TOOLS), (None, "tool_use", "rag", RAG)):
        options = ChatOptions(tools=tools, chat_template=name)
        expected = peer.apply_chat_template(
            USER, tools=tools, chat_template=name, tokenize=False, add_generation_prompt=True
        )
        if expected == name:  # transformers takes a name that is none for a template
            with pytest.raises(RequestError, match="this model has 'default'"):
                codec.chat(USER, options)
        elif not tools or "f" in expected:
            assert codec.chat(USER, options) == expected


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template.json": json.dumps({"chat_template": DEFAULT})},  # Mistral Small 3.1
        {"chat_template.json": json.dumps({"chat_template": RAG}), "chat_template.jinja": DEFAULT},
        {"chat_template.json": json.dumps({"chat_template": NAMED})},
    ],
    ids=str,
)
def test_the_template_of_a_processor(tmp_path: Path, files: dict[str, str]) -> None:
    assert TextCodec(write(tmp_path, None, files)).chat(USER) == "Dhi"


def test_a_file_that_is_none(tmp_path: Path) -> None:
    assert not TextCodec(
        write(tmp_path, [{"name": "x"}, 3, {"template": "y"}, {"name": 3, "template": "z"}])
    ).has_chat_template


def test_several_without_a_default(tmp_path: Path) -> None:
    codec = TextCodec(write(tmp_path, [NAMED[1], {"name": "rag", "template": RAG}]))
    with pytest.raises(RequestError, match="none is the default; give chat_template as 'rag' or 'tool_use'") as error:
        codec.chat(USER)
    assert error.value.param == "chat_template"
    assert codec.chat(USER, ChatOptions(chat_template="rag")) == "Rhi"
    assert codec.chat(USER, ChatOptions(tools=TOOLS)) == "Tfhi"
    assert codec.template_names == {"rag", "tool_use"}


def test_in_a_gguf_file(tmp_path: Path) -> None:
    """Under llama.cpp's keys, as gguf-py writes them."""
    keys = {
        "tokenizer.chat_template": DEFAULT,
        "tokenizer.chat_template.tool_use": TOOL_USE,
        "tokenizer.chat_templates": ["rag", "tool_use"],
        "tokenizer.chat_template.rag": RAG,
    }
    codec = TextCodec(write_tokenizer(tmp_path / "all.gguf", {**spm_keys(), **keys}))
    assert codec.chat(USER) == "Dhi"
    assert codec.chat(USER, ChatOptions(tools=TOOLS)) == "Tfhi"
    assert codec.chat(USER, ChatOptions(chat_template="rag")) == "Rhi"
    del keys["tokenizer.chat_templates"]
    codec = TextCodec(write_tokenizer(tmp_path / "two.gguf", {**spm_keys(), **keys}))
    assert codec.template_names == {"default", "tool_use"}
