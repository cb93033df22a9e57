"""EAGLE's checkpoints: names of tensors and keys of the config, for serving, training and detection.

The authors' layout (github.com/SafeAILab/EAGLE, versions 1 and 2).
"""

from collections.abc import Mapping
from typing import Any

ARCHITECTURE = "LlamaForCausalLM"  # the authors' value, which does not identify the method
EMBEDDING = "embed_tokens.weight"  # its own, unless the target's is borrowed
JOIN, JOIN_BIAS = "fc.weight", "fc.bias"  # joins a token's embedding and the state before it
AFTER = "post_attention_layernorm.weight"
BEFORE = "input_layernorm.weight"  # of all layers but the first


def layer(index: int) -> str:
    """Return what the names of a layer's tensors begin with."""
    return f"layers.{index}."


def matches(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a checkpoint is such a head: its config does not say so, so shapes decide."""
    joined, query = shapes.get(JOIN, ()), shapes.get(f"{layer(0)}self_attn.q_proj.weight", ())
    # EAGLE-3's first layer reads twice the width.
    return len(joined) == len(query) == 2 and joined[1] == 2 * joined[0] and query[1] != 2 * joined[0]
