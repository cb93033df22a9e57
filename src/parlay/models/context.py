"""What a forward pass is told besides its tokens. It is passed, never global."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from parlay.kernels.base import AttentionView, Kernels


class LayerCache(NamedTuple):
    """Keys and values of one layer, each `[num_blocks, kv_heads, block_size, head_dim]`."""

    key: Tensor
    value: Tensor


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """Where the rows of a batch stand and what they see.

    Attributes:
        kernels: the operations to run with.
        positions: `[T]` int32, rotary position of each row.
        slots: `[T]` int64, cache slot that each row's key and value go to.
        view: which keys each row sees.
        cache: one entry a layer.
    """

    kernels: Kernels
    positions: Tensor
    slots: Tensor
    view: AttentionView
    cache: tuple[LayerCache, ...]
