"""What a checkpoint is for: told from its config and the names and shapes of its tensors.

Heads of one kind come in several layouts, some under the name of an ordinary language model's class, so the order of
the questions matters. What a config says outright comes first.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parlay.errors import ModelError
from parlay.models.config import read_json

_Shapes = Mapping[str, tuple[int, ...]]

# By what an architecture or model type has in it, in small letters; the first that fits counts.
_NAMES = {
    "dflash": "dflash",
    "dspark": "dspark",
    "arcticmlp": "arctic",
    "arcticlstm": "arctic",
    "mlpvariantspeculator": "arctic",
    "mlpspeculator": "mlp_speculator",
    "mlp_speculator": "mlp_speculator",
    "medusa": "medusa",
    "eagle3": "eagle3",
}
_LANGUAGE_MODEL = re.compile(r"\w+(ForCausalLM|LMHeadModel)")


def detect(path: Path) -> str | None:
    """Return the speculative method that a checkpoint is for, or None if nothing tells.

    Methods that parlay does not know are returned too: what cannot be served can still be named. Files that cannot be
    read tell nothing; whoever needs them will say why.

    Args:
        path: a model's directory or GGUF file.
    """
    if path.is_file():
        return "draft_model" if _may_be_gguf(path) else None
    try:
        raw = read_json(path / "config.json")
    except ModelError:
        raw = {}
    said = announced(raw)
    if said is not None:
        return said
    from parlay.models.loader import Checkpoint  # with torch, which what a config says does without

    try:
        with Checkpoint(path, head=True) as weights:
            shapes = {name: weights.shape(name) for name in weights.names}
    except ModelError:
        return None  # heads may have an ordinary language model's class, so that alone tells nothing
    by_tensors = _by_tensors(shapes)
    if by_tensors is not None:
        return by_tensors
    return "draft_model" if any(_LANGUAGE_MODEL.fullmatch(name) for name in _class_names(raw)) else None


def is_head(path: Path) -> bool:
    """Whether a checkpoint guesses for a model and is none itself."""
    return detect(path) not in (None, "draft_model")


def _may_be_gguf(file: Path) -> bool:
    if file.suffix.lower() == ".gguf":
        return True
    try:
        with file.open("rb") as opened:
            return opened.read(4) == b"GGUF"
    except OSError:
        return True  # whoever reads it will say why it cannot be


def announced(raw: Mapping[str, Any]) -> str | None:
    """Return what a config says that the checkpoint is."""
    inner = raw.get("speculators_config")
    algorithm = raw.get("speculators_model_type") or (inner.get("algorithm") if isinstance(inner, dict) else None)
    if isinstance(algorithm, str):
        return algorithm
    for name in _class_names(raw):
        for part, method in _NAMES.items():
            if part in name.lower():
                return method
    return "medusa" if "medusa_num_heads" in raw else None


def _by_tensors(shapes: _Shapes) -> str | None:
    from parlay.proposers.medusa import read_layout

    if _is_eagle3(shapes):
        return "eagle3"
    fused = shapes.get("fc.weight", ())
    if len(fused) == 2 and fused[1] == 2 * fused[0] and "layers.0.self_attn.q_proj.weight" in shapes:
        return "eagle"
    if read_layout(list(shapes)) is not None:
        return "medusa"
    names = {name.removeprefix("speculator.") for name in shapes}
    if {"emb.0.weight", "proj.0.weight"} <= names:
        return "mlp_speculator"
    return "arctic" if names & {"forget_proj.0.weight", "emb.0.0.weight"} else None


def _is_eagle3(shapes: _Shapes) -> bool:
    """Whether a layer reads a token's embedding beside a state, twice the width that it writes."""
    for layer in ("midlayer.", "layers.0."):
        query = shapes.get(f"{layer}self_attn.q_proj.weight", ())
        output = shapes.get(f"{layer}self_attn.o_proj.weight", ())
        if len(query) == 2 and len(output) == 2 and query[1] == 2 * output[0]:
            return True
    return "d2t" in shapes


def _class_names(raw: Mapping[str, Any]) -> list[str]:
    """Return the names that a config gives its model: of classes, and of its type."""
    named = raw.get("architectures")
    names = [*(named if isinstance(named, list) else []), raw.get("model_type")]
    return [name for name in names if isinstance(name, str)]
