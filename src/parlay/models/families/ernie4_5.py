"""ERNIE 4.5, dense (Baidu ERNIE team 2025, "ERNIE 4.5 technical report"): a Llama whose neighbouring columns turn."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.style import Style


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu")
    bias = config.flag("use_bias", False)
    return replace(config, style=Style(qkv_bias=bias, output_bias=bias, mlp_bias=bias, interleaved=True))
