"""Quantising plain matrices when they are read."""

import torch
from torch import Tensor

from parlay.weights.kinds import BY_NAME
from parlay.weights.weight import Part, Weight

INT8 = BY_NAME["Q8_0"]
_LARGEST = 127
_SLAB = 1 << 22  # numbers that are quantised at once


def fits_int8(shape: tuple[int, ...]) -> bool:
    """Whether a matrix of this shape can be stored in blocks of eight bits."""
    return len(shape) == 2 and shape[1] % INT8.block == 0


def to_int8(numbers: Tensor) -> Weight:
    """Return a matrix in eight bits, every 32 inputs with a scale (`Q8_0`).

    Every operation is exact or rounded by itself, so that all machines make the same of a checkpoint.

    Args:
        numbers: finite, `[outputs, inputs]`, of a shape that `fits_int8`.
    """
    outputs, inputs = numbers.shape
    data = torch.empty((outputs, inputs // INT8.block, INT8.size), dtype=torch.uint8)
    rows = max(1, _SLAB // inputs)
    for some, to in zip(torch.split(numbers, rows), torch.split(data, rows), strict=True):
        blocks = some.float().view(len(some), -1, INT8.block)
        scales = (blocks.abs().amax(dim=2, keepdim=True) / _LARGEST).half()
        levels = (blocks / scales.float()).round().nan_to_num(0, 0, 0).clamp(-_LARGEST, _LARGEST).to(torch.int8)
        to[:, :, :2] = scales.view(torch.uint8)
        to[:, :, 2:] = levels.view(torch.uint8)
    return Weight((Part(INT8, data.view(outputs, -1)),))
