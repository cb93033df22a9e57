"""GLM-4 of 2025, 9B and 32B: a GLM that also normalises what attention and the feed-forward network return."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.families import glm

_NAMES = {
    "pre_feedforward_layernorm.weight": "post_attention_layernorm.weight",
    "post_attention_layernorm.weight": "post_self_attn_layernorm.weight",
    "post_feedforward_layernorm.weight": "post_mlp_layernorm.weight",
}


def describe(config: ModelConfig) -> ModelConfig:
    described = glm.describe(config)
    return replace(described, style=replace(described.style, post_norms=True), renamed=config.in_layers(_NAMES))
