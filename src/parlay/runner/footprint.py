"""How much memory a model's weights will take, known before any of them are read."""

import math
from collections.abc import Mapping

import torch

from parlay.models.config import ModelConfig
from parlay.models.latent import EXPAND, absorbed_bytes
from parlay.models.select import stored_kinds, weight_shapes
from parlay.models.stored import open_weights


def weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Return the bytes of a model's weights once they are loaded, all its ranks together.

    Raises:
        ModelError: files are missing or damaged.
    """
    return _bytes(config, dtype, weight_shapes(config))


def embed_and_lm_head_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Return the bytes of a model's embedding and output layer, once they are loaded.

    Raises:
        ModelError: files are missing or damaged.
    """
    shapes = weight_shapes(config)
    return _bytes(config, dtype, {name: shape for name, shape in shapes.items() if shape[0] == config.vocab_size})


def _bytes(config: ModelConfig, dtype: torch.dtype, shapes: Mapping[str, tuple[int, ...]]) -> int:
    kinds, absorbed = stored_kinds(config), _absorbed(config, dtype)
    total = 0
    for name, shape in shapes.items():
        numbers, kind = math.prod(shape), kinds.get(name)
        if name in absorbed:
            total += absorbed[name]
        elif kind is not None:
            total += numbers // kind.block * kind.memory
        else:
            # A tied head is stored a second time, packed for the kernels, beside the embedding.
            twice = config.tie_embeddings and name.endswith("embed_tokens.weight")
            total += numbers * dtype.itemsize * (2 if twice else 1)
    return total


def _absorbed(config: ModelConfig, dtype: torch.dtype) -> dict[str, int]:
    """Return the bytes of what is kept in the place of some tensors of latent attention, by name."""
    if config.style.latent is None:
        return {}
    names = [name for name in weight_shapes(config) if name.endswith(EXPAND)]
    if not config.path.is_file():
        return dict.fromkeys(names, absorbed_bytes(config, dtype.itemsize, (None, None)))
    with open_weights(config) as weights:
        return {name: absorbed_bytes(config, dtype.itemsize, weights.head_kinds(name)) for name in names}
