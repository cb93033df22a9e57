"""The tensors of a model's files, read without their numbers."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from parlay.checkpoints.files import pointer, read_json
from parlay.checkpoints.gguf.parts import GGUFModel
from parlay.errors import ModelError, brief, shown

_HEADS = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
_INDEX = "model.safetensors.index.json"
# In transformers' order: a file of all weights counts, whatever index was left beside it.
_WEIGHTS = ("model.safetensors", _INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json")
_NAME = 255  # characters of a file's name
_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHeader:
    """A tensor in a file.

    Attributes:
        kind: how its numbers are stored, as GGUF and safetensors files call it.
        shape: sizes, the contiguous one last.
        size: size in bytes.
    """

    kind: str
    shape: tuple[int, ...]
    size: int


def read_tensors(path: Path) -> dict[str, TensorHeader]:
    """Return the tensors of a GGUF file or of a directory's safetensors files, by name; pickles are not opened.

    Raises:
        ModelError: a file is missing, damaged or shorter than it says.
    """
    if path.is_file():
        with GGUFModel(path) as model:
            return {
                name: TensorHeader(kind=stored.kind.name, shape=stored.shape, size=stored.size)
                for name, stored in model.tensors.items()
            }
    if (path / _INDEX).is_file():
        weight_files(path)  # refuses an index of files that are not there
    tensors: dict[str, TensorHeader] = {}
    for file in sorted(path.glob("*.safetensors")):
        with open_safetensors(file, "np") as opened:
            tensors |= {name: _header(opened.get_slice(name)) for name in opened.keys()}  # noqa: SIM118 - no mapping
    return tensors


def weight_files(path: Path, head: bool = False) -> list[Path]:
    """Return the files of a checkpoint's weights.

    Args:
        path: a directory, or a GGUF file, of which it is the first part.
        head: prefer those of a draft head.

    Raises:
        ModelError: there are none, or the index is damaged or names files elsewhere.
    """
    if path.is_file():
        return [path]
    known = (*_HEADS, *_WEIGHTS) if head else (*_WEIGHTS, *_HEADS)  # the first one that is there counts
    first = path / next((name for name in known if (path / name).exists()), "model.safetensors")
    files = [first]
    if first.suffix == ".json":
        listed = read_json(first).get("weight_map")
        if not isinstance(listed, dict) or not listed or not all(isinstance(name, str) for name in listed.values()):
            raise ModelError(f"{first} must have a weight_map, which says for each tensor what file it is in")
        files = [path / name for name in sorted(set(listed.values()))]
        for name in listed.values():
            # An index must not name files elsewhere.
            if Path(name).is_absolute() or ".." in Path(name).parts or not name.isprintable() or len(name) > _NAME:
                raise ModelError(f"{first} names {shown(name)}, which is no file in the model's directory")
    for file in files:
        if not file.is_file():
            raise ModelError(f"{file} does not exist; weights are read from safetensors or .bin files")
    return files


def written_for_mlx(opened: Any) -> bool:
    """Whether an open safetensors file says that MLX wrote it."""
    return (opened.metadata() or {}).get("format") == "mlx"


def is_for_mlx(path: Path) -> bool:
    """Whether a directory's weights were written for MLX; where they cannot be read, what reads them says so."""
    try:
        file = weight_files(path)[0]
        if path.is_file() or file.suffix != ".safetensors":
            return False
        with open_safetensors(file, "np") as opened:
            return written_for_mlx(opened)
    except ModelError:
        return False


def stored_dtype(path: Path) -> str | None:
    """Return what a directory's weights are stored as, by torch's names: the floats that most bytes have.

    None where there are no safetensors files, or they have no such floats.
    """
    if not path.is_dir():
        return None
    try:
        tensors = read_tensors(path).items()
    except ModelError:  # the code that reads them reports why it cannot
        return None
    return _DTYPES.get(main_kind({name: tensor for name, tensor in tensors if tensor.kind in _FLOATS}))


def main_kind(tensors: dict[str, TensorHeader]) -> str:
    """Return how most bytes are stored."""
    return next(iter(kinds(tensors)), "?")


def kinds(tensors: dict[str, TensorHeader]) -> dict[str, int]:
    """Return bytes by how numbers are stored, most first: blocks as they are called, floats in small letters."""
    sizes: dict[str, int] = {}
    for tensor in tensors.values():
        kind = tensor.kind if "_" in tensor.kind or tensor.kind == "MXFP4" else tensor.kind.lower()
        sizes[kind] = sizes.get(kind, 0) + tensor.size
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def open_safetensors(file: Path, framework: str) -> Any:
    """Open a safetensors file, whose header is checked.

    Args:
        file: a safetensors file, with this ending or any other.
        framework: framework of the tensors that it is to give, as `safe_open` calls it.

    Raises:
        ModelError: it cannot be read, or is cut off or damaged.
    """
    try:
        return safe_open(file, framework=framework)
    except (OSError, SafetensorError) as error:
        reason = f"cannot be read: {brief(str(error))}; it is cut off or damaged, fetch it again"
        raise ModelError(f"{file} {pointer(file) or reason}") from None


def _header(stored: Any) -> TensorHeader:
    kind, shape = str(stored.get_dtype()), tuple(stored.get_shape())
    bits = re.search(r"\d+", kind)  # of each number; a BOOL has a byte
    return TensorHeader(kind=kind, shape=shape, size=math.prod(shape) * (int(bits[0]) if bits else 8) // 8)
