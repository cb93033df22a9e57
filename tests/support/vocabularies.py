"""Draft models whose vocabulary is another than their target's."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from parlay.text.spelling import Spelling
from parlay.text.tokenizer import TextCodec

TEXTS = [
    "def add(first, second):\n    return first + second\n",
    "The quick brown fox jumps over the lazy dog. It was the best of times, it was the worst of times.",
    "für größere Städte; 東京は大きい。 café naïve 😀",
    "while the other words of the text are there, then they are where they were\n\n",
]


def permuted(source: Path, path: Path, seed: int = 1) -> Path:
    """Copy a model of `write_llama` with other ids for its tokens: it is the same model."""
    shutil.copytree(source, path)
    raw = json.loads((path / "tokenizer.json").read_text())
    rows = json.loads((path / "config.json").read_text())["vocab_size"]
    order = list(range(rows))
    random.Random(seed).shuffle(order)  # what was row `order[i]` is row i
    _take_rows(path, order)
    new = {old: i for i, old in enumerate(order)}
    raw["model"]["vocab"] = {name: new[old] for name, old in raw["model"]["vocab"].items()}
    for one in raw["added_tokens"]:
        one["id"] = new[one["id"]]
    (path / "tokenizer.json").write_text(json.dumps(raw))
    _set(path, eos_token_id=None)
    return path


def with_merges(source: Path, path: Path, seed: int = 1) -> Path:
    """Copy a model of single bytes with other ids, without some bytes, and with tokens of two: it agrees in part."""
    permuted(source, path, seed)
    raw = json.loads((path / "tokenizer.json").read_text())
    rng, vocab, special = random.Random(seed), raw["model"]["vocab"], {one["id"] for one in raw["added_tokens"]}
    for name in rng.sample(sorted(name for name, token in vocab.items() if token not in special), 30):
        vocab[f"{name}{name}{name}"] = vocab.pop(name)  # a row that the target has no token for
    names = sorted(name for name, token in vocab.items() if token not in special and len(name) == 1)
    pairs = [rng.sample(names, 2) for _ in range(60)]
    pairs = [pair for i, pair in enumerate(pairs) if pair not in pairs[:i]]
    rows = json.loads((path / "config.json").read_text())["vocab_size"]
    _take_rows(path, [*range(rows), *(vocab[first] for first, _ in pairs)])
    raw["model"]["vocab"] |= {first + second: rows + i for i, (first, second) in enumerate(pairs)}
    raw["model"]["merges"] = pairs
    (path / "tokenizer.json").write_text(json.dumps(raw))
    _set(path, vocab_size=rows + len(pairs))
    return path


def shortened(source: Path, path: Path, rows: int) -> Path:
    """Copy a model with a byte-level tokenizer without its last merges, of which the tokens have no row either."""
    shutil.copytree(source, path)
    raw = json.loads((path / "tokenizer.json").read_text())
    raw["model"]["vocab"] = vocab = {name: i for name, i in raw["model"]["vocab"].items() if i < rows}
    pairs = [pair if isinstance(pair, list) else pair.split(" ") for pair in raw["model"]["merges"]]
    raw["model"]["merges"] = [pair for pair in pairs if {*pair, "".join(pair)} <= vocab.keys()]
    (path / "tokenizer.json").write_text(json.dumps(raw))
    _take_rows(path, list(range(rows)))
    _set(path, vocab_size=rows)
    return path


def spelling(tokenizer: Tokenizer, path: Path) -> Spelling:
    """Return a tokenizer's tokens, once it is written to a new directory."""
    path.mkdir(parents=True)
    tokenizer.save(str(path / "tokenizer.json"))
    codec = TextCodec(path)
    return Spelling(codec, codec.tokenizer.get_vocab_size())


def trained(size: int, texts: list[str]) -> Tokenizer:
    """Return a byte-level BPE tokenizer as GPT 2's, trained on some texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _take_rows(path: Path, rows: list[int]) -> None:
    tensors = load_file(path / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in tensors:
            tensors[name] = tensors[name][torch.tensor(rows)].clone()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def _set(path: Path, **values: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | values))
