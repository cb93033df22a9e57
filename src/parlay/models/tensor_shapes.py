"""The tensors that a decoder of some shape and style has: their names and shapes."""

from parlay.models.config import MOST_LAYERS, ModelConfig
from parlay.models.latent import latent_shapes
from parlay.models.layer_inputs import layer_input_shapes, token_input_shapes
from parlay.models.style import Experts

# Norms around experts beside a network: of what they read, of what the network gives, of what they give.
PARALLEL_NORMS = "pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"
SELECTION_BIAS = "mlp.gate.e_score_correction_bias"
# Numbers of an activation: the factors above 0 and below it, the slope, the bound of the exponential function.
XIELU: dict[str, tuple[int, ...]] = {
    "act_fn.alpha_p": (1,),
    "act_fn.alpha_n": (1,),
    "act_fn.beta": (),
    "act_fn.eps": (),
}


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
        first, *others = ({f"{name}.weight": (config.hidden_size,)} for name in norm_names(config, i))
        own: dict[str, tuple[int, ...]] = {**first, **mixer_shapes(config, i)}
        for norm in others:
            own |= norm
        own |= mlp_shapes(config, i)
        own |= layer_input_shapes(config)
        if config.style.layer_scalars:
            own["layer_scalar"] = (1,)
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in own.items()}
    return shapes


def mtp_prefixes(config: ModelConfig) -> tuple[str, ...]:
    """Return how the names begin of MTP layers, whether or not the config announces any.

    They are no part of the decoder; a proposer may want them.
    """
    keys = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
    count = sum(config.count(key, None) for key in keys if config.raw.get(key))
    layers = range(config.num_layers, config.num_layers + min(count, MOST_LAYERS))
    return (*(f"model.layers.{i}." for i in layers), "model.mtp_", "model.mtp.", "mtp.")


def unread_keys(config: ModelConfig) -> tuple[str, ...]:
    """Return the names of tensors that layers which read another one's keys and values may have all the same."""
    readers = [i for i, heads in enumerate(config.style.heads) if heads.source >= 0]
    parts = "k_proj", "v_proj", "k_norm"
    return tuple(f"model.layers.{i}.self_attn.{part}.weight" for i in readers for part in parts)


def norm_names(config: ModelConfig, index: int = 0) -> tuple[str, ...]:
    """Return the names of layer `index`'s norms."""
    before, after = norms_around(config, index)
    return *before, *after


def norms_around(config: ModelConfig, index: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a layer's norms: before attention and the MLP, and after each, as far as it has them."""
    style = config.style
    if style.parallel or style.networks:
        return ("input_layernorm",), ()
    plain = style.recurrent_pre_norms and style.recurrent is not None and style.recurrent.layers[index]
    if plain or not style.post_norms:
        return ("input_layernorm", "post_attention_layernorm"), ()
    before = ("input_layernorm", "pre_feedforward_layernorm") if style.pre_norms else ()
    return before, ("post_attention_layernorm", "post_feedforward_layernorm")


def mixer_shapes(config: ModelConfig, index: int) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor of layer `index`'s attention, or of what is in its place."""
    recurrent, networks = config.style.recurrent, config.style.networks
    if networks and networks[index]:
        return {}
    if recurrent is not None and recurrent.layers[index]:
        own = recurrent.shapes(config.hidden_size)
        return {**attention_shapes(config, index), **own} if config.style.recurrent_parallel else own
    return attention_shapes(config, index)


def attention_shapes(config: ModelConfig, index: int = 0) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor of layer `index`'s attention."""
    style, h, heads = config.style, config.hidden_size, config.heads_of(index)
    if style.latent is not None:
        return latent_shapes(config, style.latent)
    count = config.queries_of(index)
    q, k = count * heads.width, heads.count * heads.width
    mixed, v = count * heads.value_width, heads.count * heads.value_width
    gate = style.output_gate
    queries = q if gate is None or gate.separate else 2 * q
    widths = {"qkv_proj": q + k + v} if style.fused_qkv else {"q_proj": queries, "k_proj": k, "v_proj": v}
    if heads.source >= 0 or not heads.values:
        widths = {"q_proj": queries} if heads.source >= 0 else {"q_proj": queries, "k_proj": k}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, width in widths.items():
        shapes[f"self_attn.{name}.weight"] = (width, h)
        if style.qkv_bias:
            shapes[f"self_attn.{name}.bias"] = (width,)
    if gate is not None and gate.separate:
        shapes["self_attn.gate_proj.weight"] = (count if gate.by_head else mixed, h)
    shapes["self_attn.o_proj.weight"] = (h, mixed)
    if style.output_bias:
        shapes["self_attn.o_proj.bias"] = (h,)
    if (style.head_norms or style.post_rotary_norms) and style.head_norm_weights:
        shapes |= {f"self_attn.{x}_norm.weight": (heads.width,) for x in ("q" if heads.source >= 0 else "qk")}
    if style.joint_norms:
        shapes |= {"self_attn.q_norm.weight": (q,), "self_attn.k_norm.weight": (k,)}
    if style.sinks and style.sinks[index]:
        shapes["self_attn.sinks"] = (count,)
    return shapes


def mlp_shapes(config: ModelConfig, index: int) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor of layer `index`'s feed-forward network or experts."""
    experts, h, networks = config.style.experts, config.hidden_size, config.style.networks
    if networks and not networks[index]:
        return {}
    if not experts or not experts.sparse[index]:
        return _network_shapes(config, "mlp", config.network_width(index))
    shapes: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (experts.count, h)}
    if experts.with_mlp:
        shapes |= _network_shapes(config, "mlp", config.network_width(index))
        shapes |= {"router.scale": (h,), "router.per_expert_scale": (experts.count,)}
        shapes |= {f"{name}.weight": (h,) for name in PARALLEL_NORMS}
    if experts.biases:
        shapes["mlp.gate.bias"] = (experts.count,)
    if experts.selection_bias:
        shapes[SELECTION_BIAS] = (experts.count,)
    for name in (f"mlp.experts.{e}." for e in range(experts.count)):
        for part, (outputs, inputs) in expert_shapes(config, experts).items():
            shapes[f"{name}{part}.weight"] = outputs, inputs
            if experts.biases:
                shapes[f"{name}{part}.bias"] = (outputs,)
    for part, shape in latent_projections(config, experts).items():
        shapes[f"mlp.{part}.weight"] = shape
        if config.style.mlp_bias:
            shapes[f"mlp.{part}.bias"] = shape[:1]
    if experts.shared:
        shapes |= _network_shapes(config, "mlp.shared_expert", experts.shared)
    if experts.shared_gate:
        shapes["mlp.shared_expert.gate.weight"] = (h,)
    return shapes


def expert_shapes(config: ModelConfig, experts: Experts) -> dict[str, tuple[int, int]]:
    """Return the name and shape of each of an expert's matrices."""
    outer = experts.latent or config.hidden_size
    up, down = (experts.width, outer), (outer, experts.width)
    return {**({"gate_proj": up} if config.style.gated else {}), "up_proj": up, "down_proj": down}


def latent_projections(config: ModelConfig, experts: Experts) -> dict[str, tuple[int, int]]:
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
    if style.xielu:
        shapes |= {f"{prefix}.{name}": shape for name, shape in XIELU.items()}
    return shapes
