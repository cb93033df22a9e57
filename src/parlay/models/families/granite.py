"""Granite 3 (Granite team 2024, "Granite 3.0 language models"): a Llama with four multipliers.

They are those of Yang et al. 2022 (arXiv 2203.03466): on embeddings, attention's scores, what joins the residual
stream, and, as a divisor, on logits.
"""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.style import Style


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu")
    bias = config.flag("attention_bias", False)
    style = Style(
        qkv_bias=config.flag("qkv_bias", bias),
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        embedding_scale=config.number("embedding_multiplier", 1.0),
        score_scale=config.number("attention_multiplier", 1.0),
        residual_scale=config.number("residual_multiplier", 1.0),
        logit_divisor=config.number("logits_scaling", 1.0),
    )
    return replace(config, style=style)
