"""HyperCLOVA X SEED Think (NAVER 2025): Granite 3 with norms behind attention and MLP, and a factor on logits."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.families import granite

_NAMES = {
    "post_attention_layernorm.weight": "post_norm1.weight",
    "pre_feedforward_layernorm.weight": "post_attention_layernorm.weight",
    "post_feedforward_layernorm.weight": "post_norm2.weight",
}


def describe(config: ModelConfig) -> ModelConfig:
    # Null means the default.
    given = replace(config, raw={key: value for key, value in config.raw.items() if value is not None})
    style, post = granite.describe(given).style, given.flag("use_post_norm", True)
    style = replace(
        style,
        score_scale=style.score_scale if "attention_multiplier" in given.raw else None,
        logit_divisor=1 / style.logit_divisor,  # Granite's `logits_scaling` divides, this one multiplies
        post_norms=post,
    )
    return replace(config, style=style, renamed=config.in_layers(_NAMES) if post else {})
