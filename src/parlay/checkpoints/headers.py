"""The tensors of a model's files, read without their numbers."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from parlay.checkpoints.files import pointer, read_json
from parlay.checkpoints.gguf.parts import GGUFModel
from parlay.errors import ModelError

_LONGEST = 100_000_000  # bytes of a header, as the format's own library has it
_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8}
_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHeader:
    """A tensor in a file.

    Attributes:
        kind: how its numbers are stored, as GGUF and safetensors files call it.
        shape: sizes, the contiguous one last.
        size: bytes.
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
    index = path / "model.safetensors.index.json"
    files = sorted(path.glob("*.safetensors"))
    if index.is_file():
        listed = read_json(index).get("weight_map")
        names = {str(name) for name in listed.values()} if isinstance(listed, dict) else set()
        missing = next((name for name in sorted(names) if not (path / name).is_file()), None)
        if missing is not None:
            raise ModelError(f"{path / missing} does not exist, which {index} lists")
    tensors: dict[str, TensorHeader] = {}
    for file in files:
        tensors.update(_read_safetensors(file))
    return tensors


def stored_dtype(path: Path) -> str | None:
    """Return what a directory's weights are stored as, by torch's names: the floats that most bytes have.

    None where there are no safetensors files, or they have no such floats.
    """
    if not path.is_dir():
        return None
    try:
        tensors = read_tensors(path)
    except ModelError:  # the code that reads them reports why it cannot
        return None
    return _DTYPES.get(main_kind({name: tensor for name, tensor in tensors.items() if tensor.kind in _FLOATS}))


def main_kind(tensors: dict[str, TensorHeader]) -> str:
    """Return how most bytes are stored: blocks as they are called, floats in small letters."""
    sizes: dict[str, int] = {}
    for tensor in tensors.values():
        sizes[tensor.kind] = sizes.get(tensor.kind, 0) + tensor.size
    return kind_text(max(sizes, key=lambda kind: sizes[kind])) if sizes else "?"


def kind_text(kind: str) -> str:
    """Return a kind as people write it."""
    return kind if "_" in kind or kind == "MXFP4" else kind.lower()


def _read_safetensors(file: Path) -> dict[str, TensorHeader]:
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if not 2 <= length <= min(_LONGEST, file.stat().st_size):
                raise ModelError(f"{file} {pointer(file) or f'is damaged: its header would have {length} bytes'}")
            header = json.loads(opened.read(length))
        tensors, end = {}, 0
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, stop = entry["data_offsets"]
            shape = tuple(int(size) for size in entry["shape"])
            kind = str(entry["dtype"])
            if stop - begin != math.prod(shape) * _BITS.get(kind, 8) // 8 and kind in _BITS:
                raise ModelError(f"{file} is damaged: tensor {name!r} has not the bytes of its shape")
            end = max(end, stop)
            tensors[name] = TensorHeader(kind=kind, shape=shape, size=stop - begin)
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror or error}") from None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        raise ModelError(f"{file} is damaged: its header is no description of tensors") from None
    if 8 + length + end != file.stat().st_size:
        raise ModelError(f"{file} is damaged: it has not the bytes that its header says")
    return tensors
