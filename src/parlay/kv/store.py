"""The tensors of the blocks, and of the slots of states."""

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

from parlay.models.context import CacheLayer, CacheLayers, HybridCache, LayerCache, StateCache
from parlay.types.cache import NO_ROOM, CacheSpec, Kept, RecurrentSpec, StateRoom

_LINE = 64  # bytes: a cache line, in which rows begin


def allocate(
    spec: CacheSpec, num_blocks: int, block_size: int, dtype: torch.dtype, room: StateRoom = NO_ROOM
) -> CacheLayers:
    """Return zeroed caches for every layer of a group, all on the same block ids and slots."""

    def layer(kept: Kept) -> CacheLayer:
        states = None
        if kept in ("states", "both"):
            assert spec.recurrent is not None
            states = allocate_states(spec.recurrent, room, dtype)
        if kept == "states" and states is not None:
            return states
        shape = (num_blocks if kept != "nothing" else 0, spec.kv_heads, block_size, spec.head_dim)
        keys = _zeros(shape, dtype)
        own = LayerCache(keys, _zeros(shape, dtype) if spec.values else keys)
        return own if states is None else HybridCache(own, states)

    if spec.heads:
        made: list[CacheLayer] = []
        for (count, width), source in zip(spec.heads, spec.sources, strict=True):
            shape = (num_blocks, count, block_size, width)
            made.append(made[source] if source >= 0 else LayerCache(_zeros(shape, dtype), _zeros(shape, dtype)))
        return tuple(made)
    return tuple(map(layer, spec.pattern)) if spec.pattern else tuple(layer("keys") for _ in range(spec.layers))


def allocate_states(spec: RecurrentSpec, room: StateRoom, dtype: torch.dtype) -> StateCache:
    """Return zeroed states of one layer."""
    scans = bool(spec.state)
    return StateCache(
        tails=_zeros((room.slots, spec.taps - 1, spec.channels), dtype),
        kept_rows=_zeros((room.places, spec.channels), dtype),
        stored=_zeros((room.slots if scans else 0, *spec.state), torch.float32),
        kept=_zeros((room.places if scans else 0, spec.channels), dtype),
        kept_gates=_zeros((room.places if scans else 0, spec.gates), dtype),
    )


def _zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return zeros whose pages the system provides when they are first written.

    `torch.zeros` writes all of them at once, which takes a second for a few GB and uses memory that may never be
    needed.
    """
    size = prod(shape) * dtype.itemsize
    whole = torch.from_numpy(np.zeros(size + _LINE, np.uint8))
    start = -whole.data_ptr() % _LINE
    return whole[start : start + size].view(dtype).view(tuple(shape))
