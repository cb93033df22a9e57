"""MiniMax-M2 (MiniMax 2025): DeepSeek-V3's router without groups, and experts under Mixtral's names.

All heads' queries are normalised together, and all keys; a part of a head's columns turns.
"""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.families.mixtral import NAMES
from parlay.models.style import Experts, Style

_NAMES = NAMES | {"mlp.gate.e_score_correction_bias": "block_sparse_moe.e_score_correction_bias"}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu", attention_bias=False)
    experts = Experts(
        count=config.count("num_local_experts", 256),
        top_k=config.count("num_experts_per_tok", 8),
        width=config.intermediate_size,
        sparse=(True,) * config.num_layers,
        sigmoid=True,
        selection_bias=True,
    )
    turning = config.raw.get("rotary_dim")
    partial = config.rotary.partial if turning is None else config.count("rotary_dim", None) / config.head_dim
    return replace(
        config,
        style=Style(joint_norms=True, experts=experts),
        rotary=replace(config.rotary, partial=partial),
        renamed=config.in_layers(_NAMES, experts.count),
    )
