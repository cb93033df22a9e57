"""The decoder that most families share: Llama's, with what their `Style` changes.

Pre-norm residual layers of grouped-query attention with rotary positions and a gated feed-forward network or a
mixture of experts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from parlay.checkpoints.loader import Checkpoint, TensorReader
from parlay.kernels.base import Kernels
from parlay.models.config import MOST_LAYERS, ModelConfig
from parlay.models.context import CacheLayer, ForwardContext, HybridCache, handed_states
from parlay.models.latent import LatentAttention, latent_shapes, make_latent_attention
from parlay.models.layer_inputs import LayerInput, TokenInputs, layer_input_shapes, token_input_shapes
from parlay.models.layers import (
    Attention,
    ColumnParallelLinear,
    Embedding,
    GatedMLP,
    HeadNorms,
    Network,
    OutputLayer,
    PlainMLP,
    ScaledMLP,
    SplitLinear,
    whole_linear,
)
from parlay.models.moe import ExpertBiases, ExpertsBeside, MixtureOfExperts
from parlay.models.rotary import RotaryTables, halves, layer_tables
from parlay.models.stages import own_layers
from parlay.models.stored import open_weights
from parlay.models.style import Experts, Mixer
from parlay.parallel.group import Group
from parlay.types.progress import OnRead, ignore
from parlay.weights.weight import Weight

# Norms around experts beside a network: of what they read, of what the network gives, of what they give.
_BESIDE = "pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"
_SELECTION_BIAS = "mlp.gate.e_score_correction_bias"


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor that a decoder of this shape and style reads."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
    }
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    shapes |= token_input_shapes(config)
    for i in range(config.num_layers):
        first, *others = ({f"{name}.weight": (config.hidden_size,)} for name in norm_names(config))
        own: dict[str, tuple[int, ...]] = {**first, **mixer_shapes(config, i)}
        for norm in others:
            own |= norm
        own |= mlp_shapes(config, i)
        own |= layer_input_shapes(config)
        if config.style.layer_scalars:
            own["layer_scalar"] = (1,)
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in own.items()}
    return shapes


def further_tensors(config: ModelConfig) -> tuple[str, ...]:
    """Return how the names begin of layers that predict further tokens, whether or not the config announces any.

    They are no part of the decoder; a proposer may want them.
    """
    keys = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
    count = sum(config.count(key, None) for key in keys if config.raw.get(key))
    layers = range(config.num_layers, config.num_layers + min(count, MOST_LAYERS))
    return (*(f"model.layers.{i}." for i in layers), "model.mtp_", "model.mtp.", "mtp.")


def _unread_keys(config: ModelConfig) -> tuple[str, ...]:
    """Return the names of tensors that layers which read another one's keys and values may have all the same."""
    readers = [i for i, heads in enumerate(config.style.heads) if heads.source >= 0]
    parts = "k_proj", "v_proj", "k_norm"
    return tuple(f"model.layers.{i}.self_attn.{part}.weight" for i in readers for part in parts)


def norm_names(config: ModelConfig) -> tuple[str, ...]:
    """Return the names of a layer's norms: before attention and the MLP, and after each, as far as it has them."""
    style = config.style
    if style.parallel or style.networks:
        return ("input_layernorm",)
    if not style.post_norms:
        return "input_layernorm", "post_attention_layernorm"
    before = ("input_layernorm", "pre_feedforward_layernorm") if style.pre_norms else ()
    return (*before, "post_attention_layernorm", "post_feedforward_layernorm")


def mixer_shapes(config: ModelConfig, index: int) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor of layer `index`'s attention, or of what is in its place."""
    recurrent, networks = config.style.recurrent, config.style.networks
    if networks and networks[index]:
        return {}
    if recurrent is not None and recurrent.layers[index]:
        own = recurrent.shapes(config.hidden_size)
        return {**attention_shapes(config, index), **own} if config.style.recurrent_beside else own
    return attention_shapes(config, index)


def attention_shapes(config: ModelConfig, index: int = 0) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor of layer `index`'s attention."""
    style, h, heads = config.style, config.hidden_size, config.heads_of(index)
    if style.latent is not None:
        return latent_shapes(config, style.latent)
    q, kv = config.queries_of(index) * heads.width, heads.count * heads.width
    gate = style.output_gate
    queries = q if gate is None or gate.apart else 2 * q
    widths = {"qkv_proj": q + 2 * kv} if style.fused_qkv else {"q_proj": queries, "k_proj": kv, "v_proj": kv}
    if heads.source >= 0 or not heads.values:
        widths = {"q_proj": queries} if heads.source >= 0 else {"q_proj": queries, "k_proj": kv}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, width in widths.items():
        shapes[f"self_attn.{name}.weight"] = (width, h)
        if style.qkv_bias:
            shapes[f"self_attn.{name}.bias"] = (width,)
    if gate is not None and gate.apart:
        shapes["self_attn.gate_proj.weight"] = (config.queries_of(index) if gate.by_head else q, h)
    shapes["self_attn.o_proj.weight"] = (h, q)
    if style.output_bias:
        shapes["self_attn.o_proj.bias"] = (h,)
    if (style.head_norms or style.late_norms) and style.head_norm_weights:
        shapes |= {f"self_attn.{x}_norm.weight": (heads.width,) for x in ("q" if heads.source >= 0 else "qk")}
    if style.joint_norms:
        shapes |= {"self_attn.q_norm.weight": (q,), "self_attn.k_norm.weight": (kv,)}
    if style.sinks:
        shapes["self_attn.sinks"] = (config.queries_of(index),)
    return shapes


def mlp_shapes(config: ModelConfig, index: int) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor of layer `index`'s feed-forward network or experts."""
    experts, h, networks = config.style.experts, config.hidden_size, config.style.networks
    if networks and not networks[index]:
        return {}
    if not experts or not experts.sparse[index]:
        return _network_shapes(config, "mlp", config.network_width(index))
    shapes: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (experts.count, h)}
    if experts.beside:
        shapes |= _network_shapes(config, "mlp", config.network_width(index))
        shapes |= {"router.scale": (h,), "router.per_expert_scale": (experts.count,)}
        shapes |= {f"{name}.weight": (h,) for name in _BESIDE}
    if experts.biases:
        shapes["mlp.gate.bias"] = (experts.count,)
    if experts.selection_bias:
        shapes[_SELECTION_BIAS] = (experts.count,)
    for name in (f"mlp.experts.{e}." for e in range(experts.count)):
        for part, (outputs, inputs) in _expert_shapes(config, experts).items():
            shapes[f"{name}{part}.weight"] = outputs, inputs
            if experts.biases:
                shapes[f"{name}{part}.bias"] = (outputs,)
    for part, shape in _latent_shapes(config, experts).items():
        shapes[f"mlp.{part}.weight"] = shape
        if config.style.mlp_bias:
            shapes[f"mlp.{part}.bias"] = shape[:1]
    if experts.shared:
        shapes |= _network_shapes(config, "mlp.shared_expert", experts.shared)
    if experts.shared_gate:
        shapes["mlp.shared_expert.gate.weight"] = (h,)
    return shapes


def _expert_shapes(config: ModelConfig, experts: Experts) -> dict[str, tuple[int, int]]:
    outer = experts.latent or config.hidden_size
    up, down = (experts.width, outer), (outer, experts.width)
    return {**({"gate_proj": up} if config.style.gated else {}), "up_proj": up, "down_proj": down}


def _latent_shapes(config: ModelConfig, experts: Experts) -> dict[str, tuple[int, int]]:
    """Return what projects to the experts' inputs and back, where these are not the hidden state."""
    if not experts.latent:
        return {}
    return {"latent_in": (experts.latent, config.hidden_size), "latent_out": (config.hidden_size, experts.latent)}


def _network_shapes(config: ModelConfig, prefix: str, inner: int) -> dict[str, tuple[int, ...]]:
    style, h = config.style, config.hidden_size
    widths = {"gate_up_proj": 2 * inner} if style.fused_mlp else {"gate_proj": inner, "up_proj": inner}
    widths = widths if style.gated else {"up_proj": inner}
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}.{name}.weight": (width, h) for name, width in widths.items()}
    shapes[f"{prefix}.down_proj.weight"] = (h, inner)
    if style.mlp_bias:
        shapes |= {f"{prefix}.{name}.bias": (width,) for name, width in widths.items()}
        shapes[f"{prefix}.down_proj.bias"] = (h,)
    return shapes


def projections(
    config: ModelConfig, index: int, read: TensorReader
) -> tuple[list[Weight], list[Tensor] | None, Weight | None]:
    """Read what projects to a layer's queries, keys and values, their biases, and what projects to its gate."""
    style, heads = config.style, config.heads_of(index)
    count = config.queries_of(index)
    q, kv = count * heads.width, heads.count * heads.width
    # Values may be what keys are before their norm, or both another layer's.
    letters = "q" if heads.source >= 0 else "qkv" if heads.values else "qkk"
    if style.fused_qkv:
        fused = read.weight("self_attn.qkv_proj.weight")
        weights = [fused.outputs(0, q), fused.outputs(q, q + kv), fused.outputs(q + kv, q + 2 * kv)]
    else:
        weights = [read.weight(f"self_attn.{x}_proj.weight") for x in letters]
    gate = None
    if style.output_gate is not None and style.output_gate.apart:
        gate = read.weight("self_attn.gate_proj.weight")
    elif style.output_gate is not None:
        by_head, whole = torch.arange(2 * q).view(count, 2, -1), weights[0]
        weights[0], gate = (whole.chosen(by_head[:, part].reshape(-1)) for part in (0, 1))
    biases = None
    if style.qkv_bias and style.fused_qkv:
        biases = list(read("self_attn.qkv_proj.bias").tensor_split((q, q + kv)))
    elif style.qkv_bias:
        biases = [read(f"self_attn.{x}_proj.bias") for x in letters]
    # Whose columns turn: queries and keys, in the order that the kernels expect.
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
    head_dim, stores = own_heads.width, own_heads.source < 0
    q = config.queries_of(index) * head_dim
    weights, biases, gate = projections(config, index, read)
    # A rank has whole key heads, each with the query heads that read it.
    group_heads = config.queries_of(index) // own_heads.count
    shared = group_heads * head_dim
    by_head = style.output_gate is not None and style.output_gate.by_head
    queries = group.bounds(q, shared)
    begin, end = group.share(queries)
    units = shared, head_dim, head_dim
    norms = (
        _head_norms(config, read, group, stores=stores)
        if style.head_norms or style.late_norms or style.joint_norms
        else None
    )
    return Attention(
        qkv=ColumnParallelLinear(kernels, weights, group, biases, units),
        output=whole_linear(
            kernels,
            read.weight("self_attn.o_proj.weight"),
            group,
            queries,
            read("self_attn.o_proj.bias") if style.output_bias else None,
        ),
        heads=(end - begin) // head_dim,
        head_dim=head_dim,
        stores=stores,
        cos_sin=tables[0],
        query_cos_sin=tables[1],
        norms=norms,
        scale=head_dim**-0.5 if style.score_scale is None else style.score_scale,
        window=style.windows[index] if style.windows else 0,
        cap=style.score_cap,
        gate=None
        if gate is None
        else ColumnParallelLinear(kernels, [gate], group, None, [group_heads if by_head else shared]),
        gate_kind="softplus" if style.output_gate is not None and style.output_gate.softplus else "sigmoid",
        sinks=read.exact("self_attn.sinks")[begin // head_dim : end // head_dim] if style.sinks else None,
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
        late=style.late_norms,
        joint=style.joint_norms,
        group=group,
        bounds=bounds,
        value=torch.ones_like(weights[0]) if style.value_norms else None,
    )


def make_mlp(config: ModelConfig, read: TensorReader, kernels: Kernels, group: Group, index: int = 0) -> Network:
    """Read the feed-forward network of layer `index`."""
    return _network(config, read, kernels, group, "mlp", config.network_width(index))


def _network(
    config: ModelConfig, read: TensorReader, kernels: Kernels, group: Group, prefix: str, inner: int
) -> Network:
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
    return (GatedMLP if style.gated else PlainMLP)(first(), down, style.activation)


def _experts(
    config: ModelConfig, experts: Experts, read: TensorReader, kernels: Kernels, group: Group
) -> MixtureOfExperts:
    numbers = range(experts.count)
    *gates, up, down = (
        [read.weight(f"mlp.experts.{e}.{name}.weight") for e in numbers] for name in _expert_shapes(config, experts)
    )
    shared = shared_gate = biases = None
    if experts.shared:
        shared = _network(config, read, kernels, group, "mlp.shared_expert", experts.shared)
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
        for part in _latent_shapes(config, experts)
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
        selection_bias=read.exact(_SELECTION_BIAS).view(-1) if experts.selection_bias else None,
        biases=biases,
        shared=shared,
        shared_gate=shared_gate,
        scales=read.exact("router.per_expert_scale") if experts.beside else None,
        latent=(latent[0], latent[1]) if latent else None,
    )


def _beside(
    config: ModelConfig, experts: Experts, read: TensorReader, kernels: Kernels, group: Group
) -> ExpertsBeside:
    mixture = _experts(config, experts, read, kernels, group)
    scale = read("router.scale") * config.hidden_size**-0.5
    before, dense, after = (read(f"{name}.weight") for name in _BESIDE)
    return ExpertsBeside(mixture, scale, before, dense, after, config.rms_norm_eps)


@dataclass(frozen=True, slots=True)
class HybridMixer:
    """Attention and a recurrent layer that read the same rows; their outputs are added.

    Attributes:
        attention, recurrent: the two.
        scale: factor on attention's outputs.
    """

    attention: Attention | LatentAttention
    recurrent: Mixer
    scale: float

    def __call__(self, x: Tensor, context: ForwardContext, cache: HybridCache) -> Tensor:
        """Return `[rows, hidden]` for normalised rows `[rows, hidden]`."""
        kernels, each = context.kernels, torch.arange(len(x))
        attended = context.buffers("attended", x.shape[1])
        kernels.embed(self.attention(x, context, cache.keys), each, attended)  # both write to one buffer
        if self.scale != 1:
            kernels.scale(attended, self.scale)
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
        norms = [read(f"{name}.weight") for name in norm_names(config)]
        before = len(norms) if not style.post_norms else 2 if style.pre_norms else 0
        self._pre_norms, self._post_norms = norms[:before], norms[before:]
        recurrent, networks = style.recurrent, style.networks
        self._mixer: Callable[[Tensor, ForwardContext, Any], Tensor] | None = None
        if networks and networks[index]:
            pass
        elif recurrent is not None and recurrent.layers[index]:
            self._mixer = made = recurrent.make(config.hidden_size, config.rms_norm_eps, read, kernels, group)
            if style.recurrent_beside:
                attention = make_attention(config, index, read, kernels, group, tables)
                self._mixer = HybridMixer(attention, made, style.attention_scale)
        else:
            self._mixer = make_attention(config, index, read, kernels, group, tables)
        self._mlp: Network | MixtureOfExperts | None = None
        if networks and not networks[index]:
            pass
        elif style.experts and style.experts.sparse[index] and not style.experts.beside:
            self._mlp = _experts(config, style.experts, read, kernels, group)
        else:
            self._mlp = make_mlp(config, read, kernels, group, index)
        beside = style.experts is not None and style.experts.beside and style.experts.sparse[index]
        self._beside = _beside(config, style.experts, read, kernels, group) if beside and style.experts else None
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
        if self._beside is not None:
            out = self._beside(residual, out, context)
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
        if delta is None:
            kernels.rms_norm(x, weight, eps, out, plus_one)
        else:
            kernels.add_rms_norm(x, delta, weight, eps, out, plus_one)

    def layer(kernels: Kernels, x: Tensor, delta: Tensor | None, weight: Tensor, out: Tensor) -> None:
        bias = nothing.to(weight.dtype)
        if delta is None:
            kernels.layer_norm(x, weight, bias, eps, out)
        else:
            kernels.add_layer_norm(x, delta, weight, bias, eps, out)

    return layer if config.style.layer_norms else rms


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
            ModelError: they do not fit.
        """
        head = ("lm_head.weight",) if config.tie_embeddings else ()
        unused = cls.ignorable + head + _unread_keys(config)
        return weights.expect(weight_shapes(config), unused, further_tensors(config))

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
        """Run rows through the layers, storing their keys and values; a stage begins with what it was handed.

        Args:
            tokens: `[rows]` int64.
            context: where the rows stand and what they see.

        Returns:
            Hidden states after the final norm, `[rows, hidden]`, in one of the context's buffers.
        """
        kernels, width, taps = context.kernels, self.config.hidden_size, context.taps
        further = 0 if self._pipeline.stages == 1 else self.config.handed
        results = handed_states(context.buffers, taps, further, width)
        residual, handed, states = results[0], results[1], dict(zip(taps, results[2:], strict=False))
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
            delta = handed
        if self._inputs is not None:
            self._inputs(tokens, results[-1] if further else residual, context)
        for depth, (layer, cache) in enumerate(zip(self._layers, context.cache, strict=True), self._first):
            if depth in states:
                _add(residual, delta, states[depth], kernels)
            delta = layer(residual, delta, context, cache)
        assert delta is not None
        if not self._pipeline.last:
            _add(delta, None, handed, kernels)
            return handed
        norm_of(self.config, final=True)(kernels, residual, delta, self._norm, handed)
        if self.config.num_layers in states:
            _add(residual, None, states[self.config.num_layers], kernels)
        return handed

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
