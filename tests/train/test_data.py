"""Files become texts, of which what the target is to write itself counts."""

import json
from pathlib import Path

import pytest
from checkpoints import EOS, write_llama
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from parlay.errors import ConfigError
from parlay.text.tokenizer import TextCodec
from parlay.train.data import Text, digest, read_texts


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    return TextCodec(write_llama(tmp_path_factory.mktemp("codec") / "target", template=template))


def read(path: Path, codec: TextCodec, length: int = 64) -> list[Text]:
    return read_texts(path, codec, 257, length)


def shown(text: Text, codec: TextCodec, counted: bool = True) -> str:
    return codec.decode([int(t) for t, c in zip(text.tokens, text.loss_mask, strict=True) if c == counted])


def test_completions_count(codec: TextCodec, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"prompt": "what is it? ", "completion": "a cat"}\n\n{"text": "all of it"}\n')
    pair, whole = read(file, codec)
    assert (shown(pair, codec, counted=False), shown(pair, codec)) == ("what is it? ", "a cat")
    assert (shown(whole, codec, counted=False), shown(whole, codec)) == ("", "all of it")


@pytest.mark.parametrize("appended", [False, True], ids=["nothing added", "an end added"])
def test_completions_end(appended: bool, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "target")
    (path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<256>"}}')
    if appended:
        tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        tokenizer.post_processor = TemplateProcessing(single="$A <256>", special_tokens=[("<256>", EOS)])
        tokenizer.save(str(path / "tokenizer.json"))
    file = tmp_path / "pairs.jsonl"
    ends = [("abc", "def"), ("abc", "def<256>"), ("abc<256>", "def")]
    file.write_text("".join(json.dumps({"prompt": p, "completion": c}) + "\n" for p, c in ends))
    abc, *rest = read(file, codec := TextCodec(path))
    a, d = codec.encode("abc", add_special_tokens=False), codec.encode("def", add_special_tokens=False)
    assert abc.tokens.tolist() == [*a, *d, EOS]
    assert abc.loss_mask.tolist() == [False] * 3 + [True] * 4
    assert [text.tokens.tolist() for text in rest] == [[*a, *d, EOS], [*a, EOS, *d, EOS]]


def test_answers_of_the_assistant_count(codec: TextCodec, tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    roles = [("user", "hello"), ("assistant", "good day"), ("user", "bye"), ("assistant", "farewell")]
    file.write_text(json.dumps({"messages": [{"role": role, "content": content} for role, content in roles]}))
    (text,) = read(file, codec, 256)
    assert shown(text, codec) == " good day\n farewell\n"
    assert shown(text, codec, counted=False) == "user: hello\nassistant:user: bye\nassistant:"


def test_conversations_as_in_sharegpt(codec: TextCodec, tmp_path: Path) -> None:
    turns = [("system", "be kind"), ("human", "hello"), ("gpt", "good day")]
    file, twin = tmp_path / "sharegpt.jsonl", tmp_path / "messages.jsonl"
    file.write_text(json.dumps({"id": "1", "conversations": [{"from": who, "value": said} for who, said in turns]}))
    roles = {"human": "user", "gpt": "assistant"}
    messages = [{"role": roles.get(who, who), "content": said} for who, said in turns]
    twin.write_text(json.dumps({"messages": messages}))
    (text,) = read(file, codec)
    assert shown(text, codec) == " good day\n"
    assert digest([text]) == digest(read(twin, codec))


@pytest.mark.parametrize("turn", [3, {"from": "human"}, {"from": "dog", "value": "bow"}, {"from": [], "value": ""}])
def test_turns_of_nobody(turn: object, codec: TextCodec, tmp_path: Path) -> None:
    file = tmp_path / "sharegpt.jsonl"
    for turns in (turn, [turn]):
        file.write_text(json.dumps({"conversations": turns}))
        with pytest.raises(ConfigError, match=r"line 1: a (turn|conversation) must"):
            read(file, codec)


@pytest.mark.parametrize("entry", ['{"prompt": "ABCDEFGHIJ"}', '{"messages": [{"role": "user", "content": "Hi"}]}'])
def test_prompts_alone_can_be_asked(entry: str, codec: TextCodec, tmp_path: Path) -> None:
    file = tmp_path / "data.NDJSON"
    file.write_text("\ufeff" + entry)
    with pytest.raises(ConfigError, match="line 1: "):
        read_texts(file, codec, 1 << 20, 512)
    (text,) = read_texts(file, codec, 1 << 20, 512, prompts=True)
    assert not text.loss_mask.any()
    prompt = text.tokens.tolist()
    assert "Hi" in codec.decode(prompt) or prompt == codec.encode("ABCDEFGHIJ")
    (end,) = read_texts(file, codec, 1 << 20, 3, prompts=True)
    assert end.tokens.tolist() == prompt[-3:]


def test_long_texts_are_cut(codec: TextCodec, tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_text("abcdefgh" * 20)
    texts = read(file, codec, 50)
    assert [len(text.tokens) for text in texts] == [50, 50, 50, 10]
    assert "".join(shown(text, codec) for text in texts) == "abcdefgh" * 20
    file.with_name("more.txt").write_text("ijklmnop" * 8)
    assert [text.document for text in read(tmp_path, codec, 50)] == [0, 0, 0, 0, 1, 1]


def test_pieces_without_a_label_are_left_out(codec: TextCodec, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"prompt": "p" * 100, "completion": "answer"}))
    (text,) = read(file, codec, 32)
    assert shown(text, codec) == "answer"


def test_directories_are_read_whole(codec: TextCodec, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.md").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "c.jsonl").write_text('{"text": "third"}')
    (tmp_path / "d.bin").write_bytes(b"\xff\xfe\x00")
    (tmp_path / ".hidden").write_text("not this")
    assert [shown(text, codec) for text in read(tmp_path, codec)] == ["first", "second", "third"]
    assert "d.bin is not text" in caplog.text


def test_a_digest_names_texts() -> None:
    texts = [Text.of([1, 2], [3, 4]), Text.of([], [5])]
    others = [texts[::-1], texts[:1], [Text.of([1], [2, 3, 4]), texts[1]], [Text.of([1, 2], [3, 5]), texts[1]]]
    assert len({digest(some) for some in [texts, *others]}) == 5
    assert digest(texts) == digest([Text.of([1, 2], [3, 4]), Text.of([], [5])])
