"""GGUF files: the header, read without trusting it, and the tensors, as they are stored or dequantised.

Source: the format's description, `docs/gguf.md` in ggml's repository; versions 2 and 3, little-endian.

The `gguf` package dequantises. Its reader is not used: it believes every count and length that a file claims, and for
a vocabulary of 128,000 tokens takes half a minute and 600 MB. The tests compare the two.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from parlay.checkpoints.gguf.header import SCALARS, STRING, U64, MetadataList, read_header
from parlay.errors import ModelError
from parlay.weights.kinds import READ_AS

if TYPE_CHECKING:
    from torch import Tensor

    from parlay.weights.weight import Weight

_PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64"}  # torch's names

_SLAB = 1 << 20  # elements that are dequantised at once; larger slabs leave the caches

T = TypeVar("T")


class GGUFFile:
    """An open GGUF file: metadata by key, tensors by name. Nothing but the header is read until it is used.

    Attributes:
        path: the file.
        tensors: what it holds, by the file's own names.
    """

    def __init__(self, path: Path) -> None:
        """Map the file and check its whole header.

        Raises:
            ModelError: it cannot be read, is no GGUF file, is damaged or truncated, or stores a tensor in a way that
                is not supported.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ModelError(f"{path} is empty; a GGUF file is expected") from None
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error}") from None
        self._header = read_header(path, self._data)
        self._metadata = self._header.metadata
        self.tensors = dict(self._header.tensors)

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number from the metadata; without a default the key must be there."""
        return self._scalar(key, int, default)

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number from the metadata; without a default the key must be there."""
        value = self._metadata.get(key)
        return float(value) if type(value) is int else self._scalar(key, float, default)

    def value(self, key: str) -> float | bool:
        """Return a number or truth value from the metadata; the key must be there."""
        value = self._metadata[key]
        if not isinstance(value, int | float):
            self._fail(f"{key} must be a number")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return a truth value from the metadata."""
        return self._scalar(key, bool, default)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text from the metadata; without a default the key must be there."""
        return self._scalar(key, str, default)

    def texts(self, key: str) -> list[str]:
        """Return a list of texts from the metadata; an absent one is empty.

        Raises:
            ModelError: it is something else, or not valid UTF-8.
        """
        array = self._array(key, (STRING,), "texts")
        if array is None:
            return []
        texts, data, at = [], self._data, array.offset
        try:
            for _ in range(array.length):
                start = at + 8
                at = start + U64.unpack_from(data, at)[0]
                texts.append(data[start:at].decode())
        except UnicodeDecodeError:
            self._fail(f"{key} holds a text that is not valid UTF-8")
        return texts

    def numbers(self, key: str) -> list[float]:
        """Return a list of numbers from the metadata; an absent one is empty.

        Raises:
            ModelError: it is something else.
        """
        array = self._array(key, tuple(SCALARS), "numbers")
        if array is None:
            return []
        return list(struct.unpack_from(f"<{array.length}{SCALARS[array.kind]}", self._data, array.offset))

    def __contains__(self, key: object) -> bool:
        return key in self._metadata

    def verbatim(self) -> dict[str, bytes]:
        """Return all metadata as the file stores them: each value's type and bytes, by key."""
        return {key: self._data[begin:end] for key, (begin, end) in self._header.spans.items()}

    def length(self, key: str) -> int:
        """Return how many elements a list of the metadata has; an absent one has none."""
        array = self._metadata.get(key)
        return array.length if isinstance(array, MetadataList) else 0

    def is_array(self, key: str) -> bool:
        """Return whether a value of the metadata is a list."""
        return isinstance(self._metadata.get(key), MetadataList)

    def read(self, name: str, index: int | None = None) -> Tensor:
        """Return a tensor: plain numbers as they are stored, everything else dequantised to float32.

        Args:
            name: name of the tensor.
            index: index of the one to read, where several are stacked.
        """
        import torch  # the server's front reads the metadata alone, and does without it

        kind = self.tensors[name].kind
        if kind in READ_AS:
            return self.read_blocks(name, index).numbers()
        raw, shape = self.raw(name, index)
        out = torch.empty(shape, dtype=getattr(torch, _PLAIN.get(kind.name, "float32")))
        if kind.block == 1:
            out.view(-1).view(torch.uint8).numpy()[:] = raw
            return out
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        # A slab of rows at a time: what the package makes on the way is several times the tensor.
        rows = math.prod(shape[:-1])
        source, target = raw.reshape(rows, -1), out.view(rows, -1).numpy()
        step = max(1, _SLAB // shape[-1])
        with np.errstate(all="ignore"):  # the reader checks for values that are no numbers
            for row in range(0, rows, step):
                target[row : row + step] = dequantize(source[row : row + step], GGMLQuantizationType(kind.number))
        return out

    def read_blocks(self, name: str, index: int | None = None) -> Weight:
        """Return a matrix of blocks as it is stored.

        Args:
            name: name of the tensor.
            index: index of the one to read, where several are stacked.
        """
        import torch

        from parlay.weights.weight import Part, Weight

        raw, shape = self.raw(name, index)
        kind = self.tensors[name].kind
        if kind in READ_AS:
            from parlay.weights.widened import widened

            wide = widened(kind, raw.reshape(shape[0], -1))
            return Weight((Part(READ_AS[kind], torch.from_numpy(wide)),))
        blocks = torch.empty((shape[0], len(raw) // shape[0]), dtype=torch.uint8)
        blocks.view(-1).numpy()[:] = raw
        return Weight((Part(kind, blocks),))

    def raw(self, name: str, index: int | None = None) -> tuple[NDArray[np.uint8], tuple[int, ...]]:
        """Return the bytes of a tensor, or of one in a stack, and its shape."""
        stored = self.tensors[name]
        shape, size, offset = stored.shape, stored.size, stored.offset
        if index is not None:
            shape, size = shape[1:], size // shape[0]
            offset += index * size
        return np.frombuffer(self._data, np.uint8, size, offset), shape

    @property
    def header(self) -> bytes:
        """Everything before the tensors."""
        return self._data[: self._header.end]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # A view that is still in use keeps the map open until the last one is gone.
        del self._data

    def _scalar(self, key: str, kind: type[T], default: T | None) -> T:
        value = self._metadata.get(key, default)
        if value is None:
            raise ModelError(f"{self.path} lacks the key {key!r}")
        if type(value) is not kind:
            self._fail(f"{key} must be of type {kind.__name__}")
        return value

    def _array(self, key: str, kinds: tuple[int, ...], words: str) -> MetadataList | None:
        value = self._metadata.get(key)
        if value is not None and (not isinstance(value, MetadataList) or value.kind not in kinds):
            self._fail(f"{key} must be a list of {words}")
        return value

    def _fail(self, why: str) -> NoReturn:
        raise ModelError(f"{self.path} is damaged: {why}")
