"""Multi-head latent attention: all heads' keys and values come of one short row per token, and only that is cached.

A head's key is `W_k c` of the latent `c`, beside columns that all heads share and that turn with the position; its
value is `W_v c`. The products are moved to the query and behind the sum of values (absorbed): `q . W_k c` is
`W_k^T q . c`. So every head sees the same key `[turning | c]`, whose end is also its value. Prompts and decoding do
the same, so that bits do not depend on which of the two a row is part of.

Source: DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parlay.checkpoints.loader import TensorReader
from parlay.kernels.base import Kernels
from parlay.kernels.linear import LinearWeight
from parlay.models.config import ModelConfig
from parlay.models.context import ForwardContext, LayerCache
from parlay.models.layers import ColumnParallelLinear, GatheredLinear, ReducedLinear, whole_linear
from parlay.models.rotary import RotaryTables, query_growth
from parlay.models.style import Latent
from parlay.parallel.group import ALONE, Group
from parlay.weights.kinds import Kind
from parlay.weights.weight import Part, Weight

HeadKinds = tuple[Kind | None, Kind | None]  # of a latent's keys and values

EXPAND = "kv_b_proj.weight"
_EPS = 1e-6  # of the latents' norms, whatever the config has for others, as in transformers


def latent_shapes(config: ModelConfig, latent: Latent) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor of a layer's attention."""
    heads, hidden = config.num_heads, config.hidden_size
    queries, entry = heads * latent.query, latent.kv_rank + latent.rope_dim
    shapes: dict[str, tuple[int, ...]] = {"q_proj.weight": (queries, hidden)}
    biases = {"kv_a_proj_with_mqa.bias": (entry,), "o_proj.bias": (hidden,)}
    if latent.query_rank:
        shapes = {
            "q_a_proj.weight": (latent.query_rank, hidden),
            "q_a_layernorm.weight": (latent.query_rank,),
            "q_b_proj.weight": (queries, latent.query_rank),
        }
        biases["q_a_proj.bias"] = (latent.query_rank,)
    shapes |= {
        "kv_a_proj_with_mqa.weight": (entry, hidden),
        "kv_a_layernorm.weight": (latent.kv_rank,),
        EXPAND: (heads * (latent.nope_dim + latent.value), latent.kv_rank),
        "o_proj.weight": (hidden, heads * latent.value),
    }
    shapes |= biases if config.style.output_bias else {}
    return {f"self_attn.{name}": shape for name, shape in shapes.items()}


def absorbed_bytes(config: ModelConfig, itemsize: int, kinds: HeadKinds) -> int:
    """Return the bytes of a layer's absorbed matrices.

    Args:
        config: the model.
        itemsize: bytes of a number of its dtype.
        kinds: block kinds of the files' keys and values; None for plain numbers.
    """
    latent = config.style.latent
    assert latent is not None
    entry, (keys, values) = latent.kv_rank + latent.rope_dim, _aligned(latent, kinds)
    w_uk, w_uv = entry * latent.query * itemsize, latent.value * entry * itemsize
    if keys is not None:
        w_uk = latent.rope_dim * latent.query * itemsize + latent.kv_rank * (latent.query // keys.block) * keys.size
    if values is not None:
        w_uv = latent.value * (entry // values.block) * values.size
    return config.num_heads * (w_uk + w_uv)


def _aligned(latent: Latent, kinds: HeadKinds) -> HeadKinds:
    """Return the blocks that stay: zeros beside them have to be whole blocks too."""
    keys, values = kinds
    widths = (latent.nope_dim, latent.rope_dim), (latent.kv_rank, latent.rope_dim)
    kept = [
        kind if kind is not None and not any(width % kind.block for width in each) else None
        for kind, each in zip((keys, values), widths, strict=True)
    ]
    return kept[0], kept[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Attention of one layer; a rank has whole heads, and every rank computes and keeps all latents.

    Attributes:
        q_a: projects to the queries' own latents, and the weight of their norm; None where queries have none.
        query: projects to this rank's queries, `[heads * query]`.
        latent: projects to what is cached, the turning columns first.
        norm: weight of the latents' norm, `[rank]`.
        eps: added to the means of both norms.
        w_uk: weights per head from its query to what meets the cache, `[entry, query]`.
        w_uv: weights per head from a sum of entries to its value, `[value, entry]`.
        output: projects back.
        shape: widths of latent attention.
        cos_sin: `[max_len, turning]`, see `Kernels.rotary_store`.
        scale: factor on scores.
        growth: factor on the queries of each position, `[max_len, 1]`; None for none.
    """

    q_a: tuple[ColumnParallelLinear, Tensor] | None
    query: ColumnParallelLinear
    latent: ColumnParallelLinear
    norm: Tensor
    eps: float
    w_uk: tuple[LinearWeight, ...]
    w_uv: tuple[LinearWeight, ...]
    output: GatheredLinear | ReducedLinear
    shape: Latent
    cos_sin: Tensor
    scale: float
    growth: Tensor | None

    def __call__(self, x: Tensor, context: ForwardContext, cache: LayerCache) -> Tensor:
        """Store the rows' latents, then let each row attend to what its view shows it.

        Args:
            x: `[rows, hidden]`, normalised.
            context: positions, slots and view of the rows.
            cache: this layer's entries; its values are its keys.

        Returns:
            `[rows, hidden]`.
        """
        kernels, buffers, rows, heads = context.kernels, context.buffers, len(x), len(self.w_uk)
        entry = self.shape.kv_rank + self.shape.rope_dim
        values = buffers("values", heads * self.shape.value)
        if heads:
            latent = self.latent(x, buffers, "latent")
            if self.q_a is not None:
                project, norm = self.q_a
                narrow = project(x, buffers, "query latent")
                x = buffers("normed query latent", narrow.shape[1])
                kernels.rms_norm(narrow, norm, self.eps, x)
            queries = self.query(x, buffers, "queries").view(rows * heads, self.shape.query)
            if self.growth is not None:
                factors = buffers("query growth", 1)
                kernels.embed(self.growth.new_zeros(1, 1), torch.zeros(rows, dtype=torch.int64), factors)
                kernels.add_embedding(factors, self.growth, context.positions)
                kernels.multiply(queries.view(rows, -1), factors)
            query = buffers("query", heads * entry)
            mixed = buffers("mixed", heads * entry)
            head = torch.arange(heads, dtype=torch.int32).repeat(rows)
            kernels.expert_linear(queries, head, self.w_uk, query.view(rows * heads, entry))
            wide = query.view(rows, heads, entry)
            where = context.positions, context.slots, self.cos_sin
            kernels.latent_store(wide, latent, self.norm, self.eps, *where, cache.key)
            kernels.attention(wide, cache.key, cache.value, context.view, self.scale, mixed)
            kernels.expert_linear(
                mixed.view(rows * heads, entry), head, self.w_uv, values.view(rows * heads, self.shape.value)
            )
        return self.output(values, buffers, "attention")


def make_latent_attention(
    config: ModelConfig, latent: Latent, read: TensorReader, kernels: Kernels, group: Group, tables: RotaryTables
) -> LatentAttention:
    """Read the attention of a layer."""
    bias = config.style.output_bias

    def bias_of(name: str) -> list[Tensor] | None:
        return [read(f"self_attn.{name}.bias")] if bias else None

    # Which of the turning columns are halves of a pair: the files may have them as neighbours.
    turning = torch.arange(latent.rope_dim)
    if latent.interleaved:
        turning = torch.cat((turning[0::2], turning[1::2]))
    order = torch.cat((latent.kv_rank + turning, torch.arange(latent.kv_rank)))
    entries = read.weight("self_attn.kv_a_proj_with_mqa.weight").chosen(order)
    entry_bias = [each[order] for each in bias_of("kv_a_proj_with_mqa") or ()] or None
    q_a = None
    if latent.query_rank:
        narrow = ColumnParallelLinear(kernels, [read.weight("self_attn.q_a_proj.weight")], ALONE, bias_of("q_a_proj"))
        q_a = narrow, read("self_attn.q_a_layernorm.weight")
    queries = read.weight(f"self_attn.{'q_b_proj' if latent.query_rank else 'q_proj'}.weight")
    begin, end = group.share(group.bounds(config.num_heads))
    norm = read("self_attn.kv_a_layernorm.weight")
    w_uk, w_uv = _absorbed(read, latent, turning, range(begin, end), norm)
    scale, growth = config.style.score_scale, query_growth(config.rotary, len(tables[0]))
    return LatentAttention(
        q_a=q_a,
        query=ColumnParallelLinear(kernels, [queries], group, None, [latent.query]),
        latent=ColumnParallelLinear(kernels, [entries], ALONE, entry_bias),
        norm=norm,
        eps=_EPS,
        w_uk=tuple(map(kernels.pack_linear, w_uk)),
        w_uv=tuple(map(kernels.pack_linear, w_uv)),
        output=whole_linear(
            kernels,
            read.weight("self_attn.o_proj.weight"),
            group,
            group.bounds(config.num_heads * latent.value, latent.value),
            read("self_attn.o_proj.bias") if bias else None,
        ),
        shape=latent,
        cos_sin=tables[0],
        scale=latent.query**-0.5 if scale is None else scale,
        growth=None if growth is None else growth.to(read.dtype),
    )


def _absorbed(
    read: TensorReader, latent: Latent, turning: Tensor, heads: range, like: Tensor
) -> tuple[list[Weight], list[Weight]]:
    """Return for each head what makes its query one of entries, and its value of a sum of entries.

    What files have in blocks stays in blocks, with blocks of zeros beside it.

    Args:
        read: reads the layer's tensors.
        latent: widths of latent attention.
        turning: order of a query's turning columns, int64 `[turning]`.
        heads: the heads to return.
        like: a tensor of the model's dtype.
    """
    name = f"self_attn.{EXPAND}"
    stored = _aligned(latent, read.head_kinds(name))
    numbers = read(name).view(-1, latent.nope_dim + latent.value, latent.kv_rank) if None in stored else None
    turned = like.new_zeros(latent.rope_dim, latent.query)
    turned[torch.arange(latent.rope_dim), latent.nope_dim + turning] = 1
    w_uk, w_uv = [], []
    for head in heads:
        if stored[0] is not None:
            met = _padded(read.head(name, head, values=False), 0, latent.rope_dim)
        else:
            assert numbers is not None
            keys = numbers[head, : latent.nope_dim].T
            met = Weight.of(torch.cat((keys, like.new_zeros(latent.kv_rank, latent.rope_dim)), dim=1))
        w_uk.append(Weight.stack([Weight.of(turned), met]))
        if stored[1] is not None:
            w_uv.append(_padded(read.head(name, head, values=True), latent.rope_dim, 0))
        else:
            assert numbers is not None
            values = numbers[head, latent.nope_dim :]
            w_uv.append(Weight.of(torch.cat((like.new_zeros(latent.value, latent.rope_dim), values), dim=1)))
    return w_uk, w_uv


def _padded(weight: Weight, before: int, behind: int) -> Weight:
    """Return a weight of blocks with inputs before and behind its own that are multiplied with zero."""
    (part,) = weight.parts
    zeros = [part.data.new_zeros(len(part.data), n // part.kind.block * part.kind.size) for n in (before, behind)]
    return Weight((Part(part.kind, torch.cat((zeros[0], part.data, zeros[1]), dim=1)),))
