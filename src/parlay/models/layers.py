"""Layers that families share.

Where values are rounded to the model's dtype (nowhere else; every kernel keeps to this list):
    the residual stream after each addition; a norm's output, before and after its weight; the outputs of
    linear layers; queries and keys after rotation; cached keys and values; attention's output; SiLU's output and
    its product with `up`. Attention probabilities and logits stay float32.
"""

import torch
from torch import Tensor

from parlay.dist.group import Group
from parlay.kernels.base import Kernels
from parlay.models.context import Buffers, ForwardContext, LayerCache


class Linear:
    """`y = x W^T`, the weight `[out, in]` packed once for the kernels. Row-invariant by the kernels' contract."""

    def __init__(self, kernels: Kernels, weight: Tensor) -> None:
        self._kernels = kernels
        self._weight = kernels.pack_linear(weight)
        self._out_features = weight.shape[0]

    def __call__(self, x: Tensor, buffers: Buffers, role: str) -> Tensor:
        """Return `[rows, out]` for `x` of `[rows, in]`, in the buffer of `role`."""
        out = buffers(role, self._out_features)
        self._kernels.linear(x, self._weight, out)
        return out


class ColumnParallelLinear(Linear):
    """A linear layer split along its outputs: each rank gives its own share of them."""

    def __init__(self, kernels: Kernels, weights: list[Tensor], group: Group) -> None:
        """Fuse several weights `[out_i, in]` that read the same input, each split among the ranks on its own."""
        super().__init__(kernels, torch.cat([group.shard(w, 0) for w in weights]).contiguous())


class RowParallelLinear(Linear):
    """A linear layer split along its inputs: the ranks' partial sums are added in rank order."""

    def __init__(self, kernels: Kernels, weight: Tensor, group: Group) -> None:
        super().__init__(kernels, group.shard(weight, 1))
        self._group = group

    def __call__(self, x: Tensor, buffers: Buffers, role: str) -> Tensor:
        """Return `[rows, out]` for this rank's share `x` of the input."""
        return self._group.all_reduce(super().__call__(x, buffers, role))


class Head:
    """The language model head: float32 logits whatever the model's dtype.

    Logits in bfloat16 would tie exactly at the top too often for a total order to be worth anything.
    """

    def __init__(self, kernels: Kernels, weight: Tensor) -> None:
        self._kernels = kernels
        self._weight = kernels.pack_head(weight)
        self._vocab_size = weight.shape[0]

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return `[rows, vocab]` float32 for normalised hidden states `[rows, hidden]`."""
        out = torch.empty((hidden.shape[0], self._vocab_size), dtype=torch.float32)
        self._kernels.logits(hidden, self._weight, out)
        return out


class Attention:
    """Grouped-query attention over the paged cache."""

    def __init__(
        self,
        qkv: ColumnParallelLinear,
        output: RowParallelLinear,
        heads: int,
        head_dim: int,
        cos_sin: Tensor,
    ) -> None:
        self._qkv = qkv
        self._output = output
        self._heads = heads
        self._head_dim = head_dim
        self._scale = head_dim**-0.5
        self._cos_sin = cos_sin

    def __call__(self, x: Tensor, context: ForwardContext, cache: LayerCache) -> Tensor:
        """Store the rows' keys and values, then let each row attend to what its view shows it.

        Args:
            x: `[rows, hidden]`, normalised.
            context: positions, slots and view of the rows.
            cache: this layer's keys and values.

        Returns:
            `[rows, hidden]`.
        """
        kernels, buffers = context.kernels, context.buffers
        qkv = self._qkv(x, buffers, "qkv")
        query = buffers("query", self._heads * self._head_dim).view(-1, self._heads, self._head_dim)
        kernels.rotary_store(qkv, context.positions, context.slots, self._cos_sin, query, cache.key, cache.value)
        mixed = buffers("mixed", self._heads * self._head_dim)
        kernels.attention(query, cache.key, cache.value, context.view, self._scale, mixed)
        return self._output(mixed, buffers, "attention")


class GatedMLP:
    """`down(silu(gate(x)) * up(x))`."""

    def __init__(self, gate_up: ColumnParallelLinear, down: RowParallelLinear) -> None:
        self._gate_up = gate_up
        self._down = down

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:
        """Return `[rows, hidden]` for `x` of `[rows, hidden]`."""
        buffers = context.buffers
        gate_up = self._gate_up(x, buffers, "gate_up")
        product = buffers("product", gate_up.shape[1] // 2)
        context.kernels.act_mul(gate_up, "silu", product)
        return self._down(product, buffers, "mlp")
