"""EXAONE 4 (LG AI Research 2025, arXiv 2507.11407): norms behind attention and the feed-forward network alone.

Queries and keys are normalised by head. Where some layers have a window, the others have no rotary embedding.
"""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.style import Style


def describe(config: ModelConfig) -> ModelConfig:
    """Return the config with the family's style.

    Raises:
        ModelError: an option that is not served.
    """
    config.only(hidden_act="silu")
    windows: tuple[int, ...] = ()
    if config.raw.get("sliding_window", 0) is not None:
        period = config.count("sliding_window_pattern", 4)
        windows = config.windows(lambda layer: (layer + 1) % period != 0, default=4096)
    style = Style(
        head_norms=True,
        pre_norms=False,
        post_norms=True,
        windows=windows,
        unrotated=tuple(not window for window in windows),
    )
    return replace(config, style=style)
