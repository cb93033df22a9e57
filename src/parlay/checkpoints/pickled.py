"""Weights in `.bin` files, as torch saves them."""

import pickle
import warnings
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from parlay.checkpoints.files import pointer
from parlay.checkpoints.quantised.layers import StoredShape
from parlay.errors import ModelError, brief

_DTYPES = {  # as safetensors call them
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int32: "I32",
    torch.int64: "I64",
}


def read_pickled(file: Path) -> object:
    """Return what a file holds: tensors, numbers and text, in lists and dictionaries; nothing else is unpickled.

    Raises:
        ModelError: it cannot be read, or holds something else.
    """
    if reason := _other_format(file):
        raise ModelError(f"{file} {reason}")
    try:
        # Older files than zip archives cannot be mapped and are read whole.
        with warnings.catch_warnings(action="ignore"):
            content: object = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except pickle.UnpicklingError:  # torch's message says how to run what the file holds
        raise ModelError(
            f"{file} is damaged, or holds other objects than tensors, whose code would run if they were read; "
            "get the weights as safetensors"
        ) from None
    except Exception as error:  # a damaged file makes torch raise almost anything
        reason = brief(str(error).split("\n")[0]) or type(error).__name__
        raise ModelError(f"{file} cannot be read as a file of tensors alone: {reason}") from None
    return content


class Pickled:
    """A `.bin` file of tensors, with as much of a safetensors handle as `Checkpoint` uses."""

    def __init__(self, file: Path) -> None:
        """Open the file.

        Raises:
            ModelError: it cannot be read, or holds something else than tensors by name.
        """
        content = read_pickled(file)
        if not isinstance(content, dict) or not all(isinstance(n, str) and plain(t) for n, t in content.items()):
            raise ModelError(
                f"{file} holds something else than plain tensors by name; save the model's state_dict alone, best as "
                "safetensors"
            )
        self._tensors: dict[str, Tensor] = content

    def keys(self) -> list[str]:
        """Return the tensors' names."""
        return list(self._tensors)

    def get_slice(self, name: str) -> StoredShape:
        """Return a tensor's shape and dtype."""
        tensor = self._tensors[name]
        return StoredShape(list(tensor.shape), _DTYPES.get(tensor.dtype, str(tensor.dtype)))

    def get_tensor(self, name: str) -> Tensor:
        """Return a tensor."""
        return self._tensors[name]


def plain(value: object) -> bool:
    """Whether this is a tensor that lies in memory as it is; a small file can describe huge ones that do not."""
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
        and not value.is_complex()
        and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    )


def _other_format(file: Path) -> str | None:
    """Return what to say of a file that is no pickle but has the ending of one."""
    try:
        with file.open("rb") as opened:
            is_gguf = opened.read(4) == b"GGUF"
    except OSError:
        return None
    return "is a GGUF file; give it a name that ends in .gguf" if is_gguf else pointer(file)
