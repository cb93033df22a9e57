"""What a checkpoint is for, detected from its config and the names and shapes of its tensors.

Heads of one kind come in several layouts, some under the class name of an ordinary language model. What a config
states comes first. Each method that reads heads has a `proposers/methods/*/format.py`, which imports no torch. Its
`matches(config, shapes)` gets a `config.json` and tensors' shapes, which are empty while only the config is read.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parlay.checkpoints.files import class_names, read_json
from parlay.errors import ModelError
from parlay.registry import Registry

# Heads that are not supported, by a lower-case part of their architecture or model type; the first match counts.
_OTHERS = {
    "arcticmlp": "arctic",
    "arcticlstm": "arctic",
    "mlpvariantspeculator": "arctic",
}
formats = Registry("parlay.proposers.methods", "format of draft heads", "format", needs=("matches",), files=False)
_LANGUAGE_MODEL = re.compile(r"\w+(ForCausalLM|LMHeadModel)")
DRAFT_MODEL = "draft_model"  # the method that any language model is for


def detect(path: Path) -> str | None:
    """Return the speculative method that a checkpoint is for, or None if it cannot be detected.

    Methods that parlay does not know are returned too, so that messages can name them. Files that cannot be read
    count as unknown; the code that loads them reports why.

    Args:
        path: a model's directory or GGUF file.
    """
    if path.is_file():
        return (_of_gguf(path) or DRAFT_MODEL) if _may_be_gguf(path) else None
    try:
        raw = read_json(path / "config.json")
    except ModelError:
        raw = {}
    method = announced(raw)
    if method is not None:
        return method
    from parlay.checkpoints.loader import Checkpoint  # imports torch, which configs alone do not need

    try:
        with Checkpoint(path, head=True) as weights:
            shapes = {name: weights.shape(name) for name in weights.names}
    except ModelError:
        return None  # heads may have an ordinary language model's class, so that alone tells nothing
    by_tensors = _matching(raw, shapes)
    if by_tensors is None and {"forget_proj.0.weight", "emb.0.0.weight"} & {_bare(name) for name in shapes}:
        by_tensors = "arctic"
    if by_tensors is not None:
        return by_tensors
    return DRAFT_MODEL if any(_LANGUAGE_MODEL.fullmatch(name) for name in class_names(raw)) else None


def is_head(path: Path) -> bool:
    """Whether a checkpoint is a head or draft model for another model."""
    return detect(path) not in (None, DRAFT_MODEL)


def _may_be_gguf(file: Path) -> bool:
    if file.suffix.lower() == ".gguf":
        return True
    try:
        with file.open("rb") as opened:
            return opened.read(4) == b"GGUF"
    except OSError:
        return True  # the code that reads it reports why it cannot


def _of_gguf(path: Path) -> str | None:
    from parlay.checkpoints.gguf.drafters import drafter_class, is_drafter
    from parlay.checkpoints.gguf.reader import GGUFFile

    try:
        with GGUFFile(path) as file:
            if is_drafter(file):
                return announced({"architectures": [drafter_class(file)]})
            return _matching({}, {name: tuple(stored.shape) for name, stored in file.tensors.items()})
    except ModelError:
        return None


def announced(raw: Mapping[str, Any]) -> str | None:
    """Return the method that a config states."""
    inner = raw.get("speculators_config")
    algorithm = raw.get("speculators_model_type") or (inner.get("algorithm") if isinstance(inner, dict) else None)
    if isinstance(algorithm, str):
        return algorithm
    for name in class_names(raw):
        for part, method in _OTHERS.items():
            if part in name.lower():
                return method
    return _matching(raw, {})


def _matching(raw: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return the first format that a checkpoint matches, by name."""
    return next((name for name in formats.names() if formats.load(name).matches(raw, shapes)), None)


def _bare(name: str) -> str:
    return name.removeprefix("speculator.")
