"""Grouped-query attention and the norms of its heads."""

from dataclasses import dataclass

import torch
from torch import Tensor

from parlay.kernels.base import Gate
from parlay.models.context import ForwardContext, LayerCache
from parlay.models.layers import ColumnParallelLinear, GatheredLinear, ReducedLinear
from parlay.parallel.group import ALONE, Group


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNorms:
    """RMS norms of queries and keys.

    Attributes:
        query, key: weights, `[head_dim]`; of joint norms those of this rank's heads, `[heads * head_dim]`.
        eps: added to means.
        plus_one: weights are stored less one.
        after_rotary: heads are normalised after rotation.
        joint: all heads are normalised together, before rotation.
        group: the ranks that have heads.
        bounds: bounds of each rank's query heads and key heads, for joint norms.
        value: weight of a norm of values, `[head_dim]`; None for none.
    """

    query: Tensor
    key: Tensor
    eps: float
    plus_one: bool = False
    after_rotary: bool = False
    joint: bool = False
    group: Group = ALONE
    bounds: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    value: Tensor | None = None

    def before(self, qkv: Tensor, heads: int, context: ForwardContext) -> None:
        """Apply the norms before rotation to `[rows, own queries, keys and values]`, in place."""
        kernels = context.kernels
        if self.joint:
            q, k = self._squares(qkv, context)
            if heads:
                kernels.joint_norm(qkv, self.query, self.key, q, k, heads, self.eps)
        elif not self.after_rotary:
            kernels.head_norm(qkv, self.query, self.key, heads, self.eps, self.plus_one, self.value)

    def _squares(self, qkv: Tensor, context: ForwardContext) -> tuple[Tensor, Tensor]:
        """Return the sums of squares of all ranks' query heads and key heads, float32 `[rows, heads]`."""
        found, shares = [], [self.group.share(each) for each in self.bounds]
        for role, (begin, end) in zip(("query squares", "key squares"), shares, strict=True):
            found.append(context.buffers(role, end - begin, torch.float32))
        if found[0].shape[1]:
            context.kernels.head_squares(qkv, *found)
        if self.group.size == 1:
            return found[0], found[1]
        whole: list[Tensor] = []
        for own, each in zip(found, self.bounds, strict=True):
            whole.append(context.buffers(f"all {len(whole)} squares", each[-1], torch.float32))
            self.group.gather(own, whole[-1], each)
        return whole[0], whole[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Grouped-query attention over the paged cache.

    Attributes:
        qkv: projects to queries, keys and values.
        output: projects back to the residual stream.
        heads: query heads on this rank; there may be none.
        head_dim: columns of a head's query and key.
        value_dim: columns of its value.
        cos_sin: `[max_len, R]`, see `Kernels.rotary_store`.
        scale: factor on scores.
        query_cos_sin: the same table for queries, where it differs.
        norms: norms of queries and keys.
        window: keys that a row sees at most; 0 is all.
        chunk: a row sees the keys alone of its own chunk of so many positions; 0 is all.
        cap: soft cap of scores; 0 is none.
        sinks: float32 `[heads]`, see `Kernels.attention`.
        gate: projects to the output's gates, one for each column or head.
        gate_kind: the gates' activation.
        stores: whether it has keys and values; otherwise it reads those that another layer has stored.
        output_scale: factor on its output.
    """

    qkv: ColumnParallelLinear
    output: GatheredLinear | ReducedLinear
    heads: int
    head_dim: int
    value_dim: int
    cos_sin: Tensor
    scale: float
    query_cos_sin: Tensor | None = None
    norms: HeadNorms | None = None
    window: int = 0
    chunk: int = 0
    cap: float = 0.0
    sinks: Tensor | None = None
    gate: ColumnParallelLinear | None = None
    gate_kind: Gate = "sigmoid"
    stores: bool = True
    output_scale: float = 1.0

    def __call__(self, x: Tensor, context: ForwardContext, cache: LayerCache) -> Tensor:
        """Store the rows' keys and values, then let each row attend to what its view shows it.

        Args:
            x: `[rows, hidden]`, normalised.
            context: positions, slots and view of the rows.
            cache: this layer's keys and values.

        Returns:
            `[rows, hidden]`.
        """
        buffers = context.buffers
        mixed = buffers("mixed", self.heads * self.value_dim)
        if self.heads or (self.norms is not None and self.norms.joint):
            qkv = self.qkv(x, buffers, "qkv")
            if self.norms is not None:
                self.norms.before(qkv, self.heads, context)
            if self.heads:
                self._attend(qkv, context, cache, mixed)
                if self.gate is not None:
                    context.kernels.multiply(mixed, self.gate(x, buffers, "output gate"), self.gate_kind)
        out = self.output(mixed, buffers, "attention")
        if self.output_scale != 1:
            context.kernels.scale(out, self.output_scale)
        return out

    def _attend(self, qkv: Tensor, context: ForwardContext, cache: LayerCache, mixed: Tensor) -> None:
        """Write what this rank's heads see, `[rows, heads * value_dim]`, to `mixed`."""
        kernels, norms = context.kernels, self.norms
        late = (norms.query, norms.key, norms.eps) if norms is not None and norms.after_rotary else ()
        query = context.buffers("query", self.heads * self.head_dim).view(-1, self.heads, self.head_dim)
        caches = query, cache.key, cache.value
        if not self.stores:  # there are queries alone, which turn
            caches = query, cache.key[:, :0], cache.value[:, :0]
        kernels.rotary_store(qkv, context.positions, context.slots, self.cos_sin, *caches, *late)
        if self.query_cos_sin is not None:  # nothing is stored at negative slots
            nowhere = torch.full_like(context.slots, -1)
            kernels.rotary_store(qkv, context.positions, nowhere, self.query_cos_sin, *caches, *late)
        sight = self.window, self.cap, self.sinks, self.chunk
        kernels.attention(query, cache.key, cache.value, context.view, self.scale, mixed, *sight)
