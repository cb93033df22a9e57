"""Command R7B and Command A (Cohere 2024 and 2025, arXiv 2504.00698).

Attention and the feed-forward network read the same layer norm. Layers with a window turn neighbouring columns, the
others turn nothing.
"""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.style import Style


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu", use_qk_norm=False)
    period = config.count("sliding_window_pattern", 4)
    windows = config.windows(lambda layer: (layer + 1) % period != 0, default=4096) or (0,) * config.num_layers
    style = Style(
        **config.attention_biases(),
        layer_norms=True,
        parallel=True,
        windows=windows,
        nope=tuple(not window for window in windows),
        interleaved=True,
        logit_divisor=1 / config.number("logit_scale", 0.0625),
    )
    return replace(
        config,
        style=style,
        rms_norm_eps=config.number("layer_norm_eps", 1e-5),
        tie_embeddings=config.flag("tie_word_embeddings", True),
    )
