"""Trinity (Arcee AI 2025), Nano, Mini and Large: gated attention, norms before and after, DeepSeek-V3's router.

Three of four layers have a window, and only their queries and keys turn.
"""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.stored import network_names
from parlay.models.style import Experts, OutputGate, Style

_NAMES = {
    "mlp.gate.weight": "mlp.router.gate.weight",
    "mlp.gate.e_score_correction_bias": "mlp.expert_bias",
    "pre_feedforward_layernorm.weight": "pre_mlp_layernorm.weight",
    "post_feedforward_layernorm.weight": "post_mlp_layernorm.weight",
    **network_names("mlp.shared_expert", "mlp.shared_experts"),
}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu", score_func="sigmoid", route_norm=True, n_group=1, topk_group=1)
    width = config.count("moe_intermediate_size", 1408)
    experts = Experts(
        count=config.count("num_experts", config.raw.get("num_local_experts", 64)),
        top_k=config.count("num_experts_per_tok", 6),
        width=width,
        sparse=config.layers_from(config.count_or_zero("num_dense_layers", 1)),
        sigmoid=True,
        selection_bias=True,
        factor=config.number("route_scale", 1.0),
        shared=width * config.count_or_zero("num_shared_experts", 2),
    )
    every = config.count("sliding_window_pattern", config.raw.get("global_attn_every_n_layers", 4))
    windows = config.windows(lambda layer: (layer + 1) % every != 0, default=1024)
    style = Style(
        **config.attention_biases(),
        output_gate=OutputGate(separate=True),
        head_norms=True,
        post_norms=True,
        windows=windows,
        nope=tuple(not window for window in windows) or (True,) * config.num_layers,
        embedding_scale=config.hidden_size**0.5 if config.flag("mup_enabled", False) else 1.0,
        experts=experts,
    )
    return replace(config, style=style, renamed=config.in_layers(_NAMES))
