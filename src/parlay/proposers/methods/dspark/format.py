"""DSpark's checkpoints: names of tensors and detection. What is common to block drafters is not repeated here.

The layout of its authors (`Qwen3DSparkModel`, also for LFM2, and `Gemma4DSparkModel`, whose layers are Gemma 4's) and
that of the `speculators` library.
"""

from collections.abc import Mapping
from typing import Any

from parlay.checkpoints.files import class_names

_PREFIX = "markov_head."
BEFORE, BIAS = f"{_PREFIX}markov_w1.weight", f"{_PREFIX}markov_w2.weight"  # of the token before; to logits
GATE, JOINT = f"{_PREFIX}gate_proj", f"{_PREFIX}joint_proj"  # layers of the kinds "gated" and "rnn"
CONFIDENCE, CONFIDENCE_BIAS = "confidence_head.proj.weight", "confidence_head.proj.bias"

# Keys of the config.
RANK, KIND = "markov_rank", "markov_head_type"

# Heads whose layers are another family's than Qwen3's, with what is true of them whatever their target's config says.
FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gemma4dsparkmodel": ("gemma4", {"num_kv_shared_layers": 0}),
}

ARCHITECTURE = "Qwen3DSparkModel"
_CLASSES = (ARCHITECTURE.lower(), "dsparkdraftmodel", "dsparkspeculator", "lfm2dsparkdraftmodel")


def matches(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a checkpoint is such a head."""
    return any(name.lower() in (*_CLASSES, *FAMILIES) for name in class_names(config))
