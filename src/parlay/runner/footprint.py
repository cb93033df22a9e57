"""How much memory a model's weights will take, known from the headers of its files."""

import json
import math
import struct
from pathlib import Path

import torch

from parlay.errors import ModelError
from parlay.models.config import ModelConfig, read_json
from parlay.models.gguf import GGUFFile

_INDEX = "model.safetensors.index.json"


def weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Return the bytes of a model's weights once they are loaded, reading headers alone.

    What cannot be read counts nothing: the loader will say what is wrong with it. Of files in other formats than
    safetensors and GGUF, the size on disk stands for the size in memory.
    """
    if config.path.is_file():
        numbers = _dequantised(config.path)
    else:
        numbers = sum(_elements(file) for file in _safetensors(config.path))
    if not numbers:
        return _on_disk(config.path)
    # A tied head is packed for the kernels beside the embedding that is looked up.
    tied = config.vocab_size * config.hidden_size if config.tie_embeddings else 0
    return (numbers + tied) * dtype.itemsize


def _safetensors(path: Path) -> list[Path]:
    """Return the files that belong to the model in a directory, each once."""
    if (path / _INDEX).is_file():
        named = read_json(path / _INDEX).get("weight_map")
        return sorted({path / str(name) for name in named.values()}) if isinstance(named, dict) else []
    return [path / "model.safetensors"]


def _elements(file: Path) -> int:
    """Return how many numbers a safetensors file holds: eight bytes of length, then a JSON object of tensors."""
    try:
        with file.open("rb") as data:
            (length,) = struct.unpack("<Q", data.read(8))
            if length > file.stat().st_size:
                return 0
            header = json.loads(data.read(length))
            return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return 0


def _dequantised(path: Path) -> int:
    """Return how many numbers a GGUF file holds, however few bits each has in it."""
    try:
        with GGUFFile(path) as file:
            return sum(math.prod(stored.shape) for stored in file.tensors.values())
    except ModelError:
        return 0


def _on_disk(path: Path) -> int:
    files = path.glob("*.bin")
    return sum(file.stat().st_size for file in files if file.is_file())
