"""OLMoE (Muennighoff et al. 2024, arXiv 2409.02060): a Llama with a mixture of experts.

All heads' queries are normalised together, and all keys.
"""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.style import Experts, Style


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu", clip_qkv=None)
    experts = Experts(
        count=config.count("num_experts", 64),
        top_k=config.count("num_experts_per_tok", 8),
        width=config.intermediate_size,
        normalise=config.flag("norm_topk_prob", False),
        sparse=(True,) * config.num_layers,
    )
    return replace(config, style=Style(**config.attention_biases(), joint_norms=True, experts=experts))
