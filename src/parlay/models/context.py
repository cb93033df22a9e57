"""A forward pass's input besides its tokens. It is passed as an argument, never global."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from parlay.kernels.base import AttentionMetadata, Kernels, StateMetadata


class LayerCache(NamedTuple):
    """Keys and values of one layer, each `[num_blocks, kv_heads, block_size, columns]`."""

    key: Tensor
    value: Tensor


class StateCache(NamedTuple):
    """States of one recurrent layer, see `Kernels.causal_conv` and `Kernels.gated_delta`.

    Attributes:
        tails: rows before a sequence's next one, `[slots, taps - 1, channels]`.
        kept_rows: rows of draft nodes, `[places, channels]`.
        stored: float32 states, `[slots, ...]`; empty where there are none.
        kept: what the convolution made of `kept_rows`, `[places, channels]`; empty where there are no states.
        kept_gates: gates beside it, `[places, gates]`.
    """

    tails: Tensor
    kept_rows: Tensor
    stored: Tensor
    kept: Tensor
    kept_gates: Tensor


class HybridCache(NamedTuple):
    """Cache of a layer that has attention and a recurrent layer beside it."""

    keys: LayerCache
    states: StateCache


CacheLayer = LayerCache | StateCache | HybridCache
CacheLayers = tuple[CacheLayer, ...]


def keys_of(cache: CacheLayer) -> LayerCache | None:
    """Return the keys and values of a layer, if it has any."""
    cache = cache.keys if isinstance(cache, HybridCache) else cache
    return cache if isinstance(cache, LayerCache) else None


class Buffers:
    """Memory for what a forward pass computes on its way, one tensor for each role and width.

    Layers run one after another and share it: the content of a role is valid until the next layer asks for the
    the same role.
    """

    def __init__(self, rows: int, dtype: torch.dtype, within: "Buffers | None" = None) -> None:
        """Make buffers for so many rows; with `within`, in the first rows of those, whose content they share."""
        self._rows = rows
        self._dtype = dtype
        self._within = within
        self._tensors: dict[tuple[str, int], Tensor] = {}

    def __call__(self, role: str, width: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return the tensor `[rows, width]` of a role; its content is arbitrary.

        Args:
            role: what it is for; a role has one dtype.
            width: elements per row.
            dtype: the model's, unless given.
        """
        tensor = self._tensors.get((role, width))
        if tensor is None:
            if self._within is None:
                tensor = torch.empty((self._rows, width), dtype=dtype or self._dtype)
            else:
                tensor = self._within(role, width, dtype)[: self._rows]
            self._tensors[role, width] = tensor
        return tensor


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """Positions and slots of a batch's rows, and what they see.

    Attributes:
        kernels: the operations to run with.
        positions: `[T]` int32, rotary position of each row.
        slots: `[T]` int64, cache slot that each row's key and value go to; nowhere if negative.
        view: which keys each row sees.
        cache: one entry per layer.
        states: what the rows of recurrent layers go on from; None where there are none.
        buffers: memory for intermediate results.
        taps: after how many layers the residual stream is left in `intermediate_states`, before any norm; ascending.
    """

    kernels: Kernels
    positions: Tensor
    slots: Tensor
    view: AttentionMetadata
    cache: CacheLayers
    buffers: Buffers
    taps: tuple[int, ...] = ()
    states: StateMetadata | None = None

    def keys(self, index: int) -> LayerCache:
        """Return the keys and values of a layer that is attention."""
        cache = keys_of(self.cache[index])
        assert cache is not None
        return cache


def intermediate_states(buffers: Buffers, taps: Sequence[int], further: int, width: int) -> Tensor:
    """Return where a pass leaves its results, and stages what they hand on: `[2 + taps + further, rows, width]`.

    The first is the residual stream, the second the output of the last layer, to which it is yet to be added; after
    the model's last layer it is the hidden state instead. Then comes the residual stream after so many layers, and at
    the end what else later stages need. It is one piece of memory, so that states are kept, or sent, with a single
    copy.
    """
    count = 2 + len(taps) + further
    return buffers("intermediates", count * width).view(count, -1, width)
