"""PARD's checkpoints: language models as any other, whose config names the token that stands for those not known yet.

Source of the keys: github.com/AMD-AGI/PARD, and vLLM's `parallel_drafting`.
"""

from collections.abc import Mapping
from typing import Any

from parlay.checkpoints.files import class_names

ALSO = "draft_model"  # vLLM's method for such a checkpoint, with `parallel_drafting`
MASKS = ("ptd_token_id", "pard_token")  # keys of the config that name the token
KIND, KINDS = "spd_type", ("pard", None)  # what it was trained as

_HEADS = ("draft_vocab_size", "eagle_config", "dflash_config", "mask_hidden")  # keys of what is no model by itself


def matches(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a checkpoint is such a model."""
    named = any(config.get(key) is not None for key in MASKS)
    head = any("eagle" in name.lower() for name in class_names(config)) or any(key in config for key in _HEADS)
    return named and not head
