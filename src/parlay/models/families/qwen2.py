"""Qwen2 and Qwen2.5 (Yang et al. 2024, arXiv 2407.10671 and 2412.15115): a Llama with biases on qkv.

The last layers may see a window of keys.
"""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.style import Style


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu", attention_bias=True, mlp_bias=False)
    return replace(config, style=Style(qkv_bias=True, windows=last_windows(config)))


def last_windows(config: ModelConfig) -> tuple[int, ...]:
    """Return the layers' windows: with `use_sliding_window`, those from `max_window_layers` on have one."""
    if not config.flag("use_sliding_window", False):
        return ()
    full = config.raw.get("max_window_layers", 28)
    if not isinstance(full, int) or full < 0:
        config.count("max_window_layers", None)
    return config.windows(lambda layer: layer >= full, default=4096)
