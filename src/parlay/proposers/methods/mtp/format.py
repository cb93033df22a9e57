"""Files that hold a model's MTP layer alone, as llama.cpp's `mtp-*.gguf`: detection.

Names of tensors are those of `parlay.models.mtp`.
"""

from collections.abc import Mapping
from typing import Any

_JOINS = (".eh_proj.weight", "mtp.fc.weight", ".mtp_linear_proj.0.weight", ".mtp_layers.0.input_proj.weight")
_TRUNK = (".layers.0.mlp.down_proj.weight", "blk.0.attn_norm.weight", ".layers.0.input_layernorm.weight")


def matches(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a checkpoint is such a layer without the rest of its model."""
    trunk = any(name.endswith(_TRUNK) and not name.removeprefix("model.").startswith("mtp.") for name in shapes)
    return not trunk and any(name.endswith(_JOINS) for name in shapes)
