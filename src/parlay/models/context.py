"""A forward pass's input besides its tokens. It is passed as an argument, never global."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from parlay.kernels.base import AttentionView, Kernels


class LayerCache(NamedTuple):
    """Keys and values of one layer, each `[num_blocks, kv_heads, block_size, head_dim]`."""

    key: Tensor
    value: Tensor


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
            width: elements a row.
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
        cache: one entry a layer.
        buffers: memory for intermediate results.
        taps: after how many layers the residual stream is to be left in `tapped`, before any norm; ascending.
    """

    kernels: Kernels
    positions: Tensor
    slots: Tensor
    view: AttentionView
    cache: tuple[LayerCache, ...]
    buffers: Buffers
    taps: tuple[int, ...] = ()


def tapped(buffers: Buffers, taps: Sequence[int], width: int) -> Tensor:
    """Return where a pass leaves the residual stream after each of so many layers, `[taps, rows, width]`.

    It is one piece of memory, so that a step's states are kept with a single copy.
    """
    return buffers("taps", len(taps) * width).view(len(taps), -1, width)
