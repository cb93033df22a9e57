"""Mellum 2 (JetBrains 2026), such as 12B-A2.5B: a Qwen3 with experts; layers with a window turn by their own base."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.mtp import DEEPSEEK
from parlay.models.rope import read_rotary
from parlay.models.style import Experts, Rotary, Style

MTP = replace(DEEPSEEK, window=True)


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu", mlp_bias=False)
    experts = Experts(
        count=config.count("num_local_experts", config.raw.get("num_experts", 64)),
        top_k=config.count("num_experts_per_tok", 8),
        width=config.count("moe_intermediate_size", 896),
        normalise=config.flag("norm_topk_prob", True),
        sparse=config.sparse_layers([True] * config.num_layers),
    )
    local = read_rotary(config.path, config.raw, "sliding_attention")
    if "rope_local_base_freq" in config.raw:
        local = Rotary(theta=config.number("rope_local_base_freq", None))
    style = Style(
        **config.attention_biases(),
        head_norms=True,
        windows=config.windows(lambda layer: False, default=1024),
        local_rotary=local,
        experts=experts,
    )
    return replace(config, style=style)
