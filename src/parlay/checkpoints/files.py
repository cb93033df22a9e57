"""The small JSON files of a model's directory."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parlay.errors import ModelError

_OTHER_NAMES = {"half": "float16", "fp16": "float16", "float": "float32", "fp32": "float32", "bf16": "bfloat16"}
_POINTER = b"version https://git-lfs.github.com/spec/"  # how such a file begins
# The vocabulary of a tokenizer that is published otherwise than as a `tokenizer.json`.
VOCABULARIES = ("vocab.json", "merges.txt", "tekken.json", "tokenizer.model", "tiktoken.model", "*.tiktoken")


def config_file(path: Path) -> Path:
    """Return the file that says what the model in directory or GGUF file `path` is like."""
    return path / "config.json" if path.is_dir() else path


def tokenizer_file(model: Path) -> Path:
    """Return where the tokenizer of a model directory or GGUF file is, or would be."""
    if not model.is_dir():
        return model
    names = ("tokenizer.json", *(name for name in VOCABULARIES if name != "merges.txt"))
    return next((file for name in names for file in sorted(model.glob(name))), model / "tokenizer.json")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        ModelError: the file is missing, unreadable, or holds something else.
    """
    try:
        value = json.loads(path.read_text("utf-8-sig"))  # editors of Windows begin files with a mark
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist; a model directory needs one") from None
    except (OSError, ValueError) as error:  # also no UTF-8, no JSON, a number of too many digits
        raise ModelError(f"{path} {pointer(path) or f'cannot be read: {error}'}") from None
    except RecursionError:
        raise ModelError(f"{path} cannot be read: it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return value


def pointer(path: Path) -> str | None:
    """Return what to say of a file that is a Git LFS pointer to the one that is wanted; None for other files."""
    try:
        with path.open("rb") as file:
            begins = file.read(len(_POINTER))
    except OSError:
        return None
    if begins != _POINTER:
        return None
    return "is a pointer of Git LFS, not the file itself; fetch it with `git lfs pull`"


def dtype_of(raw: dict[str, Any]) -> str:
    """Return what a `config.json` says that its weights are stored as, by torch's longest name."""
    name = str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    return _OTHER_NAMES.get(name, name)


def class_names(raw: Mapping[str, Any]) -> list[str]:
    """Return the names that a `config.json` gives its model: of classes, and of its type."""
    named = raw.get("architectures")
    names = [*(named if isinstance(named, list) else [named]), raw.get("model_type")]
    return [name for name in names if isinstance(name, str)]
