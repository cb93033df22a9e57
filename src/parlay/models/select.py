"""From a name to a model: find the files, read its config, pick the family, load."""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from parlay.dist.group import ALONE, Group
from parlay.errors import ConfigError, ModelError, nearest
from parlay.kernels.base import Kernels
from parlay.log import logger
from parlay.models.config import ModelConfig, read_config
from parlay.models.context import ForwardContext
from parlay.registry import Registry
from parlay.types.cache import CacheSpec

ASSETS = Path(__file__).parent.parent / "assets"
_SUFFIX = "ForCausalLM"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# Family files are found by name: LlamaForCausalLM lives in llama.py.
families = Registry(
    "parlay.models",
    "model family",
    hidden=frozenset(
        {
            "config",
            "context",
            "gguf",
            "gguf_config",
            "gguf_names",
            "gguf_tokenizer",
            "layers",
            "loader",
            "rotary",
            "select",
            "tokenizer",
        }
    ),
)


class Model(Protocol):
    """What a family file's `Model` offers."""

    config: ModelConfig
    dtype: torch.dtype

    def forward(self, tokens: Tensor, context: ForwardContext) -> Tensor:
        """Return hidden states after the final norm, `[rows, hidden]`."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits, `[rows, vocab]`."""
        ...


def embedded_models() -> list[str]:
    """Return the names of the models that come with the package."""
    return sorted(p.parent.name for p in ASSETS.glob("*/config.json"))


def find_model(name: str) -> Path:
    """Return the directory of an embedded model, or the directory or GGUF file of another; `./name` means the latter.

    Raises:
        ModelError: neither exists.
    """
    if name in embedded_models():
        return ASSETS / name
    path = Path(name)
    if path.is_dir() or path.is_file():
        return path
    raise ModelError(
        f"there is no model {name!r}: give a directory with a config.json, a GGUF file, or the name of an embedded "
        "model" + nearest(name, embedded_models())
    )


def describe_model(name: str) -> ModelConfig:
    """Return the shape of a model by name, directory or GGUF file, reading no weights.

    Raises:
        ModelError: it cannot be found or read, or its architecture is not served.
    """
    config = read_config(find_model(name))
    if _family(config) not in families.names():
        served = ", ".join(f.capitalize() + _SUFFIX for f in families.names())
        raise ModelError(f"{config.path}: {config.architecture} is not served yet; {served} is")
    return config


def resolve_dtype(asked: str, config: ModelConfig) -> torch.dtype:
    """Return the dtype to compute in: what was asked for, or with `auto` the checkpoint's.

    Raises:
        ConfigError: a dtype that is not served.
    """
    name = config.dtype if asked == "auto" else asked
    if asked == "auto" and name == "float16":
        logger.warning("%s: float16 is computed as bfloat16, its range being what matters", config.path)
        name = "bfloat16"
    if name not in _DTYPES:
        raise ConfigError(f"dtype {name!r} is not served{nearest(name, _DTYPES)}")
    return _DTYPES[name]


def cache_spec(config: ModelConfig, dtype: torch.dtype) -> CacheSpec:
    """Return what the model's layers keep of a token."""
    return CacheSpec(config.num_layers, config.num_kv_heads, config.head_dim, dtype.itemsize)


def load_model(
    config: ModelConfig, dtype: torch.dtype, max_model_len: int, kernels: Kernels, group: Group = ALONE
) -> Model:
    """Read a model's weights.

    Raises:
        ModelError: the weights do not fit the config.
    """
    model: Model = families.load(_family(config)).Model(config, dtype, max_model_len, kernels, group)
    return model


def _family(config: ModelConfig) -> str:
    return config.architecture.removesuffix(_SUFFIX).lower()
