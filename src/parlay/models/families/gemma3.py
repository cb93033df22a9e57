"""Gemma 3, text only (Gemma team 2025, arXiv 2503.19786).

Gemma 2 with normalised queries and keys instead of soft-capping, a window of keys in five of six layers, and in
those a rotary embedding of their own.
"""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.families.gemma2 import base_style, cap
from parlay.models.rope import read_rotary
from parlay.models.style import Rotary

# What the configs of 4B and larger leave out.
DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh",
}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(attention_bias=False, mlp_bias=False)
    raw = config.raw
    period = config.count("sliding_window_pattern", 6)
    parameters = raw.get("rope_parameters") or {}
    rotary = config.rotary
    if "sliding_attention" in parameters:
        local = read_rotary(config.path, raw, "sliding_attention")
    else:
        local = Rotary(theta=config.number("rope_local_base_freq", 10000.0))
        rotary = replace(rotary, theta=config.number("rope_theta", 1e6))
    style = replace(
        base_style(config),
        head_norms=True,
        score_cap=cap(config, "attn_logit_softcapping", None),
        logit_cap=cap(config, "final_logit_softcapping", None),
        windows=config.windows(lambda layer: (layer + 1) % period != 0, default=4096),
        local_rotary=local,
    )
    return replace(
        config,
        style=style,
        rotary=rotary,
        max_position=config.count("max_position_embeddings", 131072),
        tie_embeddings=config.flag("tie_word_embeddings", True),
    )
