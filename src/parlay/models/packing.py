"""What a `config.json` says of quantised layers; imports no torch, for the server's front reads configs too."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parlay.errors import ModelError, shown


@dataclass(frozen=True, slots=True)
class Packing:
    """What a config says of its quantised layers.

    Attributes:
        path: of the model, for errors.
        method: "awq" or "gptq".
        bits: an integer.
        shift: what is to be added to zero points.
    """

    path: Path
    method: str
    bits: int
    shift: int


def read_packing(path: Path, raw: Mapping[str, Any]) -> Packing | None:
    """Return how a model's linear layers are quantised, or None if they are not.

    Args:
        path: of the model.
        raw: its `config.json`.

    Raises:
        ModelError: in a way that is not served.
    """
    config = raw.get("quantization_config")
    if not config:
        return None
    if not isinstance(config, dict):
        raise ModelError(f"{path}: quantization_config must be a mapping, not {shown(config)}")
    method = config.get("quant_method")
    if method not in ("awq", "gptq"):
        raise ModelError(
            f"{path} holds weights quantised by {shown(method)}, which is not served; awq, gptq and GGUF files are"
        )
    served: dict[str, tuple[Any, ...]] = {"bits": (4,), "version": (None, "gemm")}
    if method == "gptq":
        served = {"bits": (4, 8), "checkpoint_format": (None, "gptq", "gptq_v2")}
    for key, values in served.items():
        value = config.get(key)
        if (value.lower() if isinstance(value, str) else value) not in values or isinstance(value, bool):
            choices = " or ".join(str(v) for v in values if v is not None)
            raise ModelError(
                f"{path}: quantization_config has {key}={shown(value)}; {method} is served with {key}={choices}"
            )
    shift = int(method == "gptq" and config.get("checkpoint_format") != "gptq_v2")
    return Packing(path, method, config["bits"], shift)
