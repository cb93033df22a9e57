"""Mistral Small 4 (Mistral AI 2026): DeepSeek-V3's latent attention, whose queries grow with their position as in
Ministral 3, and experts chosen by a softmax.
"""

from dataclasses import replace

from parlay.checkpoints.pieces import expert_pieces
from parlay.models.config import ModelConfig
from parlay.models.families import deepseekv3, glm4moe, ministral3

DEFAULTS = {"head_dim": 64, "first_k_dense_replace": 0, "moe_intermediate_size": 2048, "num_experts_per_tok": 4}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(n_group=1, topk_group=1, mlp_bias=False)
    experts = replace(glm4moe.experts(config), sigmoid=False, selection_bias=False)
    latents = deepseekv3.with_latents(config, experts, interleaved=config.flag("rope_interleave", True))
    stacks = expert_pieces(experts.count, experts.width)
    rotary = ministral3.growing(config, latents.rotary)
    return replace(latents, rotary=rotary, renamed={**latents.renamed, **config.stacked(stacks)})
