"""The MTP layer with its weights, as it drafts and as it is trained."""

import torch
from torch import Tensor

from parlay.checkpoints.loader import TensorReader
from parlay.checkpoints.readable import Readable
from parlay.kernels.base import Kernels
from parlay.models.context import ForwardContext
from parlay.models.decoder_layer import DecoderLayer, norm_of
from parlay.models.layers import SplitLinear
from parlay.models.mtp import MTPLayer
from parlay.models.rotary import RotaryTables
from parlay.parallel.group import ALONE, Group
from parlay.proposers.head_layers import side_by_side


class MTPDraftLayer:
    """It predicts a token's state from its embedding and the state before it."""

    def __init__(
        self,
        layer: MTPLayer,
        weights: Readable,
        dtype: torch.dtype,
        tables: RotaryTables,
        kernels: Kernels,
        group: Group = ALONE,
        place: int = 0,
    ) -> None:
        """Read the weights.

        Args:
            layer: config and tensor names of the layer.
            weights: source of its tensors.
            dtype: dtype of plain numbers.
            tables: rotary tables of its queries and keys.
            kernels: the operations to run with.
            group: the ranks that share it.
            place: index of its keys and values among the cache layers.
        """
        names, self._place = layer.names, place
        self._token_at, self._state_at = (1, 0) if names.state_first else (0, 1)
        self._norm, self._late = norm_of(layer.config), names.late_norm
        self._join = SplitLinear(kernels, weights.read_weight(names.join, dtype), group)
        self._token_norm, self._state_norm, self._last_norm = (
            weights.read(name, dtype) for name in (names.token_norm, names.state_norm, names.norm)
        )
        self._body = DecoderLayer(layer.config, 0, TensorReader(weights, dtype, names.layer), kernels, group, tables)

    def __call__(self, pair: Tensor, state: Tensor, context: ForwardContext) -> None:
        """Replace states by those of the tokens after them.

        Args:
            pair: memory `[2, rows, hidden]`, whose first half has the tokens' embeddings.
            state: states `[rows, hidden]`, replaced.
            context: positions of the rows and the keys that they see.
        """
        kernels, width = context.kernels, state.shape[1]
        self._norm(kernels, pair[0], None, self._token_norm, pair[self._token_at])
        self._norm(kernels, state, None, self._state_norm, pair[self._state_at])
        joined = context.buffers("joined", 2 * width)
        side_by_side(pair, kernels, joined)
        residual = context.buffers("residual", width)
        self._join(joined, residual)
        delta = self._body(residual, None, context, context.cache[self._place])
        if self._late:
            each = torch.arange(len(state))
            kernels.embed(residual, each, state)
            kernels.add_embedding(state, delta, each.int())
        else:
            self._norm(kernels, residual, delta, self._last_norm, state)

    def normalise(self, kernels: Kernels, state: Tensor, out: Tensor) -> None:
        """Write to `out` what an output layer reads of states that are not normed yet; both are `[rows, hidden]`."""
        self._norm(kernels, state, None, self._last_norm, out)
