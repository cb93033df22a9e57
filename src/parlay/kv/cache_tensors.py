"""The tensors of the blocks, and of the slots of states."""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import numpy as np
import torch
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.models.context import CacheLayer, CacheLayers, HybridCache, LayerCache, StateCache
from parlay.types.cache import NO_CAPACITY, CacheKind, CacheSpec, RecurrentSpec, StateCapacity

_LINE = 64  # bytes: a cache line, in which rows begin


def allocate(
    spec: CacheSpec,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    room: StateCapacity = NO_CAPACITY,
    kernels: Kernels | None = None,
) -> CacheLayers:
    """Return zeroed caches for every layer of a group, all on the same block ids and slots.

    Args:
        spec: what the group keeps.
        num_blocks: number of blocks of each layer.
        block_size: tokens per block.
        dtype: dtype of activations, and of keys and values unless the spec has another.
        room: capacity for states of recurrent layers.
        kernels: operations that are to read them; None for those of this machine's processor.
    """
    zeros = _zeros_for(kernels)

    def rows(blocks: int, heads: int, width: int) -> Tensor:
        if spec.dtype == "int8":
            return zeros((blocks, heads, block_size, spec.row_bytes(width)), torch.uint8)
        return zeros((blocks, heads, block_size, width), dtype)

    def layer(kept: CacheKind) -> CacheLayer:
        states = None
        if kept in ("states", "both"):
            assert spec.recurrent is not None
            states = allocate_states(spec.recurrent, room, dtype, kernels)
        if kept == "states" and states is not None:
            return states
        sizes = num_blocks if kept != "nothing" else 0, spec.kv_heads, spec.head_dim
        keys = rows(*sizes)
        own = LayerCache(keys, rows(*sizes) if spec.values else keys)
        return own if states is None else HybridCache(own, states)

    if spec.heads:
        made: list[CacheLayer] = []
        for (count, *widths), source in zip(spec.heads, spec.sources, strict=True):
            keys, values = (rows(num_blocks, count, width) for width in widths)
            made.append(made[source] if source >= 0 else LayerCache(keys, values))
        return tuple(made)
    return tuple(map(layer, spec.pattern)) if spec.pattern else tuple(layer("keys") for _ in range(spec.layers))


def allocate_states(
    spec: RecurrentSpec, room: StateCapacity, dtype: torch.dtype, kernels: Kernels | None = None
) -> StateCache:
    """Return zeroed states of one layer, as `allocate` does."""
    zeros = _zeros_for(kernels)
    scans = bool(spec.state)
    return StateCache(
        tails=zeros((room.slots, spec.taps - 1, spec.channels), dtype),
        kept_rows=zeros((room.places, spec.channels), dtype),
        stored=zeros((room.slots if scans else 0, *spec.state), torch.float32),
        kept=zeros((room.places if scans else 0, spec.channels), dtype),
        kept_gates=zeros((room.places if scans else 0, spec.gates), dtype),
    )


def _zeros_for(kernels: Kernels | None) -> Callable[[Sequence[int], torch.dtype], Tensor]:
    return _host_zeros if kernels is None or kernels.host is kernels else partial(_device_zeros, kernels)


def _device_zeros(kernels: Kernels, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    with kernels.device_context():
        return torch.zeros(tuple(shape), dtype=dtype)


def _host_zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return zeros whose pages the system provides when they are first written.

    `torch.zeros` writes all of them at once, which takes a second for a few GB and uses memory that may never be
    needed.
    """
    size = prod(shape) * dtype.itemsize
    whole = torch.from_numpy(np.zeros(size + _LINE, np.uint8))
    start = -whole.data_ptr() % _LINE
    return whole[start : start + size].view(dtype).view(tuple(shape))
