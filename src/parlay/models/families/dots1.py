"""dots.llm1, 142B-A14B (rednote 2025, arXiv 2506.05767): Qwen3's attention, and DeepSeek-V3's experts."""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.families import glm4moe
from parlay.models.style import Style

DEFAULTS = {"first_k_dense_replace": 0, "norm_topk_prob": False}


def describe(config: ModelConfig) -> ModelConfig:
    config.only(mlp_bias=False)
    first = config.count_or_zero("max_window_layers", 62)
    windows = config.windows(lambda layer: layer >= first, default=4096)
    style = Style(
        **config.attention_biases(),
        head_norms=True,
        windows=windows if any(windows) else (),
        experts=glm4moe.experts(config),
    )
    return replace(config, style=style, renamed=config.in_layers(glm4moe.NAMES))
