"""GLM-4.7-Flash (Z.ai 2026): DeepSeek-V3's latent attention in a smaller GLM."""

from parlay.models.config import ModelConfig
from parlay.models.families import deepseekv3, glm4moe
from parlay.models.mtp import DEEPSEEK

DEFAULTS = {"head_dim": 64}  # where files have none: heads have widths of their own
MTP = DEEPSEEK


def describe(config: ModelConfig) -> ModelConfig:
    experts = glm4moe.experts(config, config.sparse_layers(config.layers_from(1)))
    return deepseekv3.with_latents(config, experts, interleaved=config.flag("rope_interleave", True))
