"""Files of prompts: every form, and what is said of lines that are in none."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_byte_tokenizer

from parlay.bench.prompts import name_of, read_prompts
from parlay.errors import ConfigError
from parlay.text.tokenizer import TextCodec

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
MT_BENCH = {"question_id": 81, "category": "writing", "turns": ["Tell me.", "Tell me more."]}
HUMAN_EVAL = {"task_id": "HumanEval/0", "prompt": "def add(", "entry_point": "add", "test": "assert"}
CHAT = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]}


@pytest.fixture
def codec(tmp_path: Path) -> TextCodec:
    write_byte_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    return TextCodec(tmp_path)


def write(path: Path, *entries: Any) -> Path:
    text = "".join(entry if isinstance(entry, str) else json.dumps(entry) + "\n" for entry in entries)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["mixed.jsonl", "mixed.jsonl.gz"])
def test_every_form(name: str, codec: TextCodec, tmp_path: Path) -> None:
    path = write(tmp_path / name, MT_BENCH, "\n", HUMAN_EVAL, CHAT, {"prompt": "é\n"})
    prompts = read_prompts(path, codec, 100)
    assert [codec.decode(prompt.tokens) for prompt in prompts] == [
        "<user>Tell me.<a>",
        "def add(",
        "<system>Be brief.<user>Why?<a>",
        "é\n",
    ]
    assert [prompt.number for prompt in prompts] == [0, 1, 2, 3]
    assert read_prompts(path, codec, 100, 2) == prompts[:2]
    assert name_of(path) == "mixed"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{'prompt': 1}\n", "invalid JSON"),
        ("[" * 100_000 + "\n", "invalid JSON"),
        ([1], "an entry must be an object with 'turns', 'messages' or 'prompt', not [1]"),
        ({"text": "a"}, "this one has ['text']"),
        ({"prompt": 5}, "the last a text"),
        ({"turns": []}, "'turns' must be a list of texts, not []"),
        ({"turns": "Tell me."}, "'turns' must be a list of texts"),
        ({"turns": [["Tell me."]]}, "'turns' must be a list of texts"),
        ({"messages": []}, "messages is empty"),
        ({"messages": 5}, "a conversation is a list of messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "a content is text"),
        ({"prompt": ""}, "the prompt has 0 tokens"),
        (
            {"prompt": "a" * 101},
            "the prompt has 101 tokens, but with the completion there is room for 1 to 100",
        ),
        ({"prompt": "\ud800"}, "not valid Unicode"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_lines_are_named(entry: Any, words: str, codec: TextCodec, tmp_path: Path) -> None:
    path = write(tmp_path / "bad.jsonl", HUMAN_EVAL, "\n", entry, HUMAN_EVAL)
    with pytest.raises(ConfigError) as raised:
        read_prompts(path, codec, 100)
    assert str(raised.value).startswith(f"{path}, line 3: ")
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_chats_need_a_template(codec: TextCodec, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").unlink(missing_ok=True)
    path = write(tmp_path / "a.jsonl", HUMAN_EVAL, MT_BENCH)
    with pytest.raises(ConfigError, match="line 2: the model has no chat template"):
        read_prompts(path, TextCodec(tmp_path), 100)


def test_bad_files(codec: TextCodec, tmp_path: Path) -> None:
    packed = gzip.compress(b'{"prompt": "a"}')
    for name, content, words in (
        ("empty.jsonl", b"\n\n", "holds no prompts"),
        ("latin.jsonl", b'{"prompt": "\xe9"}', "is not text in UTF-8"),
        ("plain.jsonl.gz", b'{"prompt": "a"}', "cannot be unpacked"),
        ("short.jsonl.gz", packed[:-9], "cannot be unpacked"),
        ("flipped.jsonl.gz", packed[:12] + b"\xff" + packed[13:], "cannot be unpacked"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=words):
            read_prompts(tmp_path / name, codec, 100)
    for path in (tmp_path / "nowhere.jsonl", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_prompts(path, codec, 100)
