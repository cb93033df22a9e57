"""Laguna (poolside 2026), such as XS 30B-A3B: heads of queries by layer, each with a gate on its output, a window in
some layers, and DeepSeek-V3's router.
"""

from dataclasses import replace
from typing import Any

from parlay.checkpoints.files import config_file
from parlay.errors import ModelError, shown
from parlay.models.config import ModelConfig
from parlay.models.rope import read_rotary
from parlay.models.style import Experts, Heads, OutputGate, Style

DEFAULTS: dict[str, Any] = {
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
_NAMES = {
    "self_attn.gate_proj.weight": "self_attn.g_proj.weight",
    "mlp.gate.e_score_correction_bias": "mlp.experts.e_score_correction_bias",
}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu", moe_apply_router_weight_on_input=False, moe_router_logit_softcapping=0.0)
    gating = config.raw.get("gating", True)
    if gating not in (True, "per-head", "per-element"):
        raise ModelError(f"{config_file(config.path)}: gating must be per-head or per-element, not {shown(gating)}")
    experts = Experts(
        count=config.count("num_experts", config.raw.get("num_local_experts", 256)),
        top_k=config.count("num_experts_per_tok", 8),
        width=config.count("moe_intermediate_size", 512),
        sparse=config.sparse_layers(config.layers_from(config.count_or_zero("num_dense_layers", 1))),
        sigmoid=True,
        selection_bias=True,
        factor=config.number("moe_routed_scaling_factor", 1.0),
        shared=config.count("shared_expert_intermediate_size", 512),
    )
    counts = _queries(config)
    every = config.count("sliding_window_pattern", None) if "sliding_window_pattern" in config.raw else 0  # in GGUF
    style = Style(
        **config.attention_biases(),
        output_gate=OutputGate(separate=True, by_head=gating != "per-element", softplus=True),
        head_norms=True,
        windows=config.windows(lambda layer: every > 0 and layer % every != 0, default=512),
        local_rotary=read_rotary(config.path, config.raw, "sliding_attention"),
        heads=tuple(Heads(count=config.num_kv_heads, width=config.head_dim, queries=count) for count in counts)
        if len({*counts}) > 1
        else (),
        experts=experts,
    )
    return replace(config, style=style, num_heads=counts[0], renamed=config.in_layers(_NAMES))


def _queries(config: ModelConfig) -> list[int]:
    """Return how many heads of queries each layer has."""
    key = "num_attention_heads_per_layer"
    counts = config.raw.get(key)
    if counts is None:
        return [config.num_heads] * config.num_layers
    groups = config.num_kv_heads
    if (
        not isinstance(counts, list)
        or len(counts) != config.num_layers
        or not all(type(count) is int and count > 0 and count % groups == 0 for count in counts)
    ):
        raise ModelError(
            f"{config_file(config.path)}: {key} must list a multiple of {groups} for each of {config.num_layers} "
            f"layers, not {shown(counts)}"
        )
    return counts
