"""Qwen3-Next (Qwen team 2025): gated delta nets, gated attention in every fourth layer, and many small experts."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.families.qwen3_5 import with_delta_nets
from parlay.models.families.qwen3_5moe import SHARED_GATE
from parlay.models.families.qwen3moe import stepped_layers
from parlay.models.style import Experts


def describe(config: ModelConfig) -> ModelConfig:
    experts = Experts(
        count=config.count("num_experts", 512),
        top_k=config.count("num_experts_per_tok", 10),
        width=config.count("moe_intermediate_size", 512),
        normalise=config.flag("norm_topk_prob", True),
        sparse=stepped_layers(config),
        shared=config.count("shared_expert_intermediate_size", 512),
        shared_gate=True,
    )
    return replace(with_delta_nets(config, experts, fused=True), renamed=config.stacked(SHARED_GATE))
