"""Tokenizers out of GGUF files: the same ids as the tokenizer that went in, and as slow obvious ones."""

import gzip
import json
import struct
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
from crossing import crossed
from gguf import GGUFValueType, GGUFWriter
from gguf_files import add_keys, finish, tokenizer_keys
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from parlay import ModelError
from parlay.checkpoints.find import ASSETS, find_model
from parlay.text.gguf_tokenizer import read_gguf_tokenizer
from parlay.text.tokenizer import TextCodec

PREFIXES = [
    json.loads(line)
    for line in gzip.decompress((ASSETS / "evaluation" / "prefixes.jsonl.gz").read_bytes()).splitlines()
]
ODD = [
    "",
    " ",
    "\n\n  \t x",
    "'self' don't it'sy they'LLo we'Ve",
    "x  12   345\t\t6 12345 1 22 333 4444 ²³ Ⅷ",
    "e\u0301a \u0915\u093f naïve café 東京 🙂🙂 \u200b\u00a0",
    "<|endoftext|> <|user|>\nhi<|user|>",
    "a<b>c=$5^~|+",
    "x" * 70,
    "tab\tand\r\nnew",
    "  trailing  ",
]
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = (
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# What llama.cpp does by the same names.
PATTERNS = {
    "gpt-2": [GPT2],
    "qwen2": [QWEN2],
    "llama-bpe": [QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")],
    "ufakzeka": [QWEN2[QWEN2.index("[^") :]],
    "refact": [r"\p{N}", GPT2],
    "tekken": [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    # As Moonshot's own code has it; sets are subtracted by the newer of the library's two grammars.
    "kimi-k2": [
        r"(?V1)[\p{Han}]+|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "gpt-4o": [GPT4O],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O],
    "afmoe": [
        r"(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})+(?!\p{N}))|\p{N}{1,3}",
        "[一-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-ヿ\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0eff\u1780-\u17ff\u1000-\u109f"
        "\uaa60-\uaa7f\ua9e0-\ua9ff가-\ud7af\u1100-\u11ff]+",
        "[!-/:-@\\[-`{-~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    "laguna": [r"[^\n]+|[\n]+", QWEN2],
    "qwen35": [QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")],
    "seed-coder": [QWEN2.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+")],
    "minicpm5": [r"\p{N}{1,3}", QWEN2.replace(r"|\p{N}|", r"|\p{N}+|")],
    "viking": ["(?: |)(?:(?![(|.,!?…。\uff0c、।\u06d4،)])\\S)+", r"\p{N}"],
    "superbpe": [r"\p{N}+", "(?=([0-9]{3})+(?![0-9]))"],
    # Its letters are those of two cases, but not Armenian's and Georgian's small ones.
    "deepseek-llm": [
        r"[\r\n]",
        r"\s?(?:(?![\u0560-\u0588\u10d0-\u10ff])[\p{Lu}\p{Ll}\p{Lt}])+",
        r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+\Z",
        "[一-龥\u0800-\u4e00가-\ud7ff]+",
        r"\p{N}+",
    ],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ\u30a0-ヿ]+",
        "[!-/:-@\\[-`{-~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    "deepseek-coder": [
        r"[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        "[一-龥\u0800-\u4e00가-\ud7ff]+",
        r"\p{N}",
    ],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
}


TEXTS = [prefix["text"] for prefix in PREFIXES[::16]] + ODD


class Writer(GGUFWriter):
    """The package's writer, which is slow with long lists of texts: it packs each as if it might be anything."""

    def _pack_val(
        self, val: Any, vtype: GGUFValueType, add_vtype: bool, sub_type: GGUFValueType | None = None
    ) -> bytes:
        if not (vtype is GGUFValueType.ARRAY and val and all(type(item) is str for item in val)):
            return super()._pack_val(val, vtype, add_vtype, sub_type)
        texts = [item.encode() for item in val]
        head = super()._pack_val(val[:1], vtype, add_vtype, sub_type)[: 8 if add_vtype else 4]
        return head + struct.pack("<Q", len(val)) + b"".join(struct.pack("<Q", len(t)) + t for t in texts)


def write_tokenizer(path: Path, keys: dict[str, Any]) -> Path:
    writer = Writer(path, "llama")
    add_keys(writer, keys, {})
    finish(writer)
    return path


@pytest.fixture(scope="module")
def keys() -> dict[str, Any]:
    return tokenizer_keys(find_model("tiny-code"), "ufakzeka")


# A slow twin of byte-level BPE: the best-ranked pair of a word, again and again.


class Slow:
    def __init__(self, keys: dict[str, Any], pre: str) -> None:
        self.vocabulary = {t: i for i, t in enumerate(keys["tokenizer.ggml.tokens"])}
        self.special = [t for t, k in zip(self.vocabulary, keys["tokenizer.ggml.token_type"], strict=True) if k == 3]
        self.ranks = {tuple(m.split(" ")): i for i, m in enumerate(keys["tokenizer.ggml.merges"])}
        self.patterns = [regex.compile(p) for p in PATTERNS[pre]]
        self.whole = pre in ("llama-bpe", "tekken", "minicpm5")
        alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self.ids = cache(lambda word: [self.vocabulary[t] for t in self.merge(self.letters(word))])
        self.letters = lambda text: alphabet.pre_tokenize_str(text)[0][0] if text else ""

    def encode(self, text: str) -> list[int]:
        out = []
        for part in regex.split("(" + "|".join(map(regex.escape, self.special)) + ")", text):
            if part in self.special:
                out.append(self.vocabulary[part])
            else:
                for word in self.words([part]):
                    out += self.ids(word)
        return out

    def words(self, pieces: Iterable[str]) -> list[str]:
        for pattern in self.patterns:
            cut = []
            for piece in pieces:
                end = 0
                for match in pattern.finditer(piece):
                    cut += [piece[end : match.start()], match.group()]
                    end = match.end()
                cut.append(piece[end:])
            pieces = [c for c in cut if c]
        return list(pieces)

    def merge(self, word: str) -> list[str]:
        if self.whole and word in self.vocabulary:
            return [word]
        parts = list(word)
        while True:
            pairs = [(self.ranks[p], i) for i, p in enumerate(pairwise(parts)) if p in self.ranks]
            if not pairs:
                return parts
            _, i = min(pairs)
            parts[i : i + 2] = ["".join(parts[i : i + 2])]


@pytest.mark.parametrize("pre", PATTERNS)
def test_every_pre_tokenizer_by_a_slow_twin(tmp_path: Path, keys: dict[str, Any], pre: str) -> None:
    path = write_tokenizer(tmp_path / "t.gguf", {**keys, "tokenizer.ggml.pre": pre})
    fast, slow = read_gguf_tokenizer(path)[0], Slow(keys, pre)
    for text in TEXTS:
        assert fast.encode(text, add_special_tokens=False).ids == slow.encode(text), text

    @given(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.text("aB1 \n\r\t'slLt.-é²", max_size=40)
    )
    def compare(text: str) -> None:
        assert fast.encode(text, add_special_tokens=False).ids == slow.encode(text)

    compare()


@pytest.mark.parametrize(
    ("name", "same"),
    [
        *(("falcon3", "llama-bpe"), ("pixtral", "llama-bpe"), ("lfm2", "llama-bpe"), ("kormo", "qwen2")),
        *(("hunyuan", "qwen2"), ("a.x-4.0", "gpt-2"), ("olmo", "gpt-2"), ("exaone", "refact"), ("mellum2", "refact")),
        *(("llama4", "gpt-4o"), ("minimax-m2", "gpt-4o"), ("cohere2moe", "tiny_aya")),
    ],
)
def test_other_names_of_pre_tokenizers(tmp_path: Path, keys: dict[str, Any], name: str, same: str) -> None:
    """As llama.cpp's table of names has them; those of `llama-bpe` keep whole words and begin with BOS as it does."""
    bos = {"tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.add_bos_token": None}
    ours, theirs = (
        TextCodec(write_tokenizer(tmp_path / f"{pre}.gguf", {**keys, **bos, "tokenizer.ggml.pre": pre}))
        for pre in (name, same)
    )
    assert [ours.encode(text) for text in TEXTS] == [theirs.encode(text) for text in TEXTS]


@pytest.mark.parametrize(("name", "whole"), [("glm4", True), ("glm5", True), ("chatglm-bpe", False)])
def test_glm_splits_as_llama_3_without_bos(tmp_path: Path, keys: dict[str, Any], name: str, whole: bool) -> None:
    bos = {"tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.add_bos_token": None, "tokenizer.ggml.pre": name}
    codec, slow = TextCodec(write_tokenizer(tmp_path / "t.gguf", {**keys, **bos})), Slow(keys, "llama-bpe")
    slow.whole = whole
    assert [codec.encode(text) for text in TEXTS] == [slow.encode(text) for text in TEXTS]


@pytest.mark.parametrize(
    "change",
    [
        {"merges": ["nobody knows"]},
        {"merges": ["ab"]},
        {"merges": ["ab "]},
        {"token_type": [1]},
        {"scores": [0.5]},
    ],
    ids=str,
)
def test_what_llama_cpp_passes_over(
    tmp_path: Path, keys: dict[str, Any], change: dict[str, list[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """Merges that are no pairs of tokens, and types and scores beyond the tokens."""
    ((name, more),) = change.items()
    key = f"tokenizer.ggml.{name}"
    caplog.set_level("WARNING")
    odd = TextCodec(write_tokenizer(tmp_path / "odd.gguf", {**keys, key: [*keys.get(key, []), *more]}))
    even = TextCodec(write_tokenizer(tmp_path / "even.gguf", keys))
    assert [odd.encode(text) for text in TEXTS] == [even.encode(text) for text in TEXTS]
    assert ("ignored" in caplog.text) is (name == "merges")


@pytest.mark.parametrize("kind", [1, 3, 4, 6])
def test_empty_tokens_have_names(tmp_path: Path, keys: dict[str, Any], kind: int) -> None:
    """As in llama.cpp, so that there may be several."""
    tokens, kinds = (list(keys[f"tokenizer.ggml.{name}"]) for name in ("tokens", "token_type"))
    changed = {"tokenizer.ggml.tokens": [*tokens, "", ""], "tokenizer.ggml.token_type": [*kinds, kind, kind]}
    codec = TextCodec(write_tokenizer(tmp_path / "t.gguf", {**keys, **changed}))
    assert codec.tokenizer.id_to_token(len(tokens)) == f"[EMPTY_{len(tokens)}]"
    assert codec.tokenizer.id_to_token(len(tokens) + 1) == f"[EMPTY_{len(tokens) + 1}]"
    assert codec.encode("def f") == TextCodec(write_tokenizer(tmp_path / "u.gguf", keys)).encode("def f")


# Of llama.cpp's `llama-vocab.cpp`, for any model.
@crossed(
    name=["<|im_end|>", "<end_of_turn>", "</s>", "[EOS]", "<|fim_prefix|>", "<|file_sep|>"], kind=[1, 4, 6, None]
)
def test_what_its_name_calls_a_control_token_is_one(
    tmp_path: Path, keys: dict[str, Any], name: str, kind: int | None
) -> None:
    tokens, kinds = (list(keys[f"tokenizer.ggml.{name}"]) for name in ("tokens", "token_type"))
    changed = {
        "tokenizer.ggml.tokens": [*tokens, name],
        "tokenizer.ggml.token_type": None if kind is None else [*kinds, kind],
    }
    codec = TextCodec(write_tokenizer(tmp_path / "t.gguf", {**keys, **changed}))
    a, b = (codec.encode(letter)[0] for letter in "ab")
    assert codec.encode(f"a{name}b") == [a, len(tokens), b]
    assert codec.decode([a, len(tokens), b]) == "ab"


def test_the_pre_tokenizers_differ(tmp_path: Path, keys: dict[str, Any]) -> None:
    """Otherwise the test above could not tell one from another."""
    seen = set()
    for pre in PATTERNS:
        slow = Slow(keys, pre)
        seen.add(tuple(tuple(slow.words([text])) for text in TEXTS))
    assert len(seen) == len(PATTERNS)


def test_tiny_codes_own_ids(tmp_path: Path) -> None:
    """Put together from tokens and merges, or from the whole file inside: ids and texts as in the directory."""
    model = find_model("tiny-code")
    directory = TextCodec(model)
    assert len(PREFIXES) >= 20
    for pre in ("ufakzeka", None):
        codec = TextCodec(write_tokenizer(tmp_path / f"{pre}.gguf", tokenizer_keys(model, pre)))
        assert codec.tokenizer.get_vocab() == directory.tokenizer.get_vocab()
        for text in TEXTS:
            ids = directory.encode(text)
            assert codec.encode(text) == ids
            for skip in (False, True):
                assert codec.decode(ids, skip_special_tokens=skip) == directory.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        ({}, []),
        ({"add_bos_token": True, "bos_token_id": 2}, [2]),
        ({"add_bos_token": True, "bos_token_id": 2, "add_eos_token": True, "eos_token_id": 3}, [2, 3]),
        ({"pre": "llama-bpe", "add_bos_token": None, "bos_token_id": 4}, [4]),
        ({"pre": "llama-bpe", "add_bos_token": None, "bos_token_id": None}, []),
        ({"add_bos_token": None, "bos_token_id": 4}, []),
    ],
    ids=str,
)
def test_what_frames_a_text(tmp_path: Path, keys: dict[str, Any], changes: dict[str, Any], ids: list[int]) -> None:
    changed = {**keys, **{f"tokenizer.ggml.{k}": v for k, v in changes.items()}}
    codec = TextCodec(write_tokenizer(tmp_path / "t.gguf", changed))
    inner = codec.encode("def f", add_special_tokens=False)
    assert codec.encode("def f") == ids[:1] + inner + ids[1:]


def test_user_defined_tokens_are_found_in_texts_and_kept_in_answers(tmp_path: Path, keys: dict[str, Any]) -> None:
    tokens, kinds = list(keys["tokenizer.ggml.tokens"]), list(keys["tokenizer.ggml.token_type"])
    tokens.append("<tool>")
    kinds.append(4)
    changed = {**keys, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    codec = TextCodec(write_tokenizer(tmp_path / "t.gguf", changed))
    ids = codec.encode("a<tool>b<|user|>")
    assert ids[1] == len(tokens) - 1
    assert codec.decode(ids) == "a<tool>b"


# SentencePiece.

MERGED = (
    "th in er re on at en the ing _a _t _the _in ion tion ation aa aaa aaaa __ ____ _def _de de def ed _re ret urn "
    "return _return ur rn et el elf self _self se lf"
)
LETTERS = "_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ().,:=é東"
PIECES = [
    ("<unk>", 0.0, 2),
    ("<s>", 0.0, 3),
    ("</s>", 0.0, 3),
    *((f"<0x{i:02X}>", 0.0, 6) for i in range(256)),
    *((p.replace("_", "\u2581"), float(-i), 1) for i, p in enumerate([*MERGED.split(" "), *LETTERS])),
    ("<tool>", 0.0, 4),
]


def spm_keys(**changes: Any) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [p for p, _, _ in PIECES],
        "tokenizer.ggml.scores": [s for _, s, _ in PIECES],
        "tokenizer.ggml.token_type": [k for _, _, k in PIECES],
        **{f"tokenizer.ggml.{k}": v for k, v in changes.items()},
    }


def slow_pieces(text: str, prefix: bool) -> list[int]:
    """SentencePiece's way: of all neighbours whose union is a piece, the best first, leftmost of equals."""
    index = {p: i for i, (p, _, _) in enumerate(PIECES)}
    scores = {p: s for p, s, k in PIECES if k == 1}
    out = []
    for part in regex.split("(<unk>|<s>|</s>|<tool>)", text):
        if part in ("<unk>", "<s>", "</s>", "<tool>"):
            out.append(index[part])
            continue
        parts = list(((" " if prefix and part else "") + part).replace(" ", "\u2581"))
        while True:
            pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
            if not pairs:
                break
            _, i = min(pairs)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        for piece in parts:
            out += [index[piece]] if piece in scores else [3 + byte for byte in piece.encode()]
    return out


@pytest.mark.parametrize("prefix", [True, False])
def test_sentence_pieces_by_a_slow_twin(tmp_path: Path, prefix: bool) -> None:
    path = write_tokenizer(tmp_path / "t.gguf", spm_keys(add_space_prefix=prefix))
    codec = TextCodec(path)
    for text in [*TEXTS, "a<tool>b <s>return", "aaaaaaaaa", "東京é🙂"]:
        ids = codec.encode(text)
        assert ids == [1, *slow_pieces(text, prefix)], text
        if "<" not in text and "\u2581" not in text:  # which means a space
            assert codec.decode(ids) == text

    @given(st.text(max_size=30) | st.text("thein ratodfslu\n", max_size=60))
    def compare(text: str) -> None:
        ids = codec.encode(text, add_special_tokens=False)
        assert ids == slow_pieces(text, prefix)
        assert codec.decode(ids) == text

    compare()


def test_sentence_pieces_as_transformers_would_have_them(tmp_path: Path) -> None:
    """Special tokens, when a file does not say, are Llama's; the tokens for templates are named."""
    _, config = read_gguf_tokenizer(write_tokenizer(tmp_path / "t.gguf", spm_keys()))
    assert config == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def test_phi3s_control_tokens_swallow_spaces(tmp_path: Path) -> None:
    keys = spm_keys()
    keys["tokenizer.ggml.tokens"] = [t if t != "</s>" else "<|end|>" for t in keys["tokenizer.ggml.tokens"]]
    for arch, swallows in (("llama", False), ("phi3", True)):
        writer = GGUFWriter(tmp_path / f"{arch}.gguf", arch)
        add_keys(writer, keys, {"tokenizer__ggml__add_space_prefix": False})
        finish(writer)
        codec = TextCodec(tmp_path / f"{arch}.gguf")
        assert (codec.encode("<|end|>  a") == codec.encode("<|end|>a")) is swallows
        assert codec.encode("<s> a") != codec.encode("<s>a")
        # Those that the model's authors added, as `</s>` in Phi-3's own files.
        assert (codec.encode("<tool>  a") == codec.encode("<tool>a")) is swallows


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "bert"}, ["kind 'bert'", "'gpt2', 'llama', 'gemma4'"]),
        ({"model": None}, ["lacks", "tokenizer.ggml.model"]),
        ({"pre": "bloom"}, ["pre-tokenizer 'bloom'"]),
        ({"pre": "qwen-2"}, ["did you mean 'qwen2'"]),
        ({"tokens": None, "bos_token_id": None, "eos_token_id": None}, ["no tokens"]),
        ({"token_type": [1, 2]}, ["2 types of tokens"]),
        ({"bos_token_id": 5000}, ["bos_token_id is 5000"]),
        ({"eos_token_id": -1}, ["eos_token_id is -1"]),
        ({"bos_token_id": "0"}, ["bos_token_id"]),
        ({"add_bos_token": True, "bos_token_id": None}, ["lacks", "bos_token_id"]),
        ({"add_bos_token": 1}, ["add_bos_token", "bool"]),
        ({"tokens": "abc", "bos_token_id": None, "eos_token_id": None}, ["tokens must be a list of texts"]),
    ],
    ids=str,
)
def test_refusals(tmp_path: Path, keys: dict[str, Any], changes: dict[str, Any], words: list[str]) -> None:
    path = write_tokenizer(tmp_path / "t.gguf", {**keys, **{f"tokenizer.ggml.{k}": v for k, v in changes.items()}})
    with pytest.raises(ModelError) as error:
        TextCodec(path)
    assert all(word in str(error.value) for word in ["t.gguf", *words]), str(error.value)


def test_refusals_of_sentence_pieces_and_whole_files(tmp_path: Path, keys: dict[str, Any]) -> None:
    for changed, words in (
        (spm_keys(scores=[1.0]), "1 scores"),
        (spm_keys(scores=None), "0 scores"),
        (spm_keys(tokens=[*[p for p, _, _ in PIECES[:-2]], "x" * 300, "yy"]), "longer than 256"),
        (spm_keys(tokens=[*[p for p, _, _ in PIECES[:-1]], "th"]), "'th' twice"),
        ({**keys, "tokenizer.huggingface.json": "{"}, "cannot be read"),
        ({**keys, "tokenizer.huggingface.json": "{}"}, "cannot be read"),
    ):
        with pytest.raises(ModelError, match=words):
            TextCodec(write_tokenizer(tmp_path / "t.gguf", changed))
