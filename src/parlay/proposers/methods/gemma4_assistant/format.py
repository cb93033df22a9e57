"""Checkpoints of Gemma 4's assistants: names of tensors and detection; GGUF files are read under the same names.

Source: transformers' `Gemma4AssistantForCausalLM`; llama.cpp's `gemma4-assistant`.
"""

from collections.abc import Mapping
from typing import Any

from parlay.checkpoints.files import class_names

ALSO = "mtp"  # what vLLM calls the method of such a checkpoint
ENTER, LEAVE = "pre_projection.weight", "post_projection.weight"
EMBEDDING, OUTPUT, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
LAYER = "model.layers.{}."
CENTROIDS, ORDER = "masked_embedding.centroids.weight", "masked_embedding.token_ordering"
# Keys and values of its layers, which nothing computes, and what llama.cpp reads past in GGUF files.
UNUSED = (
    ".k_proj.weight",
    ".v_proj.weight",
    ".k_norm.weight",
    "masked_embd_centroids.weight",
    "masked_embd_ordering",
)
_IN_GGUF = {"nextn." + ENTER, "nextn." + LEAVE}


def matches(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a checkpoint is an assistant."""
    names = [name.lower() for name in class_names(config)]
    return any("gemma4" in name and "assistant" in name for name in names) or any(
        joins <= shapes.keys() for joins in ({ENTER, LEAVE}, _IN_GGUF)
    )
