"""Gemma 4 12B, text: a `Gemma4` by another name, whose towers are other ones."""

from parlay.models.families import gemma4
from parlay.models.families.gemma4 import describe

__all__ = ["DEFAULTS", "describe"]

DEFAULTS = gemma4.DEFAULTS | {
    "hidden_size_per_layer_input": 0,
    "max_position_embeddings": 262144,
    "sliding_window": 1024,
}
