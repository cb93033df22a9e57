"""A layer of the decoder: attention or what is in its place, then a network or experts, each with its norms."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parlay.checkpoints.loader import TensorReader
from parlay.kernels.base import Kernels
from parlay.models.attention import Attention
from parlay.models.config import ModelConfig
from parlay.models.context import CacheLayer, ForwardContext, HybridCache
from parlay.models.latent import LatentAttention
from parlay.models.layer_inputs import LayerInput
from parlay.models.layer_parts import make_attention, make_experts, make_mlp, make_parallel_experts
from parlay.models.moe import MixtureOfExperts, ParallelExperts
from parlay.models.networks import Network
from parlay.models.rotary import RotaryTables
from parlay.models.style import Mixer
from parlay.models.tensor_shapes import norms_around
from parlay.parallel.group import Group


@dataclass(frozen=True, slots=True)
class HybridMixer:
    """Attention and a recurrent layer that read the same rows; their outputs are added.

    Attributes:
        attention, recurrent: the attention and the recurrent layer.
    """

    attention: Attention | LatentAttention
    recurrent: Mixer

    def __call__(self, x: Tensor, context: ForwardContext, cache: HybridCache) -> Tensor:
        """Return `[rows, hidden]` for normalised rows `[rows, hidden]`."""
        kernels, each = context.kernels, torch.arange(len(x))
        attended = context.buffers("attended", x.shape[1])
        kernels.embed(self.attention(x, context, cache.keys), each, attended)  # both write to one buffer
        out = self.recurrent(x, context, cache.states)
        kernels.add_embedding(out, attended, each.int())
        return out


class DecoderLayer:
    """A decoder layer with its weights."""

    def __init__(
        self,
        config: ModelConfig,
        index: int,
        read: TensorReader,
        kernels: Kernels,
        group: Group,
        tables: RotaryTables,
    ) -> None:
        """Read what layer `index` needs by its names within a layer."""
        style = config.style
        self._norm = norm_of(config)
        self._post_norm = norm_of(config, eps=style.post_norm_eps or config.rms_norm_eps)
        self._parallel = style.parallel
        self._residual_scale = style.residual_scale
        self._pre_norms, self._post_norms = (
            [read(f"{name}.weight") for name in names] for names in norms_around(config, index)
        )
        recurrent, networks = style.recurrent, style.networks
        self._mixer: Callable[[Tensor, ForwardContext, Any], Tensor] | None = None
        if networks and networks[index]:
            pass
        elif recurrent is not None and recurrent.layers[index]:
            self._mixer = made = recurrent.make(config.hidden_size, config.rms_norm_eps, read, kernels, group)
            if style.recurrent_parallel:
                attention = make_attention(config, index, read, kernels, group, tables)
                self._mixer = HybridMixer(attention, made)
        else:
            self._mixer = make_attention(config, index, read, kernels, group, tables)
        self._mlp: Network | MixtureOfExperts | None = None
        if networks and not networks[index]:
            pass
        elif style.experts and style.experts.sparse[index] and not style.experts.with_mlp:
            self._mlp = make_experts(config, style.experts, read, kernels, group, index)
        else:
            self._mlp = make_mlp(config, read, kernels, group, index)
        self._parallel_experts: ParallelExperts | None = None
        if style.experts and style.experts.with_mlp and style.experts.sparse[index]:
            self._parallel_experts = make_parallel_experts(config, style.experts, read, kernels, group)
        self._input = LayerInput.read(config, index, read, kernels) if style.layer_inputs else None
        self._scalar = float(read.exact("layer_scalar")) if style.layer_scalars else 1.0

    def __call__(self, residual: Tensor, delta: Tensor | None, context: ForwardContext, cache: CacheLayer) -> Tensor:
        """Add `delta`, the layer before's last output, to `residual` in place; return this layer's own."""
        x = self._begin(0, residual, delta, context)
        if self._mixer is None:
            assert self._mlp is not None
            return self._finish(0, self._mlp(x, context), context.kernels)
        mixed = self._finish(0, self._mixer(x, context, cache), context.kernels)
        if self._mlp is None:
            return mixed
        if self._parallel:
            both = self._finish(1, self._mlp(x, context), context.kernels)
            context.kernels.add_embedding(both, mixed, torch.arange(len(both), dtype=torch.int32))
            return both
        x = self._begin(1, residual, mixed, context)
        out = self._mlp(x, context)
        if self._parallel_experts is not None:
            out = self._parallel_experts(residual, out, context)
        out = self._finish(1, out, context.kernels)
        if self._input is not None:
            out = self._input(residual, out, context)
        if self._scalar != 1:
            context.kernels.scale(residual, self._scalar)
            context.kernels.scale(out, self._scalar)
        return out

    def _begin(self, part: int, residual: Tensor, delta: Tensor | None, context: ForwardContext) -> Tensor:
        """Add `delta` to `residual` in place; return what a part of the layer reads."""
        if not self._pre_norms:
            if delta is not None:
                each = torch.arange(len(residual), dtype=torch.int32)
                context.kernels.add_embedding(residual, delta, each)
            return residual
        x = context.buffers("normed", residual.shape[1])
        self._norm(context.kernels, residual, delta, self._pre_norms[part], x)
        return x

    def _finish(self, part: int, x: Tensor, kernels: Kernels) -> Tensor:
        """Do in place what a family does to x before it joins the residual stream."""
        if self._post_norms:
            self._post_norm(kernels, x, None, self._post_norms[part], x)
        if self._residual_scale != 1:
            kernels.scale(x, self._residual_scale)
        return x


Norm = Callable[[Kernels, Tensor, Tensor | None, Tensor, Tensor], None]


def norm_of(config: ModelConfig, *, eps: float | None = None, final: bool = False) -> Norm:
    """Return the norm of a model's states: it adds the third argument to the second, and writes to the last one.

    Args:
        config: the model's.
        eps: added to means, where it is not the config's.
        final: whether it is the last norm.
    """
    eps = config.rms_norm_eps if eps is None else eps
    plus_one = config.style.plus_one and (config.style.final_plus_one or not final)
    nothing = torch.zeros(config.hidden_size if config.style.layer_norms else 0)

    def rms(kernels: Kernels, x: Tensor, delta: Tensor | None, weight: Tensor, out: Tensor) -> None:
        kernels.rms_norm(x, weight, eps, out, plus_one, delta)

    def layer(kernels: Kernels, x: Tensor, delta: Tensor | None, weight: Tensor, out: Tensor) -> None:
        kernels.layer_norm(x, weight, nothing.to(weight.dtype), eps, out, delta)

    return layer if config.style.layer_norms else rms
