"""Reading a checkpoint's `config.json`."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parlay.errors import ModelError
from parlay.models.gguf_config import read_gguf_config

# Kinds of rotary scaling, and the keys that each needs.
_SCALING = {
    "default": (),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """Rotary embedding: the base and, for scaled ones, the scaling's own keys as the checkpoint names them."""

    theta: float
    kind: str = "default"
    scaling: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a decoder-only model, in a Hugging Face `config.json`'s words. Sizes are element counts."""

    path: Path
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rotary: Rotary
    tie_embeddings: bool
    max_position: int
    dtype: str
    eos_token_ids: tuple[int, ...]


def read_config(path: Path) -> ModelConfig:
    """Return the shape of the model in directory or GGUF file `path`.

    Raises:
        ModelError: no or unreadable `config.json` or GGUF file, missing keys, sizes that contradict each other, or an
            architecture or option that parlay does not serve.
    """
    raw = read_gguf_config(path) if path.is_file() else read_json(path / "config.json")
    generation = path / "generation_config.json"
    if generation.is_file():
        raw = {**raw, **{k: v for k, v in read_json(generation).items() if k == "eos_token_id"}}
    if raw.get("quantization_config"):
        raise ModelError(f"{path} holds quantised weights, which are not served yet; use an unquantised checkpoint")
    for key, wanted in (("attention_bias", False), ("mlp_bias", False), ("hidden_act", "silu")):
        if raw.get(key, wanted) != wanted:
            raise ModelError(f"{path}: {key}={raw[key]!r} is not served; only {key}={wanted!r} is")
    try:
        heads = int(raw["num_attention_heads"])
        config = ModelConfig(
            path=path,
            architecture=str((raw.get("architectures") or ["an unnamed architecture"])[0]),
            vocab_size=int(raw["vocab_size"]),
            hidden_size=int(raw["hidden_size"]),
            intermediate_size=int(raw["intermediate_size"]),
            num_layers=int(raw["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // heads),
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rotary=_read_rotary(path, raw),
            tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
            max_position=int(raw.get("max_position_embeddings", 2048)),
            dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
            eos_token_ids=_ids(raw.get("eos_token_id")),
        )
    except KeyError as error:
        raise ModelError(f"{_file(path)} lacks the key {error}") from None
    except (TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        raise ModelError(f"{_file(path)} cannot be read: {error}") from None
    _check_sizes(config)
    return config


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        ModelError: the file is missing, unreadable, or holds something else.
    """
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist; a model directory needs one") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return value


def _file(path: Path) -> Path:
    """Return the file that says what a model is like."""
    return path / "config.json" if path.is_dir() else path


def _read_rotary(path: Path, raw: dict[str, Any]) -> Rotary:
    # transformers 5 writes `rope_parameters`; earlier files have `rope_theta` beside `rope_scaling`.
    scaling = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    theta = float(scaling.pop("rope_theta", None) or raw.get("rope_theta") or 10000.0)
    kind = str(scaling.pop("rope_type", None) or scaling.pop("type", None) or "default")
    if kind not in _SCALING:
        raise ModelError(f"{path}: rotary scaling {kind!r} is not served; {' and '.join(_SCALING)} are")
    needed = _SCALING[kind]
    return Rotary(theta=theta, kind=kind, scaling={key: float(scaling[key]) for key in needed})


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(v) for v in value) if isinstance(value, list) else (int(value),)


def _check_sizes(config: ModelConfig) -> None:
    file = _file(config.path)
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "head_dim", "max_position")
    for name in sizes:
        if getattr(config, name) < 1:
            raise ModelError(f"{file}: {name} must be at least 1, not {getattr(config, name)}")
    numbers = {"rms_norm_eps": config.rms_norm_eps, "rope_theta": config.rotary.theta, **config.rotary.scaling}
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise ModelError(f"{file}: {name} must be above 0 and finite, not {value}")
    if config.num_kv_heads < 1 or config.num_heads % config.num_kv_heads:
        raise ModelError(f"{file}: {config.num_heads} heads do not divide into {config.num_kv_heads} groups")
    if config.head_dim % 8 or config.head_dim > 256:
        raise ModelError(f"{file}: head_dim {config.head_dim} is not served; multiples of 8 up to 256 are")
