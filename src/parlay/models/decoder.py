"""The decoder that most families share: Llama's, with what their `Style` changes.

Pre-norm residual layers of grouped-query attention with rotary positions and a gated feed-forward network or a
mixture of experts.
"""

from typing import ClassVar

import torch
from torch import Tensor

from parlay.checkpoints.loader import Checkpoint, TensorReader
from parlay.errors import ModelError
from parlay.kernels.base import Kernels
from parlay.models.config import ModelConfig
from parlay.models.context import ForwardContext, intermediate_states
from parlay.models.decoder_layer import DecoderLayer, norm_of
from parlay.models.layer_inputs import TokenInputs
from parlay.models.layers import Embedding, OutputLayer
from parlay.models.rotary import layer_tables
from parlay.models.stages import own_layers
from parlay.models.stored import open_weights
from parlay.models.tensor_shapes import mtp_prefixes, unread_keys, weight_shapes
from parlay.parallel.group import Group
from parlay.types.progress import OnRead, ignore
from parlay.weights.weight import Weight


class Decoder:
    """A decoder with its weights.

    Attributes:
        ignorable: endings of names that a family's checkpoints may hold without need.
        leftovers: names of tensors in the checkpoint that only a proposer may want.
    """

    # Frequencies that early exporters stored; they follow from the config.
    ignorable: ClassVar[tuple[str, ...]] = (".rotary_emb.inv_freq",)
    weight_shapes = staticmethod(weight_shapes)

    @classmethod
    def expect(cls, config: ModelConfig, weights: Checkpoint) -> tuple[str, ...]:
        """Compare a checkpoint with what its config says; return the leftovers.

        Raises:
            ModelError: they do not fit, or were written for another library in its own way.
        """
        recurrent = config.style.recurrent
        if weights.for_mlx and recurrent is not None and not recurrent.alike_in_mlx:
            raise ModelError(
                f"{config.path} was written for MLX, which stores such recurrent layers in its own way; take the "
                "original model, or a GGUF file of it"
            )
        head = ("lm_head.weight",) if config.tie_embeddings else ()
        unused = cls.ignorable + head + unread_keys(config)
        return weights.expect(weight_shapes(config), unused, mtp_prefixes(config))

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        max_model_len: int,
        kernels: Kernels,
        group: Group,
        on_read: OnRead = ignore,
        layers: int | None = None,
    ) -> None:
        """Read the weights as a `CausalModel`.

        With `layers` only so many are read: none for the embedding and the head alone, which proposers borrow.
        """
        self.config = config
        self.dtype = dtype
        style = config.style
        # A factor is applied to embeddings in the model's dtype.
        self._embedding_scale = float(torch.tensor(style.embedding_scale, dtype=dtype))
        self._embedding_norm = torch.ones(config.hidden_size, dtype=dtype) if style.embedding_norm else None
        tables = layer_tables(config, max_model_len)
        self._pipeline = group.pipeline
        self._first, end = own_layers(config, self.weight_shapes, group.pipeline)
        if layers is not None:
            end = min(end, layers)
        with open_weights(config, on_read=on_read) as weights:
            self.leftovers = self.expect(config, weights)
            self._norm = weights.read("model.norm.weight", dtype)
            self._layers = []
            for i in range(self._first, end):
                read = TensorReader(weights, dtype, f"model.layers.{i}.")
                self._layers.append(DecoderLayer(config, i, read, kernels, group, tables[i]))
            self._inputs = None
            if style.layer_inputs and self._layers:
                self._inputs = TokenInputs.read(config, weights, dtype, kernels, group, (self._first, end))
            if not group.pipeline.first:
                return  # the first stage has both ends
            embedding = weights.read_weight("model.embed_tokens.weight", dtype).outputs(0, config.tokens)
            self._embedding = Embedding(kernels, embedding, group)
            head: Weight | Embedding = self._embedding if group.size == 1 else embedding
            if not config.tie_embeddings:
                head = weights.read_weight("lm_head.weight", dtype).outputs(0, config.tokens)
            self._head = OutputLayer(kernels, head, style.logit_divisor, style.logit_cap, group)

    def forward(self, tokens: Tensor, context: ForwardContext) -> Tensor:
        """Run rows through the layers, storing their keys and values; a stage continues from what the last one sent.

        Args:
            tokens: `[rows]` int64.
            context: where the rows stand and what they see.

        Returns:
            Hidden states after the final norm, `[rows, hidden]`, in one of the context's buffers.
        """
        kernels, width, taps = context.kernels, self.config.hidden_size, context.taps
        further = 0 if self._pipeline.stages == 1 else self.config.extra_intermediates
        results = intermediate_states(context.buffers, taps, further, width)
        residual, out, states = results[0], results[1], dict(zip(taps, results[2:], strict=False))
        delta: Tensor | None = None
        if self._pipeline.first:
            self._embedding(tokens, residual)
            if self._embedding_norm is not None:
                kernels.rms_norm(residual, self._embedding_norm, self.config.rms_norm_eps, residual)
            if self._embedding_scale != 1:
                kernels.scale(residual, self._embedding_scale)
            if further:
                _add(residual, None, results[-1], kernels)
        else:
            delta = out
        if self._inputs is not None:
            self._inputs(tokens, results[-1] if further else residual, context)
        for depth, (layer, cache) in enumerate(zip(self._layers, context.cache, strict=True), self._first):
            if depth in states:
                _add(residual, delta, states[depth], kernels)
            delta = layer(residual, delta, context, cache)
        assert delta is not None
        if not self._pipeline.last:
            _add(delta, None, out, kernels)
            return out
        norm_of(self.config, final=True)(kernels, residual, delta, self._norm, out)
        if self.config.num_layers in states:
            _add(residual, None, states[self.config.num_layers], kernels)
        return out

    @property
    def embedding(self) -> Embedding:
        """The embedding, for callers that look tokens up as the model does."""
        return self._embedding

    @property
    def head(self) -> OutputLayer:
        """The output layer."""
        return self._head

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Return float32 logits `[rows, vocab]` of hidden states `[rows, hidden]`; in `out`, if it is given."""
        return self._head(hidden, out)


def _add(x: Tensor, y: Tensor | None, out: Tensor, kernels: Kernels) -> None:
    """Write x, or x + y, to `out`; all are `[rows, width]`."""
    each = torch.arange(x.shape[0])
    kernels.embed(x, each, out)
    if y is not None:
        kernels.add_embedding(out, y, each.int())
