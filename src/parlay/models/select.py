"""From a name to a model: find the files, read its config, pick the family, load."""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from parlay.dist.group import ALONE, Group
from parlay.errors import ConfigError, ModelError, nearest
from parlay.kernels.base import Kernels
from parlay.log import logger
from parlay.models import foreign
from parlay.models.config import ModelConfig, architecture_of, parse_config, read_raw
from parlay.models.context import ForwardContext
from parlay.models.hub import DEFAULT, Hub, fetch, is_hub_id
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
            "decoder",
            "foreign",
            "foreign_attention",
            "foreign_modules",
            "foreign_probe",
            "foreign_survey",
            "gguf",
            "gguf_config",
            "gguf_names",
            "gguf_tokenizer",
            "hub",
            "layers",
            "loader",
            "moe",
            "pickled",
            "rope",
            "rotary",
            "select",
            "style",
            "tokenizer",
        }
    ),
)


class Model(Protocol):
    """What a family file's `Model` offers.

    Beside it the file has `describe(config)`, which returns the config with the family's style, or raises a
    ModelError that names a key with a value that the family does not serve.
    """

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


def find_model(name: str, hub: Hub = DEFAULT) -> Path:
    """Return the directory or GGUF file of a model: embedded, on disk (`./name` means only that), or from the hub.

    Args:
        name: of an embedded model, a directory, a GGUF file, or `owner/model`.
        hub: how to fetch the last.

    Raises:
        ModelError: there is none.
    """
    if name in embedded_models():
        return ASSETS / name
    path = Path(name)
    if path.is_dir() or path.is_file():
        return path
    if is_hub_id(name):
        return fetch(name, hub)
    raise ModelError(
        f"there is no model {name!r}: give a directory with a config.json, a GGUF file, the name of an "
        "embedded model or, as owner/model, of one on the hub" + nearest(name, embedded_models())
    )


def describe_model(name: str, hub: Hub = DEFAULT) -> ModelConfig:
    """Return the shape of a model by name, directory or GGUF file, reading no weights.

    Args:
        name: as `find_model` takes it.
        hub: likewise.

    Raises:
        ModelError: it cannot be found or read, or its architecture is not served.
    """
    path = find_model(name, hub)
    raw = read_raw(path)
    architecture = architecture_of(raw)
    if architecture.endswith(_SUFFIX) and _family(architecture) in families.names():
        described: ModelConfig = families.load(_family(architecture)).describe(parse_config(path, raw))
        return described
    if path.is_file():
        raise ModelError(f"{path}: {architecture} is not served; these families are: {', '.join(families.names())}")
    return foreign.describe(path, raw)


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
    if config.foreign is not None:
        return foreign.Model(config, dtype, max_model_len, kernels, group)
    model: Model = families.load(_family(config.architecture)).Model(config, dtype, max_model_len, kernels, group)
    return model


def _family(architecture: str) -> str:
    return architecture.removesuffix(_SUFFIX).lower()
