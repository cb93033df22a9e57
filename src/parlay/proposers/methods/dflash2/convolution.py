"""Short convolutions along a block, whose coefficients depend on its rows.

`out[p] = sum over taps of (base[tap] + own[p, tap]) * x[p - tap]`, within the block alone; neighbouring columns share
a row's own coefficients. The rows that a part of a layer reads are convolved, and so is what it makes of them, with
coefficients of the same rows.

Source: `speculators`, `models/dflash2/model_definitions.py`.
"""

import torch
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.models.layers import Linear
from parlay.weights.weight import Weight


class Convolution:
    """The two convolutions around a part of a layer."""

    def __init__(self, kernels: Kernels, base: Tensor, projection: Weight, block: int) -> None:
        """Take the weights.

        Args:
            kernels: the operations to run with.
            base: `[2, taps, hidden]`.
            projection: `[2 * taps * groups, hidden]`, makes the rows' own coefficients.
            block: rows of a block.
        """
        self._base, self._block = base, block
        self._project, self._outputs = Linear(kernels, projection), projection.shape[0]

    def before(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows `[rows, hidden]` convolved, and the coefficients `[rows, taps, groups]` of what follows."""
        own = x.new_empty((len(x), self._outputs))
        self._project(x, own)
        coefficients = own.view(len(x), 2, self._base.shape[1], -1)
        return self._convolve(x, coefficients[:, 0], self._base[0]), coefficients[:, 1]

    def after(self, out: Tensor, needed: Tensor | None) -> Tensor:
        """Return what a part made of the rows, `[rows, hidden]`, convolved."""
        assert needed is not None
        return self._convolve(out, needed, self._base[1])

    def _convolve(self, x: Tensor, own: Tensor, base: Tensor) -> Tensor:
        blocks = x.view(-1, self._block, own.shape[2], x.shape[1] // own.shape[2])
        weights = (base.view(len(base), own.shape[2], -1) + own[..., None]).view(
            *blocks.shape[:2], *base.shape[:1], *blocks.shape[2:]
        )
        out = torch.zeros_like(blocks)
        for tap in range(min(len(base), self._block)):
            out[:, tap:] += weights[:, tap:, tap] * blocks[:, : self._block - tap]
        return out.view(x.shape)
