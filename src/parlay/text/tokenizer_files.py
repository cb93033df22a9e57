"""Reading a tokenizer in any form in which they are published, and the files beside it."""

from base64 import b64decode
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from parlay.checkpoints.chat_templates import read_templates, template_settings
from parlay.checkpoints.files import read_json, tokenizer_file
from parlay.errors import ModelError, brief
from parlay.rust_panics import Contained
from parlay.text.gguf_tokenizer import read_gguf_tokenizer
from parlay.text.pre_tokenizers import splitter
from parlay.text.sentence_piece import read_sentence_piece
from parlay.text.special_tokens import add_bos_eos, add_named, token_text, with_legacy_files
from parlay.text.tiktoken import is_tiktoken, read_tekken, read_tiktoken
from parlay.text.token_bytes import parts

# Far beyond any model's. The library has no limits: a larger factor fills the memory with a text of a few letters.
_GROWTH = 1000  # by what factor a text may grow
_PARTS = 100  # most parts that a text goes through


def read_tokenizer(file: Path, about: dict[str, Any] | None = None) -> Tokenizer:
    """Return the tokenizer in a `tokenizer.json`, a GGUF file, or in another form, see `_OTHERS`.

    Args:
        file: the tokenizer's file.
        about: the `tokenizer_config.json` beside it; what other forms imply is added to it.

    Raises:
        ModelError: it does not exist, cannot be read or is not supported.
    """
    if file.is_file() and any(file.match(name) for name, _, _ in _OTHERS):
        with Contained(f"{file} cannot be read: its library panics", ModelError):
            return _checked(_read_other(file, {} if about is None else about), file)
    if file.is_file() and file.suffix != ".json":
        return read_gguf_tokenizer(file)[0]
    if not file.is_file():
        others = ", ".join("vocab.json with merges.txt" if name == "vocab.json" else name for name, _, _ in _OTHERS)
        raise ModelError(
            f"{file} does not exist, nor does a tokenizer in another supported form ({others}); fetch the "
            "model's tokenizer too, or give another model's as `tokenizer`"
        )
    try:
        with Contained("the library panics", ModelError):
            tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare ones
        raise ModelError(f"{file} cannot be read: {brief(str(error))}") from None
    return _checked(tokenizer, file)


def _checked(tokenizer: Tokenizer, file: Path) -> Tokenizer:
    """Return a tokenizer that truncates and pads nothing.

    Raises:
        ModelError: it makes a short text a huge one, or has too many parts.
    """
    # The engine limits the length of a prompt: it refuses what is too long.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        found = list(parts(getattr(tokenizer, name)))
        if len(found) > _PARTS:
            raise ModelError(
                f"{file}: its {name} has {len(found)} parts and may have {_PARTS}; use another tokenizer"
            )
        if prod(map(_growth, found)) > _GROWTH:
            raise ModelError(
                f"{file}: its {name} may make a text more than {_GROWTH} times as long; use another tokenizer"
            )
    return tokenizer


def _growth(part: dict[str, Any]) -> float:
    """Return by what factor a part may lengthen a text, at most; what is added once does not count."""
    if part.get("type") == "Replace":
        content, found = len(part["content"].encode()), part["pattern"].get("String")
        return max(1.0, content / len(found.encode())) if found else 1.0 + content  # "" matches everywhere
    if part.get("type") == "Precompiled":  # a trie after its length, then what it replaces with, each ended by 0
        data = b64decode(part["precompiled_charsmap"])
        return max(1.0, *map(len, data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")))
    return 1.0


def read_texts(model: Path) -> tuple[Tokenizer, dict[str, Any]]:
    """Return a model's tokenizer, and its `tokenizer_config.json`, with all chat templates as `chat_templates`.

    All of that may be in a GGUF file instead. The default template, if there is one, is `chat_template`.

    Raises:
        ModelError: there is no `tokenizer.json`, or a file cannot be read or has an unsupported tokenizer.
    """
    if model.is_file():
        return read_gguf_tokenizer(model)
    config, *older = (
        model / name for name in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
    )
    about = with_legacy_files(*(read_json(file) if file.is_file() else {} for file in (config, *older)))
    tokenizer = read_tokenizer(tokenizer_file(model), about)
    add_named(tokenizer, about, config)
    about.pop("chat_template", None)
    return tokenizer, {**about, **template_settings(read_templates(model))}


Read = Callable[[Path, dict[str, Any]], Tokenizer]

# What the classes of the field assume where a config says nothing.
_GPT2 = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
_LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}


def _read_other(file: Path, about: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer in a file that `_OTHERS` names, and add to its config what the form implies.

    Args:
        file: it; others may lie beside it.
        about: the model's `tokenizer_config.json`.

    Raises:
        ModelError: it cannot be read, or is of a kind that is not supported.
    """
    _, read, defaults = next(form for form in _OTHERS if file.match(form[0]))
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
        raise ModelError(f"{file} has no token {missing!r}, which the config next to it adds to texts")
    add_bos_eos(tokenizer, bos, eos)
    return tokenizer


def _merges(file: Path, about: dict[str, Any]) -> Tokenizer:
    merges = file.with_name("merges.txt")
    if not merges.is_file():
        raise ModelError(f"{merges} does not exist, without which {file} is no tokenizer; fetch it too")
    name = str(about.get("tokenizer_class") or "GPT2Tokenizer").removesuffix("Fast")
    if name not in ("GPT2Tokenizer", "CodeGenTokenizer", "Qwen2Tokenizer"):
        raise ModelError(f"{file} is a vocabulary of the class {name}, which is read from a tokenizer.json alone; "
                         f"{_remedy(file.parent)}")  # fmt: skip
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


def _tokenizer_model(file: Path, about: dict[str, Any]) -> Tokenizer:
    return read_tiktoken(file, about) if is_tiktoken(file) else read_sentence_piece(file, about)


def _remedy(folder: Path) -> str:
    """Return how to make a `tokenizer.json` of what another library can read."""
    return (
        'write one with `pip install parlay[transformers]` and `python -c "from transformers import AutoTokenizer; '
        f"AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')\"`"
    )


# What files are called, how they are read, and what their configs need not say; the first that is there counts.
_OTHERS: tuple[tuple[str, Read, dict[str, Any]], ...] = (
    ("vocab.json", _merges, _GPT2),
    ("tekken.json", lambda file, _: read_tekken(file), _LLAMA),
    ("tokenizer.model", _tokenizer_model, _LLAMA),
    ("tiktoken.model", read_tiktoken, {}),
    ("*.tiktoken", read_tiktoken, {}),
)
