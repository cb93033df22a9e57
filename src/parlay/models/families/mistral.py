"""Mistral 7B and its kin (Jiang et al. 2023, arXiv 2310.06825): a Llama whose layers see a window of keys."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.style import Style


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu", attention_bias=False, mlp_bias=False)
    return replace(config, style=Style(windows=config.windows(lambda layer: True, default=4096)))
