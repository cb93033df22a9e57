"""The decoder layers of an EAGLE-type head."""

from collections.abc import Sequence

import torch
from torch import Tensor

from parlay.checkpoints.loader import TensorReader
from parlay.kernels.base import Kernels
from parlay.models.config import ModelConfig
from parlay.models.context import ForwardContext
from parlay.models.decoder_layer import DecoderLayer
from parlay.models.layer_parts import make_attention, make_mlp
from parlay.models.rotary import cos_sin_table
from parlay.parallel.group import ALONE, Group


class HeadLayers:
    """The layers of a head: the first without the norm before its attention, the others ordinary ones."""

    def __init__(
        self, config: ModelConfig, length: int, read: Sequence[TensorReader], kernels: Kernels, group: Group = ALONE
    ) -> None:
        """Read the weights.

        Args:
            config: config of the head's layers, with their style.
            length: length of the longest sequence.
            read: reader of each layer's tensors, by their names in it.
            kernels: the operations to run with.
            group: the ranks that share the layers.
        """
        # The head has its rotary embedding, which is never the target's.
        tables = cos_sin_table(config, length), None
        first = read[0]
        self._eps = config.rms_norm_eps
        self._attention = make_attention(config, 0, first, kernels, group, tables)
        self._norm = first("post_attention_layernorm.weight")
        self._mlp = make_mlp(config, first, kernels, group)
        self._others = [DecoderLayer(config, i, read[i], kernels, group, tables) for i in range(1, config.num_layers)]

    def __call__(self, x: Tensor, state: Tensor, context: ForwardContext) -> None:
        """Run the layers on attention's input `x`, and add their output to `state` `[rows, d]`."""
        kernels = context.kernels
        normed = context.buffers("normed", state.shape[1])
        mixed = self._attention(x, context, context.keys(0))
        kernels.rms_norm(state, self._norm, self._eps, normed, delta=mixed)
        delta = self._mlp(normed, context)
        for layer, cache in zip(self._others, context.cache[1:], strict=True):
            delta = layer(state, delta, context, cache)
        kernels.add_embedding(state, delta, torch.arange(state.shape[0], dtype=torch.int32))


def side_by_side(parts: Tensor, kernels: Kernels, out: Tensor) -> None:
    """Write the rows of several tensors beside each other.

    Args:
        parts: the tensors, `[n, rows, d]`.
        kernels: operations that look rows up.
        out: the result, `[rows, n d]`.
    """
    n, rows, width = parts.shape
    order = torch.arange(n * rows).view(n, rows).T.reshape(-1)
    kernels.embed(parts.view(n * rows, width), order, out.view(rows * n, width))
