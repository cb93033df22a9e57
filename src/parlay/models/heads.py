"""Checkpoints of draft heads: a config of a few keys, and tensors that mean nothing without their target."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from parlay.checkpoints.files import config_file, read_json
from parlay.checkpoints.find import find_model
from parlay.checkpoints.gguf.drafters import read_gguf_head
from parlay.checkpoints.hub import DEFAULT, Hub
from parlay.errors import ModelError, shown
from parlay.models.config import ModelConfig, parse_config
from parlay.models.style import Style

_MOST = (1 << 31) - 1  # of any size; beyond are only damaged files
_LARGEST = 1e9  # of any factor
_PADDING, _SHARE = 128, 100  # rows by which padded vocabularies may differ, or this part of them if that is more


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Where a draft head lies, and its `config.json`, or what stands for it in a GGUF file."""

    path: Path
    raw: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def file(self) -> Path:
        """The file that has it, for error messages."""
        return config_file(self.path)

    def count(self, key: str, default: int | None = None, least: int = 1) -> int:
        """Return a key that holds a whole number of at least `least`.

        Raises:
            ModelError: it holds something else, or is missing and has no default.
        """
        value = self.raw.get(key)
        value = default if value is None else value
        if value is None:
            raise ModelError(f"{self.file} lacks the key {key!r}")
        if type(value) is not int or not least <= value <= _MOST:
            raise ModelError(f"{self.file}: {key} must be a whole number of at least {least}, not {shown(value)}")
        return value

    def number(self, key: str, default: float, least: float = 1e-9) -> float:
        """Return a key that holds a finite number of at least `least`.

        Raises:
            ModelError: it holds something else.
        """
        value = self.raw.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < _LARGEST:
            raise ModelError(f"{self.file}: {key} must be a number of at least {least}, not {shown(value)}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return a key that holds true or false.

        Raises:
            ModelError: it holds something else.
        """
        value = self.raw.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise ModelError(f"{self.file}: {key} must be true or false, not {shown(value)}")
        return value

    def check_target(self, target: ModelConfig, *, hidden: int | None = None, vocab: int | None = None) -> None:
        """Refuse a head that was made for another target.

        Args:
            target: the model that it is to draft for.
            hidden: width of the hidden states that the head reads, if known.
            vocab: size of its vocabulary, if known; padding aside.

        Raises:
            ModelError: the head's sizes are not the target's.
        """
        if vocab is not None and differs_by_padding(vocab, target.vocab_size):
            vocab = None
        for size, of, what in (
            (hidden, target.hidden_size, "hidden states of width"),
            (vocab, target.vocab_size, "a vocabulary of"),
        ):
            if size is not None and size != of:
                raise ModelError(
                    f"the draft head {self.path} needs {what} {size} but the target {target.path} has {of}; "
                    "the head was made for another target"
                )


def differs_by_padding(size: int, target: int) -> bool:
    """Whether a vocabulary's size may be that of the target's, padded otherwise."""
    return abs(size - target) <= max(_PADDING, target // _SHARE)


def read_head(name: str, hub: Hub = DEFAULT) -> HeadConfig:
    """Find a draft head by directory, GGUF file or name on the hub, reading no weights.

    Raises:
        ModelError: there is none, or its config cannot be read.
        ConfigError: a revision of what is not on the hub.
    """
    path = find_model(name, hub)
    return HeadConfig(path, read_gguf_head(path) if path.is_file() else read_json(path / "config.json"))


def layer_config(head: HeadConfig, raw: dict[str, Any], first: str, names: Collection[str]) -> ModelConfig:
    """Return the config of a head's decoder layers.

    Which of them have biases or norms of single heads follows from the tensors, since configs leave it out or mean
    something else by the same key.

    Args:
        head: the head that has the layers.
        raw: the part of the head's config that describes the layers, with a language model's keys.
        first: what the names of the first layer's tensors begin with.
        names: names of all of the head's tensors.

    Raises:
        ModelError: keys are missing or hold what is not supported.
    """
    config = parse_config(head.path, raw)
    config.only(hidden_act="silu")
    style = Style(
        qkv_bias=f"{first}self_attn.q_proj.bias" in names,
        output_bias=f"{first}self_attn.o_proj.bias" in names,
        mlp_bias=f"{first}mlp.gate_proj.bias" in names,
        head_norms=f"{first}self_attn.q_norm.weight" in names,
    )
    return replace(config, style=style)
