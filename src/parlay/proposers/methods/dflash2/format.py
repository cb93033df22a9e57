"""DFlash2's checkpoints: names of tensors and detection. What is common to block drafters is not repeated here.

The layout of its authors (github.com/z-lab/dflash) and that of the `speculators` library.
"""

from collections.abc import Mapping
from typing import Any

from parlay.checkpoints.files import class_names

CONVOLUTIONS = ("attention_conv", "mlp_conv")  # of a layer: around attention, and around the feed-forward network
BASE, PROJECTION = "base_kernel", "kernel_projection.weight"  # of a convolution
_SELECTOR = "candidate_selector."
BEFORE, AFTER = f"{_SELECTOR}predecessor_codebook", f"{_SELECTOR}successor_codebook"  # entries of tokens
HIDDEN = f"{_SELECTOR}hidden_projection.weight"

# Keys of the config.
TAPS, GROUP, RANK, CANDIDATES = "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"

_CLASSES = ("dflash2draftmodel", "dflash2speculator")


def matches(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a checkpoint is such a head."""
    return any(name.lower() in _CLASSES for name in class_names(config))
