"""Llama 1, 2 and 3.x (Touvron et al. 2023, arXiv 2302.13971; Dubey et al. 2024, arXiv 2407.21783).

Pre-norm decoder, grouped-query attention, rotary positions, SiLU-gated MLP, optionally tied head and biases.
"""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.style import Style


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu")
    bias = config.flag("attention_bias", False)
    style = Style(qkv_bias=config.flag("qkv_bias", bias), output_bias=bias, mlp_bias=config.flag("mlp_bias", False))
    return replace(config, style=style)
