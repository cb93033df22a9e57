"""Reading a tokenizer, and what stands beside it."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from parlay.errors import ModelError, brief
from parlay.models.config import read_json
from parlay.models.gguf_tokenizer import read_gguf_tokenizer
from parlay.panics import Contained


def tokenizer_file(model: Path) -> Path:
    """Return where the tokenizer of a model directory or GGUF file is."""
    return model / "tokenizer.json" if model.is_dir() else model


def read_tokenizer(file: Path) -> Tokenizer:
    """Return the tokenizer in a `tokenizer.json` or a GGUF file.

    Raises:
        ModelError: it does not exist, cannot be read or is not served.
    """
    if file.is_file() and file.suffix != ".json":
        return read_gguf_tokenizer(file)[0]
    if not file.is_file():
        raise ModelError(f"{file} does not exist; text needs a tokenizer in the `tokenizers` format")
    try:
        with Contained("the library panics", ModelError):
            tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare ones
        raise ModelError(f"{file} cannot be read: {brief(str(error))}") from None
    # How long a prompt may be is the engine's to say: it refuses what is too long, and cuts nothing.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_texts(model: Path) -> tuple[Tokenizer, dict[str, Any]]:
    """Return a model's tokenizer, and what its `tokenizer_config.json` says; of chat templates, the default one.

    The template may be in a `chat_template.jinja`, and all of that in a GGUF file instead.

    Raises:
        ModelError: there is no `tokenizer.json`, or a file cannot be read or has a tokenizer that is not served.
    """
    if model.is_file():
        return read_gguf_tokenizer(model)
    tokenizer = read_tokenizer(model / "tokenizer.json")
    config = model / "tokenizer_config.json"
    about = read_json(config) if config.is_file() else {}
    template = model / "chat_template.jinja"
    text = _read(template) if template.is_file() else _default(about.pop("chat_template", None))
    return tokenizer, about if text is None else {**about, "chat_template": text}


def token_text(value: Any) -> str:
    """Return the text of a special token, which `tokenizer_config.json` gives as such or with attributes."""
    return str(value.get("content") if isinstance(value, dict) else value)


def _read(template: Path) -> str:
    try:
        return template.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{template} cannot be read: {error}") from None


def _default(value: Any) -> str | None:
    """Return the template under `chat_template`: text, or the default one of several named ones."""
    if isinstance(value, list):
        named = [t.get("template") for t in value if isinstance(t, dict) and t.get("name") == "default"]
        value = named[-1] if named else None
    return value if isinstance(value, str) else None
