"""Reading a tokenizer, and the files beside it."""

import json
from base64 import b64decode
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from parlay.checkpoints.files import read_json
from parlay.errors import ModelError, brief
from parlay.rust_panics import Contained
from parlay.text.gguf import read_gguf_tokenizer
from parlay.text.special_tokens import add_named, with_older
from parlay.text.template_files import read_templates, template_settings
from parlay.text.vocabulary_files import FORMS, read_vocabulary

# Far beyond any model's. The library has no limits: a larger factor fills the memory with a text of a few letters.
_GROWTH = 1000  # by what factor a text may grow
_PARTS = 100  # most parts that a text goes through


def tokenizer_file(model: Path) -> Path:
    """Return where the tokenizer of a model directory or GGUF file is, or would be."""
    if not model.is_dir():
        return model
    names = ("tokenizer.json", *(name for name, _, _ in FORMS))
    return next((file for name in names for file in sorted(model.glob(name))), model / "tokenizer.json")


def read_tokenizer(file: Path, about: dict[str, Any] | None = None) -> Tokenizer:
    """Return the tokenizer in a `tokenizer.json`, a GGUF file, or one of the forms of `vocabulary_files`.

    Args:
        file: it.
        about: the `tokenizer_config.json` beside it; what other forms imply is added to it.

    Raises:
        ModelError: it does not exist, cannot be read or is not supported.
    """
    if file.is_file() and any(file.match(name) for name, _, _ in FORMS):
        with Contained(f"{file} cannot be read: its library panics", ModelError):
            return _checked(read_vocabulary(file, {} if about is None else about), file)
    if file.is_file() and file.suffix != ".json":
        return read_gguf_tokenizer(file)[0]
    if not file.is_file():
        others = ", ".join("vocab.json with merges.txt" if name == "vocab.json" else name for name, _, _ in FORMS)
        raise ModelError(
            f"{file} does not exist, and nor does a tokenizer in another form that is read ({others}); fetch the "
            "model's tokenizer too, or name another model's as `tokenizer`"
        )
    try:
        with Contained("the library panics", ModelError):
            tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare ones
        raise ModelError(f"{file} cannot be read: {brief(str(error))}") from None
    return _checked(tokenizer, file)


def _checked(tokenizer: Tokenizer, file: Path) -> Tokenizer:
    # The engine limits the length of a prompt: it refuses what is too long, and truncates nothing.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _check(tokenizer, file)
    return tokenizer


def _check(tokenizer: Tokenizer, file: Path) -> None:
    """Refuse a tokenizer that makes a short text a huge one, or has too many parts.

    Raises:
        ModelError: it does.
    """
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        made = getattr(tokenizer, name)
        parts = [] if made is None else list(_parts(json.loads(made.__getstate__())))
        if len(parts) > _PARTS:
            raise ModelError(
                f"{file}: its {name} has {len(parts)} parts and may have {_PARTS}; use another tokenizer"
            )
        if prod(map(_growth, parts)) > _GROWTH:
            raise ModelError(
                f"{file}: its {name} may make a text more than {_GROWTH} times as long; use another tokenizer"
            )


def _parts(spec: Any) -> Iterator[dict[str, Any]]:
    """Yield the parts of a sequence, and of sequences in it."""
    left = [spec]
    while left:
        part = left.pop()
        inner = next((part[name] for name in ("normalizers", "pretokenizers", "decoders") if name in part), None)
        if inner is None:
            yield part
        else:
            left += inner


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
    about = with_older(*(read_json(file) if file.is_file() else {} for file in (config, *older)))
    tokenizer = read_tokenizer(tokenizer_file(model), about)
    add_named(tokenizer, about, config)
    about.pop("chat_template", None)
    return tokenizer, {**about, **template_settings(read_templates(model))}
