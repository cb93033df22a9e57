"""Layers that families share.

Where values are rounded to the model's dtype (nowhere else; every kernel keeps to this list):
    the residual stream after each addition; a norm's output, before and after its weight (after it alone where the
    weight is stored less one); the outputs of linear layers, before and after their bias; products with a family's
    multipliers; queries and keys after rotation; cached keys and values; attention's output; an activation's output
    and its product with `up`; the weighted sum of experts. Attention's scores and probabilities, a router's scores
    and weights, and logits stay float32.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from parlay.dist.group import Group
from parlay.kernels.base import Activation, Kernels
from parlay.kernels.linear import LinearWeight
from parlay.models.context import Buffers, ForwardContext, LayerCache
from parlay.weights.weight import Weight


class Linear:
    """`y = x W^T + b`, the weight `[out, in]` packed once for the kernels. Row-invariant by the kernels' contract."""

    def __init__(self, kernels: Kernels, weight: Weight, bias: Tensor | None = None) -> None:
        self._kernels = kernels
        self._weight = kernels.pack_linear(weight)
        self._bias = bias
        self._out_features = weight.shape[0]

    def __call__(self, x: Tensor, buffers: Buffers, role: str) -> Tensor:
        """Return `[rows, out]` for `x` of `[rows, in]`, in the buffer of `role`."""
        out = buffers(role, self._out_features)
        self._kernels.linear(x, self._weight, out)
        if self._bias is not None:
            self._kernels.add_bias(out, self._bias)
        return out


class ColumnParallelLinear(Linear):
    """A linear layer split along its outputs: each rank gives its own share of them."""

    def __init__(
        self, kernels: Kernels, weights: list[Weight], group: Group, biases: list[Tensor] | None = None
    ) -> None:
        """Fuse several weights `[out_i, in]` that read the same input, each split among the ranks on its own."""
        super().__init__(
            kernels,
            Weight.stack([w.outputs(*group.share(w.shape[0])) for w in weights]),
            torch.cat([group.shard(b, 0) for b in biases]) if biases else None,
        )


class RowParallelLinear(Linear):
    """A linear layer split along its inputs: the ranks' partial sums are added in rank order."""

    def __init__(self, kernels: Kernels, weight: Weight, group: Group, bias: Tensor | None = None) -> None:
        super().__init__(kernels, weight.inputs(*group.share(weight.shape[1])))
        self._group = group
        self._sum_bias = bias

    def __call__(self, x: Tensor, buffers: Buffers, role: str) -> Tensor:
        """Return `[rows, out]` for this rank's share `x` of the input."""
        out = self._group.all_reduce(super().__call__(x, buffers, role))
        if self._sum_bias is not None:
            self._kernels.add_bias(out, self._sum_bias)
        return out


class Embedding:
    """A row of numbers for each token; blocks and float16 are read as they lie packed, which a tied head shares."""

    def __init__(self, kernels: Kernels, weight: Weight) -> None:
        """Keep a weight `[vocab, hidden]`."""
        self._kernels = kernels
        self._shape = weight.shape
        self._stored = kernels.pack_head(weight) if weight.kept else weight.numbers()

    def __call__(self, tokens: Tensor, out: Tensor) -> None:
        """Write the rows of `tokens` `[rows]` to `out` `[rows, hidden]`."""
        if isinstance(self._stored, Tensor):
            self._kernels.embed(self._stored, tokens, out)
        else:
            self._kernels.embed_packed(self._stored, tokens, out)

    def numbers(self, dtype: torch.dtype) -> Tensor:
        """Return the whole of it as plain numbers."""
        if isinstance(self._stored, Tensor):
            return self._stored.to(dtype)
        out = torch.empty(self._shape, dtype=dtype)
        self(torch.arange(self._shape[0]), out)
        return out

    def head(self) -> LinearWeight:
        """Return the weight as `logits` reads it."""
        return self._kernels.pack_head(self._stored) if isinstance(self._stored, Tensor) else self._stored


class Head:
    """The language model head: float32 logits whatever the model's dtype.

    Logits in bfloat16 would tie exactly at the top too often for a total order to be worth anything.
    """

    def __init__(self, kernels: Kernels, weight: Weight | Embedding, divisor: float = 1.0, cap: float = 0.0) -> None:
        """Pack a weight `[vocab, hidden]`, or take the embedding's, to which the head is tied.

        Logits are divided by `divisor`, then soft-capped unless `cap` is 0.
        """
        self._kernels = kernels
        self._weight = weight.head() if isinstance(weight, Embedding) else kernels.pack_head(weight)
        self._vocab_size = self._weight.outputs
        self._divisor = divisor
        self._cap = cap

    def __call__(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Return `[rows, vocab]` float32 for normalised hidden states `[rows, hidden]`; in `out`, if it is given."""
        if out is None:
            out = torch.empty((hidden.shape[0], self._vocab_size), dtype=torch.float32)
        self._kernels.logits(hidden, self._weight, out)
        if self._divisor != 1:
            out.div_(self._divisor)
        if self._cap > 0:
            self._kernels.soft_cap(out, self._cap)
        return out


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norms of single heads, weights `[head_dim]`."""

    query: Tensor
    key: Tensor
    eps: float
    plus_one: bool


class Attention:
    """Grouped-query attention over the paged cache."""

    def __init__(
        self,
        qkv: ColumnParallelLinear,
        output: RowParallelLinear,
        heads: int,
        head_dim: int,
        cos_sin: Tensor,
        *,
        norms: HeadNorms | None = None,
        scale: float | None = None,
        window: int = 0,
        cap: float = 0.0,
    ) -> None:
        """Put an attention layer together.

        Args:
            qkv: projects to queries, keys and values.
            output: projects back.
            heads: of queries, on this rank.
            head_dim: columns of a head.
            cos_sin: `[max_len, R]`, see `Kernels.rotary_store`.
            norms: of queries and keys before they turn.
            scale: factor on scores; None is `head_dim ** -0.5`.
            window: keys that a row sees at most; 0 is all.
            cap: bound that scores approach; 0 is none.
        """
        self._qkv = qkv
        self._output = output
        self._heads = heads
        self._head_dim = head_dim
        self._scale = head_dim**-0.5 if scale is None else scale
        self._cos_sin = cos_sin
        self._norms = norms
        self._window = window
        self._cap = cap

    def __call__(self, x: Tensor, context: ForwardContext, cache: LayerCache) -> Tensor:
        """Store the rows' keys and values, then let each row attend to what its view shows it.

        Args:
            x: `[rows, hidden]`, normalised.
            context: positions, slots and view of the rows.
            cache: this layer's keys and values.

        Returns:
            `[rows, hidden]`.
        """
        kernels, buffers, norms = context.kernels, context.buffers, self._norms
        qkv = self._qkv(x, buffers, "qkv")
        if norms is not None:
            kernels.head_norm(qkv, norms.query, norms.key, self._heads, norms.eps, norms.plus_one)
        query = buffers("query", self._heads * self._head_dim).view(-1, self._heads, self._head_dim)
        kernels.rotary_store(qkv, context.positions, context.slots, self._cos_sin, query, cache.key, cache.value)
        mixed = buffers("mixed", self._heads * self._head_dim)
        kernels.attention(query, cache.key, cache.value, context.view, self._scale, mixed, self._window, self._cap)
        return self._output(mixed, buffers, "attention")


class GatedMLP:
    """`down(activation(gate(x)) * up(x))`."""

    def __init__(
        self, gate_up: ColumnParallelLinear, down: RowParallelLinear, activation: Activation = "silu"
    ) -> None:
        self._gate_up = gate_up
        self._down = down
        self._activation = activation

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:
        """Return `[rows, hidden]` for `x` of `[rows, hidden]`."""
        buffers = context.buffers
        gate_up = self._gate_up(x, buffers, "gate_up")
        product = buffers("product", gate_up.shape[1] // 2)
        context.kernels.act_mul(gate_up, self._activation, product)
        return self._down(product, buffers, "mlp")
