"""Apertus 8B and 70B (Apertus team 2025, arXiv 2509.14233): norms of queries and keys, xIELU, and no gate."""

from dataclasses import replace
from typing import Any

from parlay.models.config import ModelConfig
from parlay.models.style import Style

_NAMES = {
    "input_layernorm.weight": "attention_layernorm.weight",
    "post_attention_layernorm.weight": "feedforward_layernorm.weight",
}
_ROTARY = {
    "rope_type": "llama3",
    "rope_theta": 12e6,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


def DEFAULTS(raw: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 - a name that the loader looks for
    """Return what a config means that says nothing of the rotary embedding, or what norms add."""
    rotary = {} if {"rope_theta", "rope_scaling"} & raw.keys() else {"rope_parameters": _ROTARY}
    return {"rms_norm_eps": 1e-5, **rotary}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="xielu", mlp_bias=False, qk_norm=True, post_norm=False)
    style = Style(gated=False, xielu=True, head_norms=True, **config.attention_biases())
    return replace(config, style=style, renamed=config.in_layers(_NAMES))
