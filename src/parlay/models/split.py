"""A linear layer between two whole tensors, whose outputs several ranks share."""

import torch
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.kernels.linear import LinearWeight
from parlay.parallel.group import Group
from parlay.weights.weight import Weight


class SplitLinear:
    """A linear layer whose whole input every rank has, and whose outputs all ranks need.

    Each rank computes its share of the outputs, with the bits of one rank.
    """

    def __init__(self, kernels: Kernels, weight: Weight, group: Group, bias: Tensor | None = None) -> None:
        """Keep this rank's share of a weight `[out, in]` and of its bias `[out]`."""
        self._kernels, self._group = kernels, group
        self._bounds = group.output_bounds(weight.shape[0])
        begin, end = group.share(self._bounds)
        self._width = end - begin
        self._bias = None if bias is None else bias[begin:end].clone()
        self._weight: LinearWeight | None = None
        if self._width:
            self._weight = kernels.pack_linear(weight if group.size == 1 else weight.outputs(begin, end))

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Write `[rows, out]` for `x` of `[rows, in]`.

        Raises:
            RankError: another rank is lost.
        """
        alone = self._group.size == 1
        own = out if alone else torch.empty((len(x), self._width), dtype=out.dtype)
        if self._weight is not None:
            self._kernels.linear(x, self._weight, own)
            if self._bias is not None:
                self._kernels.add_bias(own, self._bias)
        if not alone:
            self._group.gather(own, out, self._bounds)
