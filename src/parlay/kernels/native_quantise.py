"""Quantising plain matrices, natively; `weights.quantise` has the slow twins."""

import torch
from torch import Tensor

from parlay.weights.kinds import Kind
from parlay.weights.quantise import INT8, to_int4, to_int8
from parlay.weights.weight import Part, Weight


def quantise(numbers: Tensor, kind: Kind) -> Weight:
    """Return a matrix in blocks.

    Args:
        numbers: finite numbers `[outputs, inputs]`, of a shape that `weights.quantise.fits`.
        kind: `INT8` or `INT4`.
    """
    try:
        from parlay.kernels import _native
    except ImportError:  # it was not built
        return to_int8(numbers) if kind is INT8 else to_int4(numbers)
    (plain,) = Weight.of(numbers.contiguous()).parts
    outputs, blocks = len(plain.data), plain.inputs // kind.block
    data = torch.empty((outputs, blocks * kind.size), dtype=torch.uint8)
    _native.quantise(plain.data, data, kind.number)
    return Weight((Part(kind, data),))
