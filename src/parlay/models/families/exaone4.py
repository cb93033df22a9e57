"""EXAONE 4 (LG AI Research 2025, arXiv 2507.11407): norms behind attention and the feed-forward network alone.

Queries and keys are normalised by head. Where some layers have a window, the others have no rotary embedding.
"""

from collections.abc import Callable
from dataclasses import replace

from parlay.checkpoints.files import config_file
from parlay.errors import ModelError, shown
from parlay.models.config import ModelConfig
from parlay.models.style import Style


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu")
    windows: tuple[int, ...] = ()
    if config.raw.get("sliding_window", 0) is not None:
        windows = config.windows(_sliding(config), default=4096)
    style = Style(
        head_norms=True,
        pre_norms=False,
        post_norms=True,
        windows=windows,
        nope=tuple(not window for window in windows),
    )
    return replace(config, style=style)


def _sliding(config: ModelConfig) -> Callable[[int], bool]:
    """Return which layers have a window: all but every n-th, or as letters say, L or G, again and again.

    Raises:
        ModelError: it is neither a number nor such letters.
    """
    pattern = config.raw.get("sliding_window_pattern")
    if not isinstance(pattern, str):
        period = config.count("sliding_window_pattern", 4)
        return lambda layer: (layer + 1) % period != 0
    if not pattern or {*pattern} - {"L", "G"}:
        raise ModelError(
            f"{config_file(config.path)}: sliding_window_pattern must be a number or letters L and G, not "
            f"{shown(pattern)}"
        )
    return lambda layer: pattern[layer % len(pattern)] == "L" and layer < config.num_layers - 1
