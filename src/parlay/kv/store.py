"""The tensors behind the blocks."""

import torch

from parlay.models.context import LayerCache
from parlay.types.cache import CacheSpec


def allocate(spec: CacheSpec, num_blocks: int, block_size: int, dtype: torch.dtype) -> tuple[LayerCache, ...]:
    """Return zeroed caches for every layer of a group, all on the same block ids."""
    shape = (num_blocks, spec.kv_heads, block_size, spec.head_dim)
    return tuple(
        LayerCache(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)) for _ in range(spec.layers)
    )
