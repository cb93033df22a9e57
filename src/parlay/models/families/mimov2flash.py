"""MiMo-V2-Flash (Xiaomi 2026): values narrower than keys, sinks and heads of their own in layers with a window, and
DeepSeek-V3's router.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from parlay.checkpoints.files import config_file
from parlay.errors import ModelError
from parlay.models.config import ModelConfig
from parlay.models.mtp import MTPNames
from parlay.models.rope import read_rotary
from parlay.models.style import Experts, Heads, Rotary, Style

_SINKS = {"self_attn.sinks": "self_attn.attention_sink_bias"}
_NEXT = "model.mtp.layers.{1}."
MTP = MTPNames(
    layer=_NEXT,
    join=_NEXT + "eh_proj.weight",
    token_norm=_NEXT + "enorm.weight",
    state_norm=_NEXT + "hnorm.weight",
    norm=_NEXT + "final_layernorm.weight",
    inner={"post_attention_layernorm.weight": "pre_mlp_layernorm.weight", **_SINKS},
    window=True,
    dense=True,
)


def DEFAULTS(raw: Mapping[str, Any]) -> dict[str, Any]:  # noqa: N802 - a name that the loader looks for
    """Return what a config means that lacks keys: released ones have no `rope_parameters`."""
    partial = raw.get("partial_rotary_factor", 0.334)
    bases = {"full_attention": raw.get("rope_theta", 5e6), "sliding_attention": raw.get("swa_rope_theta", 1e4)}
    rotary = {kind: {"rope_theta": base, "partial_rotary_factor": partial} for kind, base in bases.items()}
    return {
        "rope_parameters": rotary,
        "partial_rotary_factor": partial,
        "rms_norm_eps": raw.get("layernorm_epsilon", 1e-5),
    }


def describe(config: ModelConfig) -> ModelConfig:
    value = config.count("v_head_dim", 128)
    config.only(hidden_act="silu", topk_method="noaux_tc", scoring_func="sigmoid", n_shared_experts=None)
    config.only(swa_num_attention_heads=config.num_heads, swa_head_dim=config.head_dim, swa_v_head_dim=value)
    config.only(add_swa_attention_sink_bias=True, add_full_attention_sink_bias=False)
    if config.raw.get("sliding_window_size") is not None:  # which leaves a token itself out
        window = config.count("sliding_window_size", None) + 1
        config = replace(config, raw={**config.raw, "sliding_window": window})
    usual = [i > 0 and (i + 1) % 6 != 0 for i in range(config.num_layers)]
    near = config.flags("hybrid_layer_pattern", usual)
    windows = config.windows(lambda layer: near[layer], default=129)
    counts = config.num_kv_heads, config.count("swa_num_key_value_heads", 2 * config.num_kv_heads)
    if config.num_heads % counts[1] or value % 8 or value > 256:
        raise ModelError(
            f"{config_file(config.path)}: {counts[1]} heads of values, {value} columns each, are not supported "
            f"beside {config.num_heads} heads of queries; v_head_dim is a multiple of 8 up to 256"
        )
    bias, scale = config.flag("attention_bias", False), config.raw.get("attention_value_scale", 0.707)
    style = Style(
        qkv_bias=bias,
        windows=windows,
        local_rotary=_whole(read_rotary(config.path, config.raw, "sliding_attention"), config.head_dim),
        heads=tuple(Heads(count=counts[window > 0], width=config.head_dim, value=value) for window in windows),
        attention_scale=1.0 if scale is None else config.number("attention_value_scale", 0.707),
        sinks=tuple(window > 0 for window in windows),
        experts=_experts(config),
    )
    rotary = _whole(config.rotary, config.head_dim)
    return replace(config, style=style, rotary=rotary, renamed=config.in_layers(_SINKS))


def _whole(rotary: Rotary, width: int) -> Rotary:
    """Return the embedding with the part that a whole number of columns is: a third is given as 0.334."""
    return replace(rotary, partial=int(width * rotary.partial) / width)


def _experts(config: ModelConfig) -> Experts:
    factor = config.raw.get("routed_scaling_factor")
    return Experts(
        count=config.count("n_routed_experts", config.raw.get("num_local_experts", 256)),
        top_k=config.count("num_experts_per_tok", 8),
        width=config.count("moe_intermediate_size", 2048),
        normalise=config.flag("norm_topk_prob", True),
        sparse=config.sparse_layers(config.flags("moe_layer_freq", config.layers_from(1))),
        sigmoid=True,
        selection_bias=True,
        groups=config.count("n_group", 1),
        kept_groups=config.count("topk_group", 1),
        factor=1.0 if factor is None else config.number("routed_scaling_factor", 1.0),
    )
