"""InternLM3 (Shanghai AI Laboratory 2025): a Llama whose biases have other keys."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.families import llama

DEFAULTS = {"num_key_value_heads": 2}


def describe(config: ModelConfig) -> ModelConfig:
    bias = config.flag("bias", config.flag("mlp_bias", False))
    attention = {"attention_bias": bias, "qkv_bias": config.flag("qkv_bias", config.flag("attention_bias", False))}
    return llama.describe(replace(config, raw={**config.raw, **attention, "mlp_bias": bias}))
