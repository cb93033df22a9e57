"""P-EAGLE's checkpoints: detection, and what they have beside an EAGLE-3 head's tensors and keys.

The layout of the `speculators` library.
"""

from collections.abc import Mapping
from typing import Any

from parlay.checkpoints.files import class_names

MASKED = "mask_hidden"  # what stands for the target's states where there are none yet, side by side
# Keys of the config, of which one is there: the token that stands for those not known yet.
MASKS = ("pard_token", "ptd_token_id", "mask_token_id")
ALSO = "eagle3"  # vLLM's method for such a head, with `parallel_drafting`


def matches(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a checkpoint is such a head."""
    return any("peagle" in name.lower() for name in class_names(config))
