"""Qwen1.5-MoE and Qwen2 with experts (Yang et al. 2024, arXiv 2407.10671): one, with a gate, takes all rows."""

from dataclasses import replace

from parlay.checkpoints.pieces import Piece
from parlay.models.config import ModelConfig
from parlay.models.families.qwen2 import last_windows
from parlay.models.families.qwen3moe import stepped_layers
from parlay.models.style import Experts, Style


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu")
    experts = Experts(
        count=config.count("num_experts", 60),
        top_k=config.count("num_experts_per_tok", 4),
        width=config.count("moe_intermediate_size", 1408),
        normalise=config.flag("norm_topk_prob", False),
        sparse=stepped_layers(config),
        shared=config.count("shared_expert_intermediate_size", 5632),
        shared_gate=True,
    )
    gate = Piece("mlp.shared_expert_gate.weight", 0, 1)
    style = Style(qkv_bias=config.flag("qkv_bias", True), windows=last_windows(config), experts=experts)
    return replace(config, style=style, renamed=config.stacked({"mlp.shared_expert.gate.weight": gate}))
