"""Tokenizers as they are published: what each form holds makes the tokens that its own library makes."""

import json
import struct
from base64 import b64encode
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
from checkpoints import write_llama
from gguf_files import tokenizer_keys
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gguf_tokenizer import PATTERNS, PIECES, TEXTS, slow_pieces
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode
from word_tokenizers import byte_level

from parlay import LLM, ModelError, SamplingParams
from parlay.checkpoints.files import tokenizer_file
from parlay.checkpoints.find import find_model
from parlay.numerics.digests import digest_model
from parlay.text.tokenizer import TextCodec
from parlay.text.tokenizer_files import read_tokenizer

ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.text("aB1 \n\r\t'slLt.-é²", max_size=40)
NAMED = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
BYTE = {letter: byte for byte, letter in bytes_to_unicode().items()}


def put(path: Path, **files: Any) -> Path:
    """Write files whose names have a double underscore for the dot."""
    for name, content in files.items():
        file = path / name.replace("__", ".")
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            file.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def described(text: str) -> dict[str, Any]:
    """Return a special token as OPT's files have it."""
    return {"content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": True}


def vocabulary() -> dict[str, Any]:
    """Return the files of a byte-level vocabulary whose first tokens are OPT's."""
    keys = tokenizer_keys(find_model("tiny-code"), "gpt-2")
    words = [
        t
        for t, kind in zip(keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"], strict=True)
        if kind == 1
    ]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *words]
    return {
        "vocab__json": {token: index for index, token in enumerate(tokens)},
        "merges__txt": "\n".join(["#version: 0.2", *keys["tokenizer.ggml.merges"], ""]),
    }


CONFIGS: dict[str, dict[str, Any]] = {
    # facebook/opt-125m and opt-6.7b, whose names of tokens are in a file of their own too.
    "OPT": {
        "tokenizer_config__json": {
            **{
                name: {**described(text), "__type": "AddedToken"}
                for name, text in NAMED.items()
                if name != "pad_token"
            },
            "errors": "replace",
            "add_prefix_space": False,
            "add_bos_token": True,
            "tokenizer_class": "GPT2Tokenizer",
        },
        "special_tokens_map__json": {name: described(text) for name, text in NAMED.items()},
        "config__json": {"model_type": "opt", "architectures": ["OPTForCausalLM"]},
    },
    "OPT without a class": {
        "tokenizer_config__json": {"add_bos_token": True},
        "special_tokens_map__json": {name: described(text) for name, text in NAMED.items()},
        "config__json": {"model_type": "opt", "architectures": ["OPTForCausalLM"]},
    },
    "with a space first": {
        "tokenizer_config__json": {**NAMED, "tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True},
        "config__json": {"model_type": "gpt2"},
    },
    "Qwen 2": {
        "tokenizer_config__json": {
            "tokenizer_class": "Qwen2Tokenizer",
            "add_prefix_space": False,
            "bos_token": None,
            "unk_token": None,
            "eos_token": "</s>",
            "pad_token": "<pad>",
        },
        "config__json": {"model_type": "qwen2"},
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_vocab_and_merges_as_transformers_reads_them(tmp_path: Path, name: str) -> None:
    put(tmp_path, **vocabulary(), **CONFIGS[name])
    theirs, ours = AutoTokenizer.from_pretrained(str(tmp_path)), TextCodec(tmp_path)
    for text in [*TEXTS, "a</s>b <pad> <s>c", "</s>"]:
        ids = theirs(text).input_ids
        assert ours.encode(text) == ids, text
        for skip in (False, True):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert ours.end == theirs.eos_token_id == 2

    @settings(max_examples=50)
    @given(ANY)
    def compare(text: str) -> None:
        assert ours.encode(text) == theirs(text).input_ids

    compare()


# A message of SentencePiece's `sentencepiece_model.proto`.


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def model(kind: int, pieces: list[tuple[str, float, int]], prefix: bool = True, spaces: bool = False) -> bytes:
    listed = [
        field(1, field(1, text.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score) + field(3, of))
        for text, score, of in pieces
    ]
    training = field(3, kind) + field(35, 1)
    return b"".join([*listed, field(2, training), field(3, field(3, int(prefix)) + field(4, int(spaces)))])


@pytest.mark.parametrize("prefix", [True, False])
def test_a_bpe_model_of_sentence_piece(tmp_path: Path, prefix: bool) -> None:
    put(tmp_path, tokenizer__model=model(2, PIECES, prefix))
    codec = TextCodec(tmp_path)
    for text in [*TEXTS[::5], " two  spaces", "a<tool>b <s>return", "東京é🙂"]:
        assert codec.encode(text) == [1, *slow_pieces(text, prefix)], text
    assert codec.decode(codec.encode("return  self\n")) == "return  self\n"
    assert codec.end == 2


def test_a_unigram_model_of_sentence_piece(tmp_path: Path) -> None:
    """The likeliest of all ways to cut a text."""
    put(tmp_path, tokenizer__model=model(1, PIECES))
    codec = TextCodec(tmp_path)
    index = {p: i for i, (p, _, _) in enumerate(PIECES)}
    scores = {p: s for p, s, k in PIECES if k == 1}

    def likeliest(text: str) -> float:
        best = [0.0]
        for end in range(1, len(text) + 1):
            best.append(max(best[at] + scores[text[at:end]] for at in range(end) if text[at:end] in scores))
        return best[-1]

    for text in ["the thing", "return self", "def selfelf", "aaaaa in tion"]:
        tokens = codec.encode(text, add_special_tokens=False)
        spelled = [PIECES[token][0] for token in tokens]
        written = "\u2581" + text.replace(" ", "\u2581")
        assert "".join(spelled) == written
        assert sum(scores[piece] for piece in spelled) == likeliest(written)
        assert codec.decode(tokens) == text
    assert codec.encode("🙂", add_special_tokens=False)[1:] == [index[f"<0x{byte:02X}>"] for byte in "🙂".encode()]


def test_spaces_that_a_model_of_sentence_piece_leaves_out(tmp_path: Path) -> None:
    put(tmp_path, tokenizer__model=model(2, PIECES, spaces=True))
    codec = TextCodec(tmp_path)
    assert codec.encode("  the   thing ") == codec.encode("the thing") == [1, *slow_pieces("the thing", True)]


# Mistral's and OpenAI's forms: bytes and their ranks.

RANKS = [bytes([byte]) for byte in range(256)]
RANKS += [b"th", b"he", b"the", b" t", b" the", b"in", b"ing", b"\xc3\xa9", b"ab", b"abc", b"bc", b"12", b"  "]


def slow_ranks(text: str, pattern: str, shift: int = 0) -> list[int]:
    """Of all neighbours whose union has a rank, the lowest first; words that have one stay whole."""
    rank = {token: index for index, token in enumerate(RANKS)}
    found = []
    for word in regex.findall(pattern, text):
        parts = [bytes([byte]) for byte in word.encode()]
        if word.encode() in rank:
            parts = [word.encode()]
        while pairs := [(rank[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in rank]:
            _, i = min(pairs)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        found += [shift + rank[part] for part in parts]
    return found


def tekken(**more: Any) -> dict[str, Any]:
    vocab = [{"rank": i, "token_bytes": b64encode(t).decode(), "token_str": None} for i, t in enumerate(RANKS)]
    config = {"pattern": PATTERNS["tekken"][0], "num_vocab_tokens": len(RANKS), "version": "v3"}
    config |= {"default_vocab_size": 30 + len(RANKS) - 1, "default_num_special_tokens": 30}
    return {"config": config, "vocab": vocab, **more}


LISTED = [{"rank": 0, "token_str": "<unk>"}, {"rank": 1, "token_str": "<s>"}, {"rank": 2, "token_str": "</s>"}]


@pytest.mark.parametrize(
    ("content", "marks"),
    [
        (tekken(), {"[INST]": 3, "[TOOL_CALLS]": 9, "<SPECIAL_29>": 29}),
        (tekken(special_tokens=[*LISTED, {"rank": 7, "token_str": "[IMG]"}]), {"[IMG]": 7, "<SPECIAL_3>": 3}),
    ],
    ids=["Nemo", "Small 3"],
)
def test_tekken(tmp_path: Path, content: dict[str, Any], marks: dict[str, int]) -> None:
    """Ids and names of special tokens are those of mistral-common's `Tekkenizer`; its last tokens are cut off."""
    put(tmp_path, tekken__json=content)
    codec = TextCodec(tmp_path)
    assert codec.tokenizer.get_vocab_size() == 30 + len(RANKS) - 1
    for text in ["the thing é 123", "abc abcd", "\n\nthe", "it's"]:
        assert codec.encode(text) == [1, *slow_ranks(text, PATTERNS["tekken"][0], 30)]
        assert codec.decode(codec.encode(text)) == text
    for mark, index in marks.items():
        assert codec.encode(f"a{mark}b", add_special_tokens=False) == [30 + ord("a"), index, 30 + ord("b")]
    assert codec.end == 2


@pytest.mark.parametrize(
    ("file", "name", "pattern"),
    [
        ("tokenizer.model", None, "llama-bpe"),
        ("tiktoken.model", "PreTrainedTokenizerFast", "llama-bpe"),
        ("qwen.tiktoken", "QWenTokenizer", "qwen2"),
        ("tiktoken.model", "TikTokenTokenizer", "kimi-k2"),
    ],
)
def test_tiktoken(tmp_path: Path, file: str, name: str | None, pattern: str) -> None:
    lines = [b64encode(token) + f" {index}".encode() for index, token in enumerate(RANKS)]
    (tmp_path / file).write_bytes(b"\n".join(lines) + b"\n")
    end = {str(len(RANKS)): {"content": "<|end|>", "special": True}}
    put(
        tmp_path,
        tokenizer_config__json={"tokenizer_class": name, "added_tokens_decoder": end, "eos_token": "<|end|>"},
    )
    codec = TextCodec(tmp_path)
    for text in ["the thing é 123", "abc abcd", "\n\nthe", "it's"]:
        assert codec.encode(text) == slow_ranks(text, PATTERNS[pattern][0])
    assert codec.encode("a<|end|>") == [ord("a"), len(RANKS)]
    assert codec.end == len(RANKS)


# What is not read, and what is found first.


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, ["tokenizer.json does not exist", "vocab.json with merges.txt", "tokenizer.model"]),
        ({"vocab__json": {"a": 0}}, ["merges.txt does not exist"]),
        ({"vocab__json": {"a": 0}, "merges__txt": "a b c d"}, ["vocab.json", "cannot be read"]),
        (
            {**vocabulary(), "tokenizer_config__json": {"tokenizer_class": "CLIPTokenizer"}},
            ["CLIPTokenizer", "pip install parlay[transformers]", "save_pretrained"],
        ),
        ({**vocabulary(), "tokenizer_config__json": {"add_bos_token": True, "bos_token": "<b>"}}, ["no token '<b>'"]),
        ({"tokenizer__model": b"\x0a\xff"}, ["tokenizer.model cannot be read"]),
        ({"tokenizer__model": b""}, ["SentencePiece"]),
        ({"tokenizer__model": model(3, PIECES)}, ["unigram or BPE"]),
        ({"tokenizer__model": model(2, [*PIECES, ("x" * 300, 0.0, 1)])}, ["longer than 256"]),
        ({"tiktoken__model": b64encode(b"x" * 2000) + b" 0\n"}, ["more than 1000 bytes"]),
        ({"tekken__json": {"config": {}}}, ["tekken.json cannot be read"]),
        ({"tiktoken__model": b"!! 1\n"}, ["tiktoken.model cannot be read"]),
        ({"tiktoken__model": b"YQ== 0\n", "tokenizer_config__json": {"tokenizer_class": "KimiTok"}}, ["KimiTok"]),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_named(tmp_path: Path, files: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ModelError) as error:
        TextCodec(put(tmp_path, **files))
    assert all(word in str(error.value) for word in words), str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", [lambda data: data[:-7], lambda data: data[:100], lambda data: data[5:]])
def test_damaged_models_of_sentence_piece(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.model"):
        TextCodec(put(tmp_path, tokenizer__model=damage(model(2, PIECES))))


def test_a_tokenizer_json_comes_first(tmp_path: Path) -> None:
    put(tmp_path, **vocabulary(), tokenizer__model=b"", tokenizer__json=byte_level().to_str())
    assert tokenizer_file(tmp_path).name == "tokenizer.json"
    assert TextCodec(tmp_path).tokenizer.get_vocab() == byte_level().get_vocab()


def test_drafts_and_digests_look_at_every_form(tmp_path: Path) -> None:
    files = vocabulary()
    put(tmp_path, **files, config__json={}, model__safetensors=b"")
    assert read_tokenizer(tokenizer_file(tmp_path)).get_vocab() == files["vocab__json"]
    before = digest_model(tmp_path)
    put(tmp_path, merges__txt=files["merges__txt"] + "a b\n")
    changed = digest_model(tmp_path)
    put(tmp_path, added_tokens__json={"  ": 4095})
    assert len({before, changed, digest_model(tmp_path)}) == 3


# Special tokens that stand beside a `tokenizer.json`.

SPECIAL = {"special": True, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False}


def listed(text: str, **attributes: bool) -> dict[str, Any]:
    return {"tokenizer_config__json": {"added_tokens_decoder": {"SIZE": {"content": text, **SPECIAL, **attributes}}}}


@pytest.mark.parametrize(
    ("files", "text"),
    [
        (listed("<|im_start|>"), "<|im_start|>a"),
        (listed("<a>", rstrip=True), "x<a>   b"),
        (listed("tool", special=False), "a tool b"),
        ({"tokenizer_config__json": {"eos_token": "\u0120the"}}, "a\u0120the b"),
        ({"special_tokens_map__json": {"additional_special_tokens": ["\u0120x"]}}, "a\u0120x b"),
        ({"special_tokens_map__json": {"pad_token": {"content": "\u0120id", **SPECIAL}}}, "\u0120id</s>"),
        ({"added_tokens__json": {"      ": "SIZE"}}, "a       b"),
        (
            {"added_tokens__json": {"<|im_end|>": "SIZE"}, "tokenizer_config__json": {"eos_token": "<|im_end|>"}},
            "a<|im_end|>",
        ),
    ],
    ids=["Phi", "swallowing", "no special one", "eos", "additional", "pad", "Phi 1.5's spaces", "ChatML of 2023"],
)
def test_special_tokens_that_only_configs_know(tmp_path: Path, files: dict[str, Any], text: str) -> None:
    tokenizer = byte_level()
    size = str(tokenizer.get_vocab_size())
    files = json.loads(json.dumps(files).replace(': "SIZE"', f": {size}").replace("SIZE", size))
    files.setdefault("tokenizer_config__json", {})["tokenizer_class"] = "PreTrainedTokenizerFast"
    put(tmp_path, tokenizer__json=tokenizer.to_str(), **files)
    ours, theirs = TextCodec(tmp_path), AutoTokenizer.from_pretrained(str(tmp_path))
    ids = theirs(text).input_ids
    assert ours.encode(text) == ids != tokenizer.encode(text).ids
    for skip in (False, True):
        assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize(
    "config", [{"eos_token": "</s>"}, {"added_tokens_decoder": {}, "eos_token": "</s>"}], ids=repr
)
def test_which_file_names_the_end(tmp_path: Path, config: dict[str, Any]) -> None:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    older = {
        "special_tokens_map__json": {"eos_token": "<s>"},
        "added_tokens__json": {"far": byte_level().get_vocab_size()},
    }
    put(tmp_path, tokenizer__json=byte_level().to_str(), tokenizer_config__json=config, **older)
    ours, theirs = TextCodec(tmp_path), AutoTokenizer.from_pretrained(str(tmp_path))
    assert ours.end == theirs.eos_token_id
    assert ours.encode("afar") == theirs("afar").input_ids


@pytest.mark.parametrize(
    "config",
    [
        {"eos_token": "\ud800"},
        {"pad_token": 5, "bos_token": None, "unk_token": ["a"], "mask_token": {"content": None}},
        {"additional_special_tokens": [5, None, {"a": 1}], "extra_special_tokens": {"image": 7}},
        {"added_tokens_decoder": {"x": {"content": "a"}, "300": 5, "-1": "b", "301": {"content": "\ud800"}}},
        {"added_tokens_decoder": ["a"]},
    ],
    ids=repr,
)
def test_what_is_no_token_is_passed_over(tmp_path: Path, config: dict[str, Any]) -> None:
    put(tmp_path, tokenizer__json=byte_level().to_str(), tokenizer_config__json=config)
    codec = TextCodec(tmp_path)
    assert codec.encode("a5 None </s>") == byte_level().encode("a5 None </s>").ids
    assert codec.end is None


def test_ids_that_leave_a_gap_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = byte_level()
    listed = {"9999": {"content": "<far>", **SPECIAL}, "1": {"content": "<s>", **SPECIAL}}
    put(tmp_path, tokenizer__json=tokenizer.to_str(), tokenizer_config__json={"added_tokens_decoder": listed})
    codec = TextCodec(tmp_path)
    assert codec.tokenizer.get_vocab() == tokenizer.get_vocab()
    assert "'<far>' the id 9999" in caplog.text


def test_an_engine_with_a_draft_model_of_another_form(tmp_path: Path) -> None:
    """OPT's form, and the same vocabulary as a `tokenizer.json` beside the draft model."""
    files, small = {**vocabulary(), **CONFIGS["OPT"]}, {"num_hidden_layers": 1, "hidden_size": 32, "head_dim": 8}
    del files["config__json"]
    size = len(files["vocab__json"])
    for name in ("target", "draft"):
        write_llama(tmp_path / name, vocab_size=size, **small)
        (tmp_path / name / "tokenizer.json").unlink()
        put(tmp_path / name, **files)
    codec = TextCodec(tmp_path / "draft")
    codec.tokenizer.save(str(tmp_path / "draft" / "tokenizer.json"))
    draft = {"method": "draft_model", "model": str(tmp_path / "draft"), "lengths": "fixed"}
    params = SamplingParams(temperature=0, max_tokens=6)
    plain, drafted = (
        LLM(tmp_path / "target", speculative_config=speculative, max_model_len=64).generate("def f", params)[0]
        for speculative in (None, draft)
    )
    assert plain.prompt_token_ids[0] == 2
    assert plain.outputs[0].token_ids == drafted.outputs[0].token_ids
    assert plain.outputs[0].text == drafted.outputs[0].text
