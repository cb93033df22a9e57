"""OLMo 2 (OLMo team 2024, arXiv 2501.00656): norms behind attention and the feed-forward network alone.

All heads' queries are normalised together, and all keys.
"""

from dataclasses import replace

from parlay.models.config import ModelConfig
from parlay.models.style import Style


def describe(config: ModelConfig) -> ModelConfig:
    config.only(hidden_act="silu")
    style = Style(**config.attention_biases(), joint_norms=True, pre_norms=False, post_norms=True)
    return replace(config, style=style)
