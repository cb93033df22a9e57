"""GLM-4.7-Flash (Z.ai 2026): DeepSeek-V3's latent attention in a smaller GLM."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.families import deepseekv3, glm4moe
from parlay.models.mtp import DEEPSEEK

DEFAULTS = {"head_dim": 64}  # where files have none: heads have widths of their own
MTP = DEEPSEEK


def describe(config: ModelConfig) -> ModelConfig:
    usual = ["dense"] + ["sparse"] * (config.num_layers - 1)
    kinds = config.kinds("mlp_layer_types", ("sparse", "dense"), usual)
    counted = replace(config, raw={**config.raw, "first_k_dense_replace": 0})
    experts = replace(glm4moe.experts(counted), sparse=tuple(kind == "sparse" for kind in kinds))
    return deepseekv3.with_latents(config, experts, interleaved=config.flag("rope_interleave", True))
