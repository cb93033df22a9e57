"""Hy3 (Tencent 2026): norms of each head's query and key, and a shared expert beside those that sigmoids choose."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.mtp import DEEPSEEK
from parlay.models.stored import network_names
from parlay.models.style import Experts, Style

DEFAULTS = {"head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 11_158_840.0}
MTP = replace(DEEPSEEK, norm="model.layers.{}.final_layernorm.weight")
_NAMES = {
    "mlp.gate.weight": "mlp.router.gate.weight",
    "mlp.gate.e_score_correction_bias": "mlp.expert_bias",
    **network_names("mlp.shared_expert", "mlp.shared_mlp"),
}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(
        hidden_act="silu",
        mlp_bias=False,
        qk_norm=True,
        route_norm=True,
        moe_router_use_sigmoid=True,
        moe_router_enable_expert_bias=True,
    )
    dense = config.count_or_zero("first_k_dense_replace", 1)
    usual = ["dense" if i < dense else "sparse" for i in range(config.num_layers)]
    width = config.count("moe_intermediate_size", 1536)
    experts = Experts(
        count=config.count("num_experts", config.raw.get("num_local_experts", 192)),
        top_k=config.count("num_experts_per_tok", 8),
        width=width,
        sparse=tuple(kind == "sparse" for kind in config.kinds("mlp_layer_types", ("dense", "sparse"), usual)),
        sigmoid=True,
        selection_bias=True,
        factor=config.number("router_scaling_factor", 2.826),
        shared=config.count("shared_intermediate_size", width * config.count("num_shared_experts", 1)),
    )
    style = Style(**config.attention_biases(), head_norms=True, experts=experts)
    return replace(config, style=style, renamed=config.in_layers(_NAMES))
