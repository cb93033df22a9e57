"""DeepSeek-V2-Lite (DeepSeek-AI 2024, arXiv 2405.04434): latent attention, and a mixture with shared experts."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.families import deepseekv3, glm4moe

DEFAULTS = {"head_dim": 64}  # where files have none: heads have widths of their own


def describe(config: ModelConfig) -> ModelConfig:
    config.only(topk_method="greedy", mlp_bias=False)
    plain = replace(config, raw={**config.raw, "n_group": 1, "topk_group": 1, "norm_topk_prob": False})
    experts = replace(glm4moe.experts(plain), sigmoid=False, selection_bias=False)
    described = deepseekv3.with_latents(config, experts, interleaved=True)
    if any(experts.sparse):
        return described
    return replace(described, style=replace(described.style, experts=None))  # GGUF files of Youtu-LLM have none
