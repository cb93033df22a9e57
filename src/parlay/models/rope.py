"""Reading the rotary embedding out of a config: the kinds of scaling, their keys and where files keep them."""

import math
from pathlib import Path
from typing import Any

from parlay.checkpoints.files import config_file
from parlay.errors import ModelError, brief, shown
from parlay.models.style import Rotary

_ORIGINAL = "original_max_position_embeddings"
_ZERO_IS_NONE = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")  # as in transformers
_BASE = ("rope_theta", "partial_rotary_factor")  # keys that every kind of scaling has
# Kinds of scaling, the numbers that each needs, and those that it may have.
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "proportional": ((), ("factor",)),
    "linear": (("factor",), ()),
    "dynamic": (("factor", _ORIGINAL), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL), ()),
    "yarn": (
        ("factor", _ORIGINAL),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "longrope": ((_ORIGINAL,), ("factor", "attention_factor")),
}


def read_rotary(path: Path, raw: dict[str, Any], layers: str = "full_attention") -> Rotary:
    """Return the rotary embedding that a config describes.

    Args:
        path: the model directory, for messages.
        raw: the config's content.
        layers: the kind of layers to read, where the config tells kinds apart.

    Raises:
        ModelError: a kind of scaling that is not supported, or keys that are missing or no numbers above 0.
    """
    try:
        return _read(path, raw, layers)
    except KeyError as error:
        raise ModelError(f"{config_file(path)} lacks the key {error} for its rotary embedding") from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ModelError(f"{config_file(path)}: the rotary embedding cannot be read: {brief(str(error))}") from None


def _read(path: Path, raw: dict[str, Any], layers: str) -> Rotary:
    scaling = _scaling(path, raw, layers)
    theta = float(scaling.pop("rope_theta", None) or raw.get("rope_theta") or 10000.0)
    kind = str(scaling.pop("rope_type", None) or scaling.pop("type", None) or "default")
    # Older names; of `mrope`, whose positions have three coordinates, a text's are alike.
    kind = {"su": "longrope", "mrope": "default"}.get(kind, kind)
    if kind not in KINDS:
        raise ModelError(f"{path}: rope_type {shown(kind)} is not supported; {', '.join(KINDS)} are")
    partial = scaling.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0
    needed, optional = KINDS[kind]
    if _ORIGINAL in needed and kind != "llama3":
        # These scale the context that the model was trained on, which some files give beside the scaling, or only
        # as the length of the whole.
        longest = raw.get("max_position_embeddings", 2048)
        scaling[_ORIGINAL] = longest if kind == "dynamic" else scaling.get(_ORIGINAL, raw.get(_ORIGINAL, longest))
    numbers = {key: scaling[key] for key in needed}
    given = {key: scaling[key] for key in optional if scaling.get(key) is not None}
    numbers |= {key: value for key, value in given.items() if value != 0 or key not in _ZERO_IS_NONE}
    if kind == "longrope":
        numbers.setdefault("factor", float(raw.get("max_position_embeddings", 2048)) / float(numbers[_ORIGINAL]))
    for key, value in {**numbers, "partial_rotary_factor": partial}.items():
        if not isinstance(value, int | float) or not (0 < value < math.inf or value is False):
            raise ModelError(f"{config_file(path)}: {key} must be a number above 0 and finite, not {shown(value)}")
    if partial > 1:
        raise ModelError(f"{config_file(path)}: partial_rotary_factor must be at most 1, not {shown(partial)}")
    lists = {key: _factors(path, scaling, key) for key in ("short_factor", "long_factor") if kind == "longrope"}
    return Rotary(
        theta=theta,
        kind=kind,
        scaling={key: float(value) for key, value in numbers.items()},
        partial=float(partial),
        short_factor=lists.get("short_factor", ()),
        long_factor=lists.get("long_factor", ()),
    )


def _scaling(path: Path, raw: dict[str, Any], layers: str) -> dict[str, Any]:
    """Return the keys of the scaling of some layers.

    transformers 5 writes `rope_parameters`; earlier files have `rope_theta` beside `rope_scaling`. Where a file has
    both, somebody added a `rope_scaling`, as model cards say: it counts, as in transformers, for layers that see
    everything.
    """
    added, own = raw.get("rope_scaling") or {}, raw.get("rope_parameters") or {}
    for scaling in (added, own):
        if not isinstance(scaling, dict):
            raise ModelError(f"{config_file(path)}: rope_scaling must be an object, not {shown(scaling)}")
    added, own = (one[layers] if isinstance(one.get(layers), dict) else one for one in (added, own))
    if not added or not own or layers != "full_attention":
        return dict(own or added)
    # What a scaling does not name, such as the frequencies' base, stays as it was.
    return {**{key: own[key] for key in _BASE if own.get(key) is not None}, **added}


def longest(rotary: Rotary, positions: int) -> int:
    """Return the longest context that a model is good for, `positions` being `max_position_embeddings`."""
    if rotary.kind in ("linear", "dynamic"):
        return int(positions * rotary.scaling["factor"])
    if rotary.kind == "yarn":
        return max(positions, int(rotary.scaling[_ORIGINAL] * rotary.scaling["factor"]))
    return positions


def _factors(path: Path, scaling: dict[str, Any], key: str) -> tuple[float, ...]:
    values = scaling[key]
    if not isinstance(values, list) or not all(isinstance(v, int | float) and 0 < v < math.inf for v in values):
        raise ModelError(f"{config_file(path)}: {key} must list numbers above 0")
    return tuple(map(float, values))
