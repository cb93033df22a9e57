"""GLM-4 9B of 2024 (GLM team 2024, arXiv 2406.12793): half of each head's columns turn, neighbours together."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.style import Style

_PARTIAL = 0.5  # where the config does not say, as in transformers


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu")
    stated = "partial_rotary_factor" in {**config.raw, **(config.raw.get("rope_parameters") or {})}
    rotary = config.rotary if stated else replace(config.rotary, partial=_PARTIAL)
    style = Style(
        qkv_bias=config.flag("qkv_bias", config.flag("attention_bias", True)), fused_mlp=True, interleaved=True
    )
    return replace(config, rotary=rotary, style=style)
