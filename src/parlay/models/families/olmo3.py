"""OLMo 3 (OLMo team 2025, arXiv 2512.13961): an OLMo 2 with a window in three of four layers.

The scaling of the rotary embedding is that of the other layers alone.
"""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.families import olmo2
from parlay.models.rope import read_rotary
from parlay.models.style import Rotary


def describe(config: ModelConfig) -> ModelConfig:
    described = olmo2.describe(config)
    local = Rotary(theta=config.rotary.theta)
    if "sliding_attention" in (config.raw.get("rope_parameters") or {}):
        local = read_rotary(config.path, config.raw, "sliding_attention")
    windows = config.windows(lambda layer: (layer + 1) % 4 != 0, default=4096)
    return replace(described, style=replace(described.style, windows=windows, local_rotary=local))
