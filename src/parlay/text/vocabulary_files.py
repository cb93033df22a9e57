"""Tokenizers that are published otherwise than as a `tokenizer.json`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from parlay.errors import ModelError, brief
from parlay.text.byte_ranks import is_tiktoken, read_tekken, read_tiktoken
from parlay.text.pre_tokenizers import splitter
from parlay.text.sentence_piece import read_sentence_piece
from parlay.text.special_tokens import frame, token_text

Read = Callable[[Path, dict[str, Any]], Tokenizer]

# What the classes of the field assume where a config says nothing.
_GPT2 = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
_LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}


def read_vocabulary(file: Path, about: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer in a file that `FORMS` names, and add to its config what the form implies.

    Args:
        file: it; others may lie beside it.
        about: the model's `tokenizer_config.json`.

    Raises:
        ModelError: it cannot be read, or is of a kind that is not served.
    """
    _, read, defaults = next(form for form in FORMS if file.match(form[0]))
    tokenizer = read(file, about)
    for key, value in defaults.items():
        if value is True or tokenizer.token_to_id(str(value)) is not None:
            about.setdefault(key, value)
    bos, eos = (
        token_text(about[f"{name}_token"]) if about.get(f"add_{name}_token") and about.get(f"{name}_token") else None
        for name in ("bos", "eos")
    )
    missing = next((token for token in (bos, eos) if token and tokenizer.token_to_id(token) is None), None)
    if missing is not None:
        raise ModelError(f"{file} has no token {missing!r}, which the config beside it puts around texts")
    frame(tokenizer, bos, eos)
    return tokenizer


def _merges(file: Path, about: dict[str, Any]) -> Tokenizer:
    merges = file.with_name("merges.txt")
    if not merges.is_file():
        raise ModelError(f"{merges} does not exist, without which {file} is no tokenizer; fetch it too")
    name = str(about.get("tokenizer_class") or "GPT2Tokenizer").removesuffix("Fast")
    if name not in ("GPT2Tokenizer", "CodeGenTokenizer", "Qwen2Tokenizer"):
        raise ModelError(f"{file} is a vocabulary of the class {name}, which is read from a tokenizer.json alone; "
                         f"{remedy(file.parent)}")  # fmt: skip
    try:
        tokenizer = Tokenizer(models.BPE.from_file(str(file), str(merges)))
    except Exception as error:  # the library raises bare ones
        raise ModelError(f"{file} and {merges} cannot be read: {brief(str(error))}") from None
    if name == "Qwen2Tokenizer":
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = splitter("qwen2")
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(about.get("add_prefix_space")))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _model(file: Path, about: dict[str, Any]) -> Tokenizer:
    return read_tiktoken(file, about) if is_tiktoken(file) else read_sentence_piece(file, about)


def remedy(folder: Path) -> str:
    """Return how to make a `tokenizer.json` of what another library can read."""
    return (
        'write one with `pip install parlay[transformers]` and `python -c "from transformers import AutoTokenizer; '
        f"AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')\"`"
    )


# What files are called, how they are read, and what their configs need not say; the first that is there counts.
FORMS: tuple[tuple[str, Read, dict[str, Any]], ...] = (
    ("vocab.json", _merges, _GPT2),
    ("tekken.json", lambda file, _: read_tekken(file), _LLAMA),
    ("tokenizer.model", _model, _LLAMA),
    ("tiktoken.model", read_tiktoken, {}),
    ("*.tiktoken", read_tiktoken, {}),
)
