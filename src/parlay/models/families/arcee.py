"""AFM-4.5B (Arcee AI 2025): a Llama with squared ReLU (So et al. 2021, arXiv 2109.08668) and no gate."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.style import Style


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="relu2")
    bias = config.flag("attention_bias", False)
    style = Style(
        activation="relu2",
        gated=False,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
    )
    return replace(config, style=style)
