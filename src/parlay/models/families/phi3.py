"""Phi-3, Phi-3.5 and Phi-4 with their `mini` forms (Abdin et al. 2024, arXiv 2404.14219 and 2412.08905).

A Llama whose projections are stored fused, with partial rotary embedding, `longrope` scaling and a window of keys
where the config says so.
"""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.style import Style


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu", attention_bias=False, mlp_bias=False)
    return replace(config, style=Style(fused_qkv=True, fused_mlp=True, windows=config.windows(lambda layer: True)))
