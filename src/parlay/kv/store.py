"""The tensors of the blocks."""

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

from parlay.models.context import LayerCache
from parlay.types.cache import CacheSpec

_LINE = 64  # bytes: a cache line, in which rows begin


def allocate(spec: CacheSpec, num_blocks: int, block_size: int, dtype: torch.dtype) -> tuple[LayerCache, ...]:
    """Return zeroed caches for every layer of a group, all on the same block ids."""
    shape = (num_blocks, spec.kv_heads, block_size, spec.head_dim)
    keys = [_zeros(shape, dtype) for _ in range(spec.layers)]
    return tuple(LayerCache(key, _zeros(shape, dtype) if spec.values else key) for key in keys)


def _zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return zeros whose pages the system provides when they are first written.

    `torch.zeros` writes all of them at once, which takes a second for a few GB and uses memory that may never be
    needed.
    """
    size = prod(shape) * dtype.itemsize
    whole = torch.from_numpy(np.zeros(size + _LINE, np.uint8))
    start = -whole.data_ptr() % _LINE
    return whole[start : start + size].view(dtype).view(tuple(shape))
