"""Seed-OSS (ByteDance Seed team 2025): a Llama with biases on queries, keys and values."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.style import Style


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu")
    style = Style(
        qkv_bias=config.flag("attention_bias", True),
        output_bias=config.flag("attention_out_bias", False),
        mlp_bias=config.flag("mlp_bias", False),
    )
    return replace(config, style=style)
