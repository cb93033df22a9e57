"""Llama 1, 2 and 3.x (Touvron et al. 2023, arXiv 2302.13971; Dubey et al. 2024, arXiv 2407.21783).

Pre-norm decoder, grouped-query attention, rotary positions, SiLU-gated MLP, optionally tied head.
"""

import torch
from torch import Tensor

from parlay.dist.group import Group
from parlay.kernels.base import Kernels
from parlay.models.config import ModelConfig
from parlay.models.context import ForwardContext, LayerCache
from parlay.models.layers import Attention, ColumnParallelLinear, GatedMLP, Head, RowParallelLinear
from parlay.models.loader import Checkpoint
from parlay.models.rotary import cos_sin_table

# Frequencies that early exporters stored; they follow from the config.
IGNORABLE = (".rotary_emb.inv_freq",)


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor that a Llama of this shape reads."""
    h, inner = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, h),
        "model.norm.weight": (h,),
    }
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, h)
    for i in range(config.num_layers):
        layer = f"model.layers.{i}."
        shapes |= {
            f"{layer}input_layernorm.weight": (h,),
            f"{layer}self_attn.q_proj.weight": (q, h),
            f"{layer}self_attn.k_proj.weight": (kv, h),
            f"{layer}self_attn.v_proj.weight": (kv, h),
            f"{layer}self_attn.o_proj.weight": (h, q),
            f"{layer}post_attention_layernorm.weight": (h,),
            f"{layer}mlp.gate_proj.weight": (inner, h),
            f"{layer}mlp.up_proj.weight": (inner, h),
            f"{layer}mlp.down_proj.weight": (h, inner),
        }
    return shapes


class _Layer:
    def __init__(
        self,
        config: ModelConfig,
        index: int,
        weights: Checkpoint,
        kernels: Kernels,
        dtype: torch.dtype,
        group: Group,
        cos_sin: Tensor,
    ) -> None:
        def read(name: str) -> Tensor:
            return weights.read(f"model.layers.{index}.{name}.weight", dtype)

        self._eps = config.rms_norm_eps
        self.input_norm = read("input_layernorm")
        self.mlp_norm = read("post_attention_layernorm")
        self.attention = Attention(
            ColumnParallelLinear(kernels, [read(f"self_attn.{x}_proj") for x in "qkv"], group),
            RowParallelLinear(kernels, read("self_attn.o_proj"), group),
            config.num_heads // group.size,
            config.head_dim,
            cos_sin,
        )
        self.mlp = GatedMLP(
            ColumnParallelLinear(kernels, [read("mlp.gate_proj"), read("mlp.up_proj")], group),
            RowParallelLinear(kernels, read("mlp.down_proj"), group),
        )

    def __call__(self, residual: Tensor, delta: Tensor | None, context: ForwardContext, cache: LayerCache) -> Tensor:
        """Add `delta`, the layer before's last output, to `residual` in place; return this layer's own."""
        kernels = context.kernels
        x = context.buffers("normed", residual.shape[1])
        if delta is None:
            kernels.rms_norm(residual, self.input_norm, self._eps, x)
        else:
            kernels.add_rms_norm(residual, delta, self.input_norm, self._eps, x)
        mixed = self.attention(x, context, cache)
        kernels.add_rms_norm(residual, mixed, self.mlp_norm, self._eps, x)
        return self.mlp(x, context)


class Model:
    """A Llama with its weights."""

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, max_model_len: int, kernels: Kernels, group: Group
    ) -> None:
        """Read the weights.

        Args:
            config: the model's shape.
            dtype: of weights and activations.
            max_model_len: rotary tables are made for this many positions.
            kernels: the operations to run with.
            group: the ranks that share each layer.

        Raises:
            ModelError: the weights do not fit the config.
        """
        self.config = config
        self.dtype = dtype
        cos_sin = cos_sin_table(config, max_model_len)
        with Checkpoint(config.path) as weights:
            weights.expect(weight_shapes(config), IGNORABLE + (("lm_head.weight",) if config.tie_embeddings else ()))
            self._embedding = weights.read("model.embed_tokens.weight", dtype)
            self._norm = weights.read("model.norm.weight", dtype)
            self._layers = [
                _Layer(config, i, weights, kernels, dtype, group, cos_sin) for i in range(config.num_layers)
            ]
            head = self._embedding if config.tie_embeddings else weights.read("lm_head.weight", dtype)
            self._head = Head(kernels, head)

    def forward(self, tokens: Tensor, context: ForwardContext) -> Tensor:
        """Run rows through the layers, storing their keys and values.

        Args:
            tokens: `[rows]` int64.
            context: where the rows stand and what they see.

        Returns:
            Hidden states after the final norm, `[rows, hidden]`, in one of the context's buffers.
        """
        width = self.config.hidden_size
        residual = context.buffers("residual", width)
        context.kernels.embed(self._embedding, tokens, residual)
        delta: Tensor | None = None
        for layer, cache in zip(self._layers, context.cache, strict=True):
            delta = layer(residual, delta, context, cache)
        assert delta is not None
        hidden = context.buffers("hidden", width)
        context.kernels.add_rms_norm(residual, delta, self._norm, self.config.rms_norm_eps, hidden)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits `[rows, vocab]` of hidden states `[rows, hidden]`."""
        return self._head(hidden)
