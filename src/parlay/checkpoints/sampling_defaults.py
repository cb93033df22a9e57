"""How a model's authors would sample from it: `generation_config.json`, or the metadata of a GGUF file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parlay.checkpoints.files import read_json
from parlay.checkpoints.gguf.reader import GGUFFile
from parlay.checkpoints.short_names import SAMPLING
from parlay.errors import ConfigError, ModelError, RequestError, shown
from parlay.log import logger
from parlay.types.bounds import scalars
from parlay.types.params import SamplingParams

FILE = "generation_config.json"
_IN_GGUF = ("temp", "top_p", "top_k", "min_p", "penalty_repeat")  # after `general.sampling.`


def sampling_defaults(model: Path, source: str = "auto") -> dict[str, Any]:
    """Return sampling parameters for requests that do not give their own.

    Args:
        model: a directory or GGUF file.
        source: `auto` reads what comes with the model; `vllm` or `none` reads nothing, so that parlay's own defaults
            hold; else a directory with a `generation_config.json`.

    Raises:
        ConfigError: the directory has no such file.
        ModelError: the file cannot be read, or has something else than numbers.
    """
    if source in ("vllm", "none"):
        return {}
    if source != "auto":
        file = Path(source) / FILE
        if not file.is_file():
            raise ConfigError(
                f"generation_config={shown(source)}: {file} does not exist; give auto, vllm or a directory with one"
            )
        return usable(read_json(file), file)
    if model.is_file():
        with GGUFFile(model) as gguf:
            return usable(stated_in_gguf(gguf), model)
    file = model / FILE
    return usable(read_json(file), file) if file.is_file() else {}


def stated_in_gguf(file: GGUFFile) -> dict[str, float]:
    """Return the sampling parameters that a GGUF file has."""
    keys = {name: f"general.sampling.{key}" for name, key in zip(SAMPLING, _IN_GGUF, strict=True)}
    return {name: file.value(key) for name, key in keys.items() if key in file}


def usable(values: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return the parameters as a request could give them, so that a file's odd ones fail no request."""
    found = {name: values[name] for name in SAMPLING if values.get(name) is not None}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{file} has {name}={shown(value)}, which must be a number; mend it, or give "
                             "generation_config='vllm'")  # fmt: skip
    if found.get("top_p") == 0:  # the most likely token alone
        del found["top_p"]
        found["top_k"] = 1
    bounds = scalars(SamplingParams)
    for name, value in list(found.items()):
        if bounds[name].kind is int and isinstance(value, float) and value.is_integer():
            found[name] = int(value)
        try:
            bounds[name].check(name, found[name])
        except RequestError as error:
            logger.warning("%s has %s=%s, which is left out: %s", file, name, shown(value), error)
            del found[name]
    return found
