"""Qwen3.5 and 3.6 with experts (Qwen team 2026): as Qwen3.5, with one more expert that takes all rows, by a gate."""

from dataclasses import replace

from parlay.checkpoints.pieces import Piece, expert_pieces
from parlay.models.config import ModelConfig
from parlay.models.families.qwen3_5 import with_delta_nets
from parlay.models.style import Experts

# For configs without a width of layers without experts: there are no such layers.
DEFAULTS = {"intermediate_size": 1}
# The gate of the expert that takes all rows.
SHARED_GATE = {"mlp.shared_expert.gate.weight": Piece("mlp.shared_expert_gate.weight", 0, 1)}


def describe(config: ModelConfig) -> ModelConfig:
    experts = Experts(
        count=config.count("num_experts", 256),
        top_k=config.count("num_experts_per_tok", 8),
        width=config.count("moe_intermediate_size", 512),
        normalise=config.flag("norm_topk_prob", True),
        sparse=(True,) * config.num_layers,
        shared=config.count("shared_expert_intermediate_size", 512),
        shared_gate=True,
    )
    stacks = SHARED_GATE | expert_pieces(experts.count, experts.width)
    return replace(with_delta_nets(config, experts), renamed=config.stacked(stacks))
