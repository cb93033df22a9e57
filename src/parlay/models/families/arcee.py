"""AFM-4.5B (Arcee AI 2025): a Llama with squared ReLU (So et al. 2021, arXiv 2109.08668) and no gate."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.style import Style


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="relu2")
    biases = config.attention_biases()
    style = Style(activation="relu2", gated=False, mlp_bias=config.flag("mlp_bias", False), **biases)
    return replace(config, style=style)
