"""What the tensors of a text model are called in a multimodal checkpoint."""

from collections.abc import Iterable
from pathlib import Path

from parlay.errors import ModelError

# Prefixes of the text model's tensors in a multimodal checkpoint, of several versions of transformers; then the names
# that its output layer may have.
_TOWERS = ("model.language_model.", "language_model.model.", "model.text_model.", "thinker.model.", "model.")
_TOWER_HEADS = ("lm_head.weight", "language_model.lm_head.weight", "thinker.lm_head.weight")


def tower_names(path: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the names in the files of a text model's tensors, by those that it has alone.

    Raises:
        ModelError: there is no text model among them.
    """
    for prefix in _TOWERS:
        if any(name.startswith(f"{prefix}layers.") for name in names):
            heads = {"lm_head.weight": name for name in names if name in _TOWER_HEADS}  # noqa: B035
            return heads | {f"model.{name.removeprefix(prefix)}": name for name in names if name.startswith(prefix)}
    raise ModelError(f"{path}: no tensor of its text model is there; names begin with {', '.join(_TOWERS)}")
