"""How much memory a model's weights will take, known before any of them are read."""

import math

import torch

from parlay.models.config import ModelConfig
from parlay.models.select import weight_shapes


def weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Return the bytes of a model's weights once they are loaded, whatever they are stored as."""
    numbers = sum(math.prod(shape) for shape in weight_shapes(config).values())
    # A tied head is packed for the kernels beside the embedding that is looked up.
    tied = config.vocab_size * config.hidden_size if config.tie_embeddings else 0
    return (numbers + tied) * dtype.itemsize
