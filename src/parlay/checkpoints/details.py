"""The description of a model before it is loaded."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parlay.checkpoints import ollama
from parlay.checkpoints.chat_templates import gguf_templates, read_templates
from parlay.checkpoints.config import architecture_of, read_raw
from parlay.checkpoints.files import read_json, tokenizer_file
from parlay.checkpoints.find import ASSETS, here, recommended, unknown
from parlay.checkpoints.gguf.reader import GGUFFile
from parlay.checkpoints.headers import kinds, read_tensors
from parlay.checkpoints.hub import DEFAULT, Hub, is_hub_id
from parlay.checkpoints.inventory import LocalCheckpoint, describe, on_this_machine, take_inventory
from parlay.checkpoints.quantised.config import quantization_of
from parlay.checkpoints.sampling_defaults import stated_in_gguf
from parlay.checkpoints.short_names import SAMPLING, resolve
from parlay.errors import ModelError, shown

_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
_FRONT = 4096  # characters of a README in which its front matter is looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """A checkpoint, as its files describe it; None and empty where they say nothing.

    Attributes:
        local: where it is and what it is for.
        architecture: the class of transformers that it was made for.
        parameters: numbers that were learnt, unless packing hides how many.
        context_length: the longest sequence, in tokens.
        shape: further sizes by their names in a `config.json`.
        kinds: bytes by how numbers are stored.
        tokenizer: `tokenizer.json` or what is there instead, the name of a GGUF file's tokenizer, or None.
        chat_template: whether it has one.
        generation: the defaults of sampling that come with it.
        license: the licence that the model's README names.
    """

    local: LocalCheckpoint
    architecture: str
    parameters: int | None
    context_length: int | None
    shape: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    tokenizer: str | None = None
    chat_template: bool = False
    generation: dict[str, float] = field(default_factory=dict)
    license: str | None = None


def read_details(name: str, hub: Hub = DEFAULT) -> Details:
    """Return the description in a checkpoint's files on this machine; without the hub.

    Raises:
        ModelError: it is not on this machine, or its files cannot be read.
        ConfigError: the user's table of short names is malformed.
    """
    local = _local(name, hub)
    raw, tensors = read_raw(local.path), read_tensors(local.path)
    own = _of_file(local.path) if local.path.is_file() else _of_directory(local.path)
    own["generation"] = own["generation"] | recommended(name)
    packed = quantization_of(raw) and local.path.is_dir()
    return Details(
        local=local,
        architecture=architecture_of(raw),
        parameters=None if packed else sum(math.prod(tensor.shape) for tensor in tensors.values()) or None,
        context_length=_count(raw, "max_position_embeddings"),
        shape={key: value for key in _SIZES if (value := _count(raw, key)) is not None},
        kinds=kinds(tensors),
        **own,
    )


def _local(name: str, hub: Hub) -> LocalCheckpoint:
    path = here(name)
    if path is not None:
        return describe(path, "embedded" if path.parent == ASSETS else "disk", path.name)
    if name.startswith(ollama.PREFIX):
        return describe(ollama.find(name), "ollama", name)
    found = on_this_machine(name, hub)
    if found:
        return max(found, key=lambda one: one.changed)
    named = None if "/" in name else resolve(name)
    if named is not None and named.path is not None and here(str(named.path)) is not None:
        return describe(named.path, "disk", named.name)
    if named is None and not is_hub_id(name):
        raise unknown(name)
    files = [one.name for one in take_inventory(hub).checkpoints if one.repository == name]
    if files:
        raise ModelError(f"{shown(name)} is here in single files, give one: {', '.join(map(shown, files))}")
    raise ModelError(f"{shown(name)} is not on this machine; fetch it with `parlay pull {name}`")


def _count(raw: dict[str, Any], key: str) -> int | None:
    value = raw.get(key)
    return value if type(value) is int else None


def _of_directory(path: Path) -> dict[str, Any]:
    tokenizer = tokenizer_file(path)
    generation = path / "generation_config.json"
    return {
        "tokenizer": tokenizer.name if tokenizer.is_file() else None,
        "chat_template": bool(read_templates(path)),
        "generation": _numbers(read_json(generation)) if generation.is_file() else {},
        "license": _license(path / "README.md"),
    }


def _of_file(path: Path) -> dict[str, Any]:
    with GGUFFile(path) as file:
        return {
            "tokenizer": file.text("tokenizer.ggml.model", "") or None,
            "chat_template": bool(gguf_templates(file)),
            "generation": stated_in_gguf(file),
            "license": file.text("general.license", "") or None,
        }


def _numbers(raw: dict[str, Any]) -> dict[str, float]:
    keys = (*SAMPLING, "max_new_tokens")
    return {key: raw[key] for key in keys if type(raw.get(key)) in (int, float)}


def _license(readme: Path) -> str | None:
    """Return the license in the front matter of a model's README, which is YAML of one line a key."""
    try:
        with readme.open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_FRONT).splitlines()
    except OSError:
        return None
    if not lines or lines[0] != "---":
        return None
    for line in lines[1:]:
        key, _, value = line.partition(":")
        if line == "---":
            break
        if key == "license":
            return value.strip().strip("\"'") or None
    return None
