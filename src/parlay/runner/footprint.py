"""How much memory a model's weights will take, known before any of them are read."""

import math

import torch

from parlay.models.config import ModelConfig
from parlay.models.select import stored_kinds, weight_shapes


def weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Return the bytes of a model's weights once they are loaded.

    Raises:
        ModelError: files are missing or damaged.
    """
    kinds = stored_kinds(config)
    total = 0
    for name, shape in weight_shapes(config).items():
        numbers, kind = math.prod(shape), kinds.get(name)
        if kind is not None:
            total += numbers // kind.block * kind.size
        else:
            # A tied head is packed for the kernels beside the embedding that is looked up.
            twice = config.tie_embeddings and name.endswith("embed_tokens.weight")
            total += numbers * dtype.itemsize * (2 if twice else 1)
    return total
