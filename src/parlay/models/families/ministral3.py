"""Ministral 3 (Mistral AI 2025): a Mistral whose queries grow with their position, as in Llama 4."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.families import mistral


def describe(config: ModelConfig) -> ModelConfig:
    """Return the config with the family's style.

    Raises:
        ModelError: an option that is not served.
    """
    rope = config.within("rope_parameters" if "rope_parameters" in config.raw else "rope_scaling")
    rotary = replace(
        config.rotary,
        query_growth=rope.number("llama_4_scaling_beta", config.raw.get("llama_4_scaling_beta", 0.1)),
        original=rope.count("original_max_position_embeddings", 16384),
    )
    return replace(mistral.describe(config), rotary=rotary)
