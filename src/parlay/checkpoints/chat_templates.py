"""The chat templates that come with a model, by name, and which of them a conversation gets."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from parlay.checkpoints.files import read_json
from parlay.checkpoints.gguf.parts import first_part
from parlay.checkpoints.gguf.reader import GGUFFile
from parlay.errors import ModelError, RequestError, shown

DEFAULT, WITH_TOOLS = "default", "tool_use"  # transformers' names
_KEY = "tokenizer.chat_template"


def read_templates(model: Path) -> dict[str, str]:
    """Return the chat templates of a model directory or GGUF file by their names.

    In a directory they are in `tokenizer_config.json`; those in `chat_template.jinja` and `additional_chat_templates`
    come before them, and `chat_template.json`, of processors, behind them. As in transformers.

    Raises:
        ModelError: a file cannot be read.
    """
    if model.is_file():
        with GGUFFile(first_part(model)) as file:
            return gguf_templates(file)
    found: dict[str, str] = {}
    for name in ("chat_template.json", "tokenizer_config.json"):
        if (model / name).is_file():
            found |= dict(_named(read_json(model / name).get("chat_template")))
    alone = model / "chat_template.jinja"
    files = {DEFAULT: alone} if alone.is_file() else {}
    files |= {file.stem: file for file in sorted((model / "additional_chat_templates").glob("*.jinja"))}
    return found | {name: _read(file) for name, file in files.items()}


def gguf_templates(file: GGUFFile) -> dict[str, str]:
    """Return the chat templates in a GGUF file by their names."""
    keys = {name: f"{_KEY}.{name}" for name in (*file.texts(f"{_KEY}s"), WITH_TOOLS)} | {DEFAULT: _KEY}
    return {name: file.text(key) for name, key in keys.items() if key in file}


def template_settings(templates: dict[str, str]) -> dict[str, Any]:
    """Return what the settings of a tokenizer have about its templates: all of them, and apart the default one."""
    default = {"chat_template": templates[DEFAULT]} if DEFAULT in templates else {}
    return {**default, "chat_templates": templates} if templates else {}


def choose(templates: Mapping[str, str], given: str | None, *, tools: bool) -> str | None:
    """Return the template for a conversation, as transformers chooses it; None if the model has none.

    Args:
        templates: the model's, by name.
        given: the name of one of them, or another template; None for a choice.
        tools: whether there are descriptions of functions.

    Raises:
        RequestError: there are some, but none for this; or what is given is none.
    """
    known = " or ".join(map(repr, sorted(templates)))
    if given is not None:
        if given in templates or "{" in given:
            return templates.get(given, given)
        names = f"; this model has {known}" if templates else ""
        raise RequestError(
            f"chat_template {shown(given)} is neither a template, which shows messages between braces, nor the name "
            f"of one{names}", param="chat_template",
        )  # fmt: skip
    name = WITH_TOOLS if tools and WITH_TOOLS in templates else DEFAULT
    if templates and name not in templates:
        raise RequestError(
            f"this model has several chat templates and none is the default; give chat_template as {known}",
            param="chat_template",
        )
    return templates.get(name)


def _named(value: Any) -> Iterator[tuple[str, str]]:
    """Yield names and templates of what is under `chat_template`: a text, or several with names."""
    if isinstance(value, str):
        yield DEFAULT, value
    pairs: list[tuple[Any, Any]] = list(value.items()) if isinstance(value, dict) else []
    if isinstance(value, list):
        pairs = [(one.get("name"), one.get("template")) for one in value if isinstance(one, dict)]
    yield from ((name, text) for name, text in pairs if isinstance(name, str) and isinstance(text, str))


def _read(template: Path) -> str:
    try:
        return template.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{template} cannot be read: {error}") from None
