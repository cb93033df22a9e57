"""Gemma 2 (Gemma team 2024, arXiv 2408.00118).

A decoder with norms before and after attention and MLP, weights of norms stored less one, scaled embeddings,
GELU-gated MLP, soft-capped scores and logits, and a window of keys in every other layer.
"""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.style import Style


def describe(config: ModelConfig) -> ModelConfig:
    config.only(attention_bias=False, mlp_bias=False)
    style = replace(
        base_style(config),
        score_cap=cap(config, "attn_logit_softcapping", 50.0),
        logit_cap=cap(config, "final_logit_softcapping", 30.0),
        windows=config.windows(lambda layer: layer % 2 == 0, default=4096),
    )
    return replace(config, style=style, tie_embeddings=config.flag("tie_word_embeddings", True))


def base_style(config: ModelConfig) -> Style:
    """Return what Gemma 2 and 3 have in common."""
    # Some files carry hidden_act="gelu" from before the name of the tanh form; hidden_activation is what counts.
    key = "hidden_activation" if config.raw.get("hidden_activation") else "hidden_act"
    config.only(**{key: "gelu_pytorch_tanh"})
    if config.raw.get("use_bidirectional_attention"):
        config.only(use_bidirectional_attention=False)
    return Style(
        activation="gelu_tanh",
        plus_one=True,
        post_norms=True,
        embedding_scale=config.hidden_size**0.5,
        score_scale=config.number("query_pre_attn_scalar", 256) ** -0.5,
    )


def cap(config: ModelConfig, key: str, default: float | None) -> float:
    """Return a bound for soft-capping, 0 where the config has null."""
    return 0.0 if config.raw.get(key, default) is None else config.number(key, default)
