"""DFlash's checkpoints: detection. Names of tensors and keys of the config are those of all block drafters.

The authors' layout (github.com/z-lab/dflash), that of the `speculators` library, and transformers' assistants.
"""

from collections.abc import Mapping
from typing import Any

from parlay.checkpoints.files import class_names

ARCHITECTURE = "DFlashDraftModel"
_CLASSES = (ARCHITECTURE.lower(), "dflashspeculator", "museglimmerassistantmodel")


def matches(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a checkpoint is such a head."""
    return any(name.lower() in _CLASSES for name in class_names(config))
