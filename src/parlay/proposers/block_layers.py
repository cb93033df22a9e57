"""The decoder layers of a block drafter: rows of a block see contexts, which are made of the target's states."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from parlay.checkpoints.loader import TensorReader
from parlay.kernels.base import Kernels
from parlay.models.config import ModelConfig
from parlay.models.context import ForwardContext, LayerCache
from parlay.models.layer_parts import make_mlp, projections
from parlay.models.layers import ColumnParallelLinear, GatheredLinear, ReducedLinear, whole_linear
from parlay.models.rotary import halves
from parlay.models.tensor_shapes import norm_names
from parlay.parallel.group import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockAttention:
    """Grouped-query attention of which keys and values are projected apart from queries.

    Attributes:
        query, keys: projections to queries, and to keys and values.
        output: projection back to the hidden size.
        heads: number of query heads on this rank; there may be none.
        head_dim: columns of a head.
        cos_sin: `[max_len, R]`, see `Kernels.rotary_store`.
        query_norm, key_norm: weights of a norm of each head, `[head_dim]`; None for none.
        value_norm: weight of a norm of values, `[head_dim]`; None for none.
        eps: epsilon of these norms.
        scale: factor on scores.
        value_scale: factor on what is read of values.
        sinks: float32 `[heads]`, see `Kernels.attention`.
    """

    query: ColumnParallelLinear
    keys: ColumnParallelLinear
    output: GatheredLinear | ReducedLinear
    heads: int
    head_dim: int
    cos_sin: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    value_norm: Tensor | None
    eps: float
    scale: float
    value_scale: float
    sinks: Tensor | None

    @classmethod
    def read(
        cls, config: ModelConfig, read: TensorReader, kernels: Kernels, group: Group, cos_sin: Tensor, scale: float
    ) -> "BlockAttention":
        """Read the weights of a layer; `scale` is that of values."""
        style, own = config.style, config.heads_of(0)  # all layers' are alike
        width = own.width
        weights, biases, _ = projections(config, 0, read)
        shared = config.num_heads // own.count * width
        queries = group.bounds(config.num_heads * width, shared)
        begin, end = group.share(queries)
        bias = read("self_attn.o_proj.bias") if style.output_bias else None
        parts = None if biases is None else (biases[:1], biases[1:])
        return cls(
            query=ColumnParallelLinear(kernels, weights[:1], group, parts and parts[0], [shared]),
            keys=ColumnParallelLinear(kernels, weights[1:], group, parts and parts[1], [width, width]),
            output=whole_linear(kernels, read.weight("self_attn.o_proj.weight"), group, queries, bias),
            heads=(end - begin) // width,
            head_dim=width,
            cos_sin=cos_sin,
            query_norm=_norm("q", config, read),
            key_norm=_norm("k", config, read),
            value_norm=torch.ones(width, dtype=read.dtype) if style.value_norms else None,
            eps=config.rms_norm_eps,
            scale=width**-0.5 if style.score_scale is None else style.score_scale,
            value_scale=scale,
            sinks=read.exact("self_attn.sinks")[begin // width : end // width] if style.sinks[0] else None,
        )

    def store_kv(self, x: Tensor, context: ForwardContext, cache: LayerCache) -> None:
        """Store keys and values of rows `[rows, hidden]`."""
        if not self.heads:
            return
        kernels, buffers = context.kernels, context.buffers
        stored = self.keys(x, buffers, "keys and values")
        if self.key_norm is not None:
            kernels.head_norm(stored, self.key_norm, self.key_norm, 0, self.eps, v_weight=self.value_norm)
        none = stored.new_empty((len(x), 0, self.head_dim))
        kernels.rotary_store(stored, context.positions, context.slots, self.cos_sin, none, cache.key, cache.value)

    def __call__(self, x: Tensor, context: ForwardContext, cache: LayerCache) -> Tensor:
        """Store the rows' keys and values, then let each row attend to what its view shows it.

        Args:
            x: `[rows, hidden]`, normalised.
            context: positions, slots and view of the rows.
            cache: this layer's keys and values.

        Returns:
            `[rows, hidden]`.
        """
        kernels, buffers, width = context.kernels, context.buffers, self.heads * self.head_dim
        mixed = buffers("mixed", width)
        self.store_kv(x, context, cache)
        if self.heads:
            asked = self.query(x, buffers, "queries")
            if self.query_norm is not None:
                kernels.head_norm(asked, self.query_norm, self.query_norm, self.heads, self.eps)
            query = buffers("turned queries", width).view(-1, self.heads, self.head_dim)
            nothing = cache.key[:, :0], cache.value[:, :0]
            kernels.rotary_store(asked, context.positions, context.slots, self.cos_sin, query, *nothing)
            kernels.attention(query, cache.key, cache.value, context.view, self.scale, mixed, sinks=self.sinks)
            if self.value_scale != 1:
                kernels.scale(mixed, self.value_scale)
        return self.output(mixed, buffers, "attention")


def _norm(letter: str, config: ModelConfig, read: TensorReader) -> Tensor | None:
    """Return the weight of a norm of heads, if there is one, in the order of the projections' columns."""
    if not config.style.head_norms:
        return None
    weight = read(f"self_attn.{letter}_norm.weight")
    return weight[halves(config, 1)] if config.style.interleaved else weight


class LayerWrapper(Protocol):
    """What is done to a block's rows before a part of a layer reads them, and to what that part makes of them."""

    def before(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return what the part reads, for normalised rows `[rows, hidden]`, and what `after` needs of them."""
        ...

    def after(self, out: Tensor, needed: Tensor | None) -> Tensor:
        """Return what joins the residual stream, for the part's output `[rows, hidden]`."""
        ...


class NoWrapper:
    """Nothing is done."""

    def before(self, x: Tensor) -> tuple[Tensor, Tensor | None]:  # noqa: D102
        return x, None

    def after(self, out: Tensor, needed: Tensor | None) -> Tensor:  # noqa: D102
        return out


class BlockLayer:
    """A decoder layer with its weights."""

    def __init__(
        self,
        config: ModelConfig,
        read: TensorReader,
        kernels: Kernels,
        group: Group,
        cos_sin: Tensor,
        value_scale: float,
        wrappers: tuple[LayerWrapper, LayerWrapper],
    ) -> None:
        """Read the weights.

        Args:
            config: config of the layers, with their style.
            read: reader of this layer's tensors, by their names in it.
            kernels: the operations to run with.
            group: the ranks that share the layers.
            cos_sin: `[max_len, R]`, see `Kernels.rotary_store`.
            value_scale: factor on values, see `BlockAttention`.
            wrappers: wrappers of attention and of the feed-forward network.
        """
        self._eps = config.rms_norm_eps
        self._attention = BlockAttention.read(config, read, kernels, group, cos_sin, value_scale)
        norms = [read(f"{name}.weight") for name in norm_names(config)]
        self._before, self._between = norms[:2]
        self._post_norms = norms[2:]  # of what attention gives, and the feed-forward network
        self._scalar = float(read.exact("layer_scalar")) if config.style.layer_scalars else 1.0
        self._mlp = make_mlp(config, read, kernels, group)
        self._wrappers = wrappers

    def store_contexts(self, contexts: Tensor, context: ForwardContext, cache: LayerCache) -> None:
        """Store keys and values of contexts `[rows, hidden]`, which no norm of the layer changes."""
        self._attention.store_kv(contexts, context, cache)

    def __call__(self, residual: Tensor, delta: Tensor | None, context: ForwardContext, cache: LayerCache) -> Tensor:
        """Add `delta`, the layer before's last output, to `residual` in place; return this layer's own."""
        kernels, x = context.kernels, context.buffers("normed", residual.shape[1])
        attention, network = self._wrappers
        kernels.rms_norm(residual, self._before, self._eps, x, delta=delta)
        read, needed = attention.before(x)
        mixed = self._finish(0, attention.after(self._attention(read, context, cache), needed), kernels)
        kernels.rms_norm(residual, self._between, self._eps, x, delta=mixed)
        read, needed = network.before(x)
        out = self._finish(1, network.after(self._mlp(read, context), needed), kernels)
        if self._scalar != 1:
            kernels.scale(residual, self._scalar)
            kernels.scale(out, self._scalar)
        return out

    def _finish(self, part: int, x: Tensor, kernels: Kernels) -> Tensor:
        """Normalise in place what a part gives, where there is a norm for that."""
        if self._post_norms:
            kernels.rms_norm(x, self._post_norms[part], self._eps, x)
        return x
