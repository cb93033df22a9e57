"""Qwen3, dense (Yang et al. 2025, arXiv 2505.09388): a Llama that normalises each head's query and key."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.families.qwen2 import last_windows
from parlay.models.style import Style


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu", mlp_bias=False)
    style = Style(**config.attention_biases(), head_norms=True, windows=last_windows(config))
    return replace(config, style=style)
