"""Ministral 3 (Mistral AI 2025): a Mistral whose queries grow with their position, as in Llama 4."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.families import mistral
from parlay.models.style import Rotary


def describe(config: ModelConfig) -> ModelConfig:
    return replace(mistral.describe(config), rotary=growing(config, config.rotary))


def growing(config: ModelConfig, rotary: Rotary) -> Rotary:
    """Return a rotary embedding with which queries grow as the config says.

    Raises:
        ModelError: its numbers are none.
    """
    rope = config.within("rope_parameters" if "rope_parameters" in config.raw else "rope_scaling")
    return replace(
        rotary,
        query_growth=rope.number("llama_4_scaling_beta", config.raw.get("llama_4_scaling_beta", 0.1)),
        original=rope.count("original_max_position_embeddings", 16384),
    )
