"""A layer's attention, feed-forward network and experts, made of the tensors that `tensor_shapes` names."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from parlay.checkpoints.loader import TensorReader
from parlay.kernels.base import Kernels
from parlay.models.attention import Attention, HeadNorms
from parlay.models.config import ModelConfig
from parlay.models.latent import LatentAttention, make_latent_attention
from parlay.models.layers import ColumnParallelLinear, SplitLinear, whole_linear
from parlay.models.moe import ExpertBiases, MixtureOfExperts, ParallelExperts
from parlay.models.networks import GatedMLP, Network, PlainMLP, ScaledMLP, XieluMLP
from parlay.models.rotary import RotaryTables, halves
from parlay.models.style import Experts, Style
from parlay.models.tensor_shapes import PARALLEL_NORMS, SELECTION_BIAS, XIELU, expert_shapes, latent_projections
from parlay.parallel.group import Group
from parlay.weights.weight import Weight


def projections(
    config: ModelConfig, index: int, read: TensorReader
) -> tuple[list[Weight], list[Tensor] | None, Weight | None]:
    """Read what projects to a layer's queries, keys and values, their biases, and what projects to its gate."""
    style, heads = config.style, config.heads_of(index)
    count = config.queries_of(index)
    q, k, v = count * heads.width, heads.count * heads.width, heads.count * heads.value_width
    # Values may share the keys' projection, or keys and values may be another layer's.
    letters = "q" if heads.source >= 0 else "qkv" if heads.values else "qkk"
    if style.fused_qkv:
        fused = read.weight("self_attn.qkv_proj.weight")
        weights = [fused.outputs(0, q), fused.outputs(q, q + k), fused.outputs(q + k, q + k + v)]
    else:
        weights = [read.weight(f"self_attn.{x}_proj.weight") for x in letters]
    gate = None
    if style.output_gate is not None and style.output_gate.separate:
        gate = read.weight("self_attn.gate_proj.weight")
    elif style.output_gate is not None:
        by_head, whole = torch.arange(2 * q).view(count, 2, -1), weights[0]
        weights[0], gate = (whole.chosen(by_head[:, part].reshape(-1)) for part in (0, 1))
    biases = None
    if style.qkv_bias and style.fused_qkv:
        biases = list(read("self_attn.qkv_proj.bias").tensor_split((q, q + k)))
    elif style.qkv_bias:
        biases = [read(f"self_attn.{x}_proj.bias") for x in letters]
    # Rotary columns of queries and keys, in the order that the kernels expect.
    for i, turned in enumerate((count, heads.count) if style.interleaved else ()):
        order = halves(config, turned)
        weights[i] = weights[i].chosen(order)
        if biases is not None:
            biases[i] = biases[i][order]
    return weights, biases, gate


def make_attention(
    config: ModelConfig, index: int, read: TensorReader, kernels: Kernels, group: Group, tables: RotaryTables
) -> Attention | LatentAttention:
    """Read the attention of layer `index`."""
    style = config.style
    if style.latent is not None:
        return make_latent_attention(config, style.latent, read, kernels, group, tables)
    own_heads = config.heads_of(index)
    head_dim, value_dim, stores = own_heads.width, own_heads.value_width, own_heads.source < 0
    weights, biases, gate = projections(config, index, read)
    # A rank has whole key heads, each with the query heads that read it.
    shared = config.queries_of(index) // own_heads.count
    by_head = style.output_gate is not None and style.output_gate.by_head
    bounds = group.bounds(config.queries_of(index), shared)
    begin, end = group.share(bounds)
    units = shared * head_dim, head_dim, value_dim
    still = bool(style.nope) and style.nope[index]
    normed = style.head_norms or style.post_rotary_norms or style.joint_norms
    normed = normed and not (still and style.nope_unnormed)
    norms = _head_norms(config, read, group, stores=stores) if normed else None
    return Attention(
        qkv=ColumnParallelLinear(kernels, weights, group, biases, units),
        output=whole_linear(
            kernels,
            read.weight("self_attn.o_proj.weight"),
            group,
            tuple(bound * value_dim for bound in bounds),
            read("self_attn.o_proj.bias") if style.output_bias else None,
        ),
        heads=end - begin,
        head_dim=head_dim,
        value_dim=value_dim,
        stores=stores,
        output_scale=style.attention_scale,
        cos_sin=tables[0],
        query_cos_sin=tables[1],
        norms=norms,
        scale=head_dim**-0.5 if style.score_scale is None else style.score_scale,
        window=style.windows[index] if style.windows else 0,
        chunk=style.chunks[index] if style.chunks else 0,
        cap=style.score_cap,
        gate=None
        if gate is None
        else ColumnParallelLinear(kernels, [gate], group, None, [shared * (1 if by_head else value_dim)]),
        gate_kind="softplus" if style.output_gate is not None and style.output_gate.softplus else "sigmoid",
        sinks=read.exact("self_attn.sinks")[begin:end] if style.sinks and style.sinks[index] else None,
    )


def _head_norms(config: ModelConfig, read: TensorReader, group: Group, *, stores: bool = True) -> HeadNorms:
    style, dim = config.style, config.head_dim
    ones = torch.ones(dim, dtype=read.dtype)
    weights = [
        read(f"self_attn.{x}_norm.weight") if style.head_norm_weights else ones for x in ("qk" if stores else "qq")
    ]
    bounds: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    if style.joint_norms:
        keys = group.bounds(config.num_kv_heads)
        queries = tuple(bound * (config.num_heads // config.num_kv_heads) for bound in keys)
        bounds = queries, keys
        if style.interleaved:
            weights = [
                w[halves(config, n)] for w, n in zip(weights, (config.num_heads, config.num_kv_heads), strict=True)
            ]
        shares = [group.share(each) for each in bounds]
        weights = [w[begin * dim : end * dim].contiguous() for w, (begin, end) in zip(weights, shares, strict=True)]
    return HeadNorms(
        query=weights[0],
        key=weights[1],
        eps=config.rms_norm_eps,
        plus_one=style.plus_one and style.head_norm_weights,
        after_rotary=style.post_rotary_norms,
        joint=style.joint_norms,
        group=group,
        bounds=bounds,
        value=torch.ones_like(weights[0]) if style.value_norms else None,
    )


def make_mlp(config: ModelConfig, read: TensorReader, kernels: Kernels, group: Group, index: int = 0) -> Network:
    """Read the feed-forward network of layer `index`."""
    return make_network(config, read, kernels, group, "mlp", config.network_width(index), _limit(config.style, index))


def _limit(of: Style | Experts, index: int) -> float:
    return of.limits[index] if of.limits else 0.0


def make_network(
    config: ModelConfig, read: TensorReader, kernels: Kernels, group: Group, prefix: str, inner: int, limit: float
) -> Network:
    """Read the feed-forward network under `prefix`, which is `inner` wide; `limit` is its `Kernels.act_mul`'s."""
    style = config.style
    parts = ("gate", "up") if style.gated else ("up",)

    def weights() -> list[Weight]:
        if style.fused_mlp:
            fused = read.weight(f"{prefix}.gate_up_proj.weight")
            return [fused.outputs(0, inner), fused.outputs(inner, 2 * inner)]
        return [read.weight(f"{prefix}.{name}_proj.weight") for name in parts]

    def biases() -> list[Tensor]:
        if style.fused_mlp:
            return list(read(f"{prefix}.gate_up_proj.bias").tensor_split(2))
        return [read(f"{prefix}.{name}_proj.bias") for name in parts]

    def first(chosen: slice = slice(None)) -> ColumnParallelLinear:
        own = biases()[chosen] if style.mlp_bias else None
        return ColumnParallelLinear(kernels, weights()[chosen], group, own)

    down = whole_linear(
        kernels,
        read.weight(f"{prefix}.down_proj.weight"),
        group,
        group.output_bounds(inner),
        read(f"{prefix}.down_proj.bias") if style.mlp_bias else None,
    )
    if style.gate_scale != 1 or style.network_scale != 1:
        scales = style.gate_scale, style.network_scale
        return ScaledMLP(first(slice(0, 1)), first(slice(1, 2)), down, style.activation, *scales)
    if style.xielu:
        return XieluMLP(first(), down, _xielu_numbers(read, prefix))
    if style.gated:
        return GatedMLP(first(), down, style.activation, limit)
    return PlainMLP(first(), down, style.activation)


def _xielu_numbers(read: TensorReader, prefix: str) -> Tensor:
    """Return what `Kernels.xielu` takes: files have what a softplus makes factors of, that of the tail without b."""
    p, n, b, e = (read.exact(f"{prefix}.{name}").view(1) for name in XIELU)
    return torch.cat((softplus(p), b + softplus(n), b, e))


def make_experts(
    config: ModelConfig, experts: Experts, read: TensorReader, kernels: Kernels, group: Group, index: int = 0
) -> MixtureOfExperts:
    """Read the router and the experts of layer `index`."""
    numbers = range(experts.count)
    *gates, up, down = (
        [read.weight(f"mlp.experts.{e}.{name}.weight") for e in numbers] for name in expert_shapes(config, experts)
    )
    shared = shared_gate = biases = None
    if experts.shared:
        limit = _limit(config.style, index)
        shared = make_network(config, read, kernels, group, "mlp.shared_expert", experts.shared, limit)
    if experts.shared_gate:
        shared_gate = Weight.of(read("mlp.shared_expert.gate.weight")[None])
    if experts.biases:
        of_gates, of_ups, of_downs = (
            torch.stack([read(f"mlp.experts.{e}.{name}.bias") for e in numbers])
            for name in ("gate_proj", "up_proj", "down_proj")
        )
        biases = ExpertBiases(read.exact("mlp.gate.bias"), of_gates, of_ups, of_downs)
    latent = [
        SplitLinear(
            kernels,
            read.weight(f"mlp.{part}.weight"),
            group,
            read(f"mlp.{part}.bias") if config.style.mlp_bias else None,
        )
        for part in latent_projections(config, experts)
    ]
    return MixtureOfExperts(
        kernels,
        experts,
        Weight.of(read("mlp.gate.weight")),
        gates[0] if gates else None,
        up,
        down,
        config.style.activation,
        group,
        selection_bias=read.exact(SELECTION_BIAS).view(-1) if experts.selection_bias else None,
        biases=biases,
        shared=shared,
        shared_gate=shared_gate,
        scales=read.exact("router.per_expert_scale") if experts.with_mlp else None,
        latent=(latent[0], latent[1]) if latent else None,
        limit=_limit(experts, index),
    )


def make_parallel_experts(
    config: ModelConfig, experts: Experts, read: TensorReader, kernels: Kernels, group: Group
) -> ParallelExperts:
    """Read experts that run in parallel with a feed-forward network, and the norms around them."""
    mixture = make_experts(config, experts, read, kernels, group)
    scale = read("router.scale") * config.hidden_size**-0.5
    before, dense, after = (read(f"{name}.weight") for name in PARALLEL_NORMS)
    return ParallelExperts(mixture, scale, before, dense, after, config.rms_norm_eps)
