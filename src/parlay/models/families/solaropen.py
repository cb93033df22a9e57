"""Solar-Open-100B (Upstage 2026): a Llama whose every layer has DeepSeek-V3's experts."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.families import glm4moe
from parlay.models.style import Style

DEFAULTS = {"intermediate_size": 1280, "first_k_dense_replace": 0, "moe_intermediate_size": 1280, "head_dim": 128}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(use_qk_norm=False, mlp_bias=False, first_k_dense_replace=0)
    style = Style(qkv_bias=config.flag("attention_bias", False), experts=glm4moe.experts(config))
    return replace(config, style=style, renamed=config.in_layers(glm4moe.NAMES))
