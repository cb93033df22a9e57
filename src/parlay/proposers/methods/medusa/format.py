"""Medusa's checkpoints: names of tensors and keys of the config, for serving, training and detection.

The authors' layout (github.com/FasterDecoding/Medusa) and vLLM's.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parlay.checkpoints.files import class_names

ARCHITECTURE, MODEL_TYPE = "MedusaModel", "medusa"
FILE = "medusa_lm_head.safetensors"
HEADS, LAYERS, BIASED = "medusa_num_heads", "medusa_num_layers", "medusa_fc_bias"  # keys of the config
MAP = "token_map"
# The authors' names: head.layer, output layers after the blocks'. Theirs and vLLM's may have a module's prefix.
_OURS = re.compile(r"(medusa_head\.)?(\d{1,6})\.(\d{1,6})\.linear\.weight")
_VLLMS = re.compile(r"(medusa_heads\.)?blocks\.(\d{1,6})\.layers\.(\d{1,6})\.weight")


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of tensors, for any form of the file.

    Attributes:
        blocks: names of the blocks' linear layers of each head, less `.weight`.
        outputs: name of the output layer of each head; empty where heads use the target's.
        biased: whether the blocks have biases.
        mapped: whether outputs are a reduced vocabulary, listed in `token_map`.
    """

    blocks: tuple[tuple[str, ...], ...]
    outputs: tuple[str, ...]
    biased: bool
    mapped: bool


def read_layout(names: Sequence[str], one_output: bool = False) -> Layout | None:
    """Return the layout of a file of Medusa heads, or None if it is something else.

    Heads and layers are counted here: configs often give too few heads, and leave out the key for biases.

    Args:
        names: names of the file's tensors.
        one_output: whether the heads share one output layer of their own.
    """
    for pattern in (_OURS, _VLLMS):
        found = [match for match in map(pattern.fullmatch, names) if match]
        if not found:
            continue
        prefix = found[0][1] or ""
        heads, layers = (range(len({int(match[i]) for match in found})) for i in (2, 3))
        if pattern is _OURS:
            blocks = tuple(tuple(prefix + block(i, j) for j in layers) for i in heads)
            outputs = tuple(prefix + output(i, len(layers)) for i in heads)
        else:
            blocks = tuple(tuple(f"{prefix}blocks.{i}.layers.{j}" for j in layers) for i in heads)
            outputs = tuple(f"{prefix}lm_heads.{i}.weight" for i in heads)
            if one_output:
                shared = f"{prefix}lm_head.weight"
                outputs = (shared if shared in names else outputs[0],) * len(heads)
        known = set(names)
        return Layout(
            blocks=blocks,
            outputs=outputs if known & set(outputs) else (),
            biased=any(f"{block}.bias" in known for own in blocks for block in own),
            mapped=MAP in known,
        )
    return None


def block(head: int, layer: int) -> str:
    """Return the authors' name of a block's linear layer, less `.weight`."""
    return f"{head}.{layer}.linear"


def output(head: int, layers: int) -> str:
    """Return the authors' name of the output layer of a head of so many blocks."""
    return f"{head}.{layers}.weight"


def matches(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a checkpoint holds such heads."""
    named = any(MODEL_TYPE in name.lower() for name in class_names(config)) or HEADS in config
    return named or read_layout(list(shapes)) is not None
