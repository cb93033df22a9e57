"""OPT (Zhang et al. 2022, arXiv 2205.01068).

Pre-norm decoder with learned positions, layer norms, biases everywhere and a ReLU network without a gate. The 350m
model, which normalises after instead of before, is not supported.
"""

from dataclasses import replace

import torch
from torch import Tensor

from parlay.checkpoints.loader import Checkpoint, TensorReader
from parlay.kernels.base import Kernels
from parlay.models.attention import Attention
from parlay.models.config import ModelConfig
from parlay.models.context import ForwardContext, LayerCache
from parlay.models.layers import (
    ColumnParallelLinear,
    Embedding,
    GatheredLinear,
    OutputLayer,
    ReducedLinear,
    whole_linear,
)
from parlay.models.stored import open_weights
from parlay.models.style import Style
from parlay.parallel.group import Group
from parlay.types.progress import OnRead, ignore
from parlay.weights.weight import Weight

_EPS = 1e-5  # torch's default, which OPT was trained with
_OFFSET = 2  # rows of the position table that stand before position 0
_NORMS = ("self_attn_layer_norm", "final_layer_norm")


def describe(config: ModelConfig) -> ModelConfig:
    config.only(
        activation_function="relu",
        do_layer_norm_before=True,
        enable_bias=True,
        layer_norm_elementwise_affine=True,
        _remove_final_layer_norm=False,
        word_embed_proj_dim=config.hidden_size,
    )
    style = Style(activation="relu", gated=False, qkv_bias=True, output_bias=True, mlp_bias=True)
    return replace(
        config,
        style=style,
        num_kv_heads=config.num_heads,
        head_dim=config.hidden_size // config.num_heads,
        tie_embeddings=config.flag("tie_word_embeddings", True),
    )


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor that an OPT of this shape reads."""
    h, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.decoder.embed_tokens.weight": (config.vocab_size, h),
        "model.decoder.embed_positions.weight": (config.max_position + _OFFSET, h),
    }
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, h)
    norms = ["model.decoder.final_layer_norm"]
    for i in range(config.num_layers):
        layer = f"model.decoder.layers.{i}."
        norms += [layer + name for name in _NORMS]
        linears = {f"self_attn.{x}": (h, h) for x in ("q_proj", "k_proj", "v_proj", "out_proj")}
        for name, shape in {**linears, "fc1": (inner, h), "fc2": (h, inner)}.items():
            shapes |= {f"{layer}{name}.weight": shape, f"{layer}{name}.bias": shape[:1]}
    return shapes | {f"{name}.{kind}": (h,) for name in norms for kind in ("weight", "bias")}


class _OptLayer:
    def __init__(
        self, config: ModelConfig, index: int, weights: Checkpoint, kernels: Kernels, dtype: torch.dtype, group: Group
    ) -> None:
        read = TensorReader(weights, dtype, f"model.decoder.layers.{index}.")

        def gathered(name: str, inputs: tuple[int, ...]) -> GatheredLinear | ReducedLinear:
            return whole_linear(kernels, read.weight(f"{name}.weight"), group, inputs, read(f"{name}.bias"))

        def column_parallel(*names: str, unit: int | None = None) -> ColumnParallelLinear:
            biases, units = [read(f"{name}.bias") for name in names], None if unit is None else [unit] * len(names)
            weights = [read.weight(f"{name}.weight") for name in names]
            return ColumnParallelLinear(kernels, weights, group, biases, units)

        self._attention_norm, self._mlp_norm = ((read(f"{name}.weight"), read(f"{name}.bias")) for name in _NORMS)
        queries = group.bounds(config.hidden_size, config.head_dim)
        begin, end = group.share(queries)
        self._attention = Attention(
            qkv=column_parallel(*(f"self_attn.{x}_proj" for x in "qkv"), unit=config.head_dim),
            output=gathered("self_attn.out_proj", queries),
            heads=(end - begin) // config.head_dim,
            head_dim=config.head_dim,
            value_dim=config.head_dim,
            cos_sin=torch.zeros(1, 0),  # no column turns
            scale=config.head_dim**-0.5,
        )
        self._up = column_parallel("fc1")
        self._down = gathered("fc2", group.output_bounds(config.intermediate_size))

    def __call__(self, residual: Tensor, delta: Tensor | None, context: ForwardContext, cache: LayerCache) -> Tensor:
        """Add `delta`, the layer before's last output, to `residual` in place; return this layer's own."""
        kernels, buffers = context.kernels, context.buffers
        x = buffers("normed", residual.shape[1])
        kernels.layer_norm(residual, *self._attention_norm, _EPS, x, delta)
        mixed = self._attention(x, context, cache)
        kernels.layer_norm(residual, *self._mlp_norm, _EPS, x, mixed)
        inner = self._up(x, buffers, "up")
        if inner.shape[1]:
            kernels.activate(inner, "relu")
        return self._down(inner, buffers, "mlp")


class Model:
    """An OPT with its weights."""

    leftovers: tuple[str, ...] = ()
    weight_shapes = staticmethod(weight_shapes)

    @classmethod
    def expect(cls, config: ModelConfig, weights: Checkpoint) -> tuple[str, ...]:
        """Compare a checkpoint with what its config says; nothing is left over.

        Raises:
            ModelError: they do not fit.
        """
        return weights.expect(weight_shapes(config), ("lm_head.weight",) if config.tie_embeddings else ())

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
        """Read the weights as a `CausalModel`, with `layers` only so many."""
        self.config = config
        self.dtype = dtype
        with open_weights(config, on_read=on_read) as weights:
            self.expect(config, weights)
            embedding = weights.read_weight("model.decoder.embed_tokens.weight", dtype).outputs(0, config.tokens)
            self._embedding = Embedding(kernels, embedding, group)
            self._positions = weights.read("model.decoder.embed_positions.weight", dtype)[_OFFSET:].contiguous()
            norm = "model.decoder.final_layer_norm"
            self._norm = weights.read(f"{norm}.weight", dtype), weights.read(f"{norm}.bias", dtype)
            count = config.num_layers if layers is None else layers
            self._layers = [_OptLayer(config, i, weights, kernels, dtype, group) for i in range(count)]
            head: Weight | Embedding = self._embedding if group.size == 1 else embedding
            if not config.tie_embeddings:
                head = weights.read_weight("lm_head.weight", dtype).outputs(0, config.tokens)
            self._head = OutputLayer(kernels, head, group=group)

    def forward(self, tokens: Tensor, context: ForwardContext) -> Tensor:
        """Run rows through the layers, storing their keys and values.

        Args:
            tokens: `[rows]` int64.
            context: where the rows stand and what they see.

        Returns:
            Hidden states after the final norm, `[rows, hidden]`, in one of the context's buffers.
        """
        kernels, width = context.kernels, self.config.hidden_size
        residual = context.buffers("residual", width)
        self._embedding(tokens, residual)
        kernels.add_embedding(residual, self._positions, context.positions)
        delta: Tensor | None = None
        for index, layer in enumerate(self._layers):
            delta = layer(residual, delta, context, context.keys(index))
        assert delta is not None
        hidden = context.buffers("hidden", width)
        kernels.layer_norm(residual, *self._norm, _EPS, hidden, delta)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits `[rows, vocab]` of hidden states `[rows, hidden]`."""
        return self._head(hidden)
