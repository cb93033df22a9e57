"""MLP speculators' checkpoints: names of tensors and keys of the config, for serving, training and detection.

IBM's layout (huggingface.co/ibm-ai-platform, accelerators).
"""

from collections.abc import Mapping
from typing import Any

from parlay.checkpoints.files import class_names

ARCHITECTURE, MODEL_TYPE = "MLPSpeculatorPreTrainedModel", "mlp_speculator"
PREFIX = "speculator."  # of all names, which some exporters leave out


def tensor(part: str, index: int, kind: str = "weight") -> str:
    """Return the name of a node's tensor, less the prefix: `part` is emb, proj, ln or head."""
    return f"{part}.{index}.{kind}"


def matches(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a checkpoint is such a speculator."""
    names = [name.lower() for name in class_names(config)]
    if any("mlpspeculator" in name or MODEL_TYPE in name for name in names):
        return True
    return {tensor("emb", 0), tensor("proj", 0)} <= {name.removeprefix(PREFIX) for name in shapes}
