"""GGUF files: the header, read without trusting it, and the tensors, as they are stored or dequantised.

Source: the format's description, `docs/gguf.md` in ggml's repository; versions 2 and 3, little-endian.

The `gguf` package dequantises. Its reader is not used: it believes every count and length that a file claims, and for
a vocabulary of 128,000 tokens takes half a minute and 600 MB. The tests compare the two.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from parlay.checkpoints.files import pointer
from parlay.errors import ModelError
from parlay.weights.kinds import KINDS, READ_AS, Kind

if TYPE_CHECKING:
    from torch import Tensor

    from parlay.weights.weight import Weight

_PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64"}  # torch's names

# What a metadata value may be: number in the file, and struct's letter.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_FLOAT32, _STRING, _ARRAY = 6, 8, 9

# Far beyond any model, and small enough that a header of nonsense is refused within a moment.
_MAX_KEYS = _MAX_TENSORS = 1 << 16
_MAX_ELEMENTS = 1 << 23  # of all arrays together
_MAX_NAME = 1 << 10  # bytes
_MAX_DIMS = 4
_SLAB = 1 << 20  # elements that are dequantised at once; larger slabs leave the caches

_U64 = struct.Struct("<Q")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies.

    Attributes:
        name: as the file calls it.
        kind: how it is stored.
        shape: as torch counts dimensions, the last one contiguous.
        offset: of its first byte in the file.
        size: bytes.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class _List:
    kind: int
    length: int
    offset: int


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
                is not served.
        """
        self.path = path
        self.tensors: dict[str, TensorInfo] = {}
        self._metadata: dict[str, Any] = {}
        self._spans: dict[str, tuple[int, int]] = {}  # of values in the file
        self._elements = 0
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ModelError(f"{path} is empty; a GGUF file is expected") from None
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error}") from None
        self._size = len(self._data)
        self._at = 0
        try:
            self._read_header()
        except (struct.error, OverflowError):
            self._fail("its header runs past the end of the file")
        except UnicodeDecodeError:
            self._fail("a name or text in its header is not valid UTF-8")

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
        array = self._array(key, (_STRING,), "texts")
        if array is None:
            return []
        texts, data, at = [], self._data, array.offset
        try:
            for _ in range(array.length):
                start = at + 8
                at = start + _U64.unpack_from(data, at)[0]
                texts.append(data[start:at].decode())
        except UnicodeDecodeError:
            self._fail(f"{key} holds a text that is not valid UTF-8")
        return texts

    def numbers(self, key: str) -> list[float]:
        """Return a list of numbers from the metadata; an absent one is empty.

        Raises:
            ModelError: it is something else.
        """
        array = self._array(key, tuple(_SCALARS), "numbers")
        if array is None:
            return []
        return list(struct.unpack_from(f"<{array.length}{_SCALARS[array.kind]}", self._data, array.offset))

    def __contains__(self, key: object) -> bool:
        return key in self._metadata

    def verbatim(self) -> dict[str, bytes]:
        """Return all metadata as the file stores them: each value's type and bytes, by key."""
        return {key: self._data[begin:end] for key, (begin, end) in self._spans.items()}

    def length(self, key: str) -> int:
        """Return how many elements a list of the metadata has; an absent one has none."""
        array = self._metadata.get(key)
        return array.length if isinstance(array, _List) else 0

    def is_array(self, key: str) -> bool:
        """Return whether a value of the metadata is a list."""
        return isinstance(self._metadata.get(key), _List)

    def read(self, name: str, index: int | None = None) -> Tensor:
        """Return a tensor: plain numbers as they are stored, everything else dequantised to float32.

        Args:
            name: of the tensor.
            index: where several are stacked, which of them alone to read.
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
            name: of the tensor.
            index: where several are stacked, which of them alone to read.
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
        return self._data[: self._at]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # A view that is still in use keeps the map open until the last one is gone.
        del self._data

    def _read_header(self) -> None:
        if self._data[:4] != b"GGUF":
            raise ModelError(
                f"{self.path} {pointer(self.path) or 'is not a GGUF file: it does not begin with its four letters'}"
            )
        self._at = 4
        version = self._take("I")
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in (2, 3)
            what = "is big-endian" if swapped else f"has version {version}"
            raise ModelError(f"{self.path} {what}; GGUF files of version 2 and 3, little-endian, are served")
        tensors, keys = self._take("Q"), self._take("Q")
        if keys > _MAX_KEYS or tensors > _MAX_TENSORS:
            self._fail(f"it claims {keys} keys and {tensors} tensors")
        for _ in range(keys):
            key = self._take_name("a key")
            if key in self._metadata:
                self._fail(f"the key {key!r} comes twice")
            begin = self._at
            self._metadata[key] = self._take_value(key, self._take("I"))
            self._spans[key] = begin, self._at
        entries = [self._take_tensor() for _ in range(tensors)]
        alignment = self.integer("general.alignment", 32)
        if alignment < 8 or alignment & (alignment - 1):
            self._fail(f"general.alignment must be a power of two from 8 on, not {alignment}")
        start = -(-self._at // alignment) * alignment
        for name, kind, shape, offset in entries:
            self._add_tensor(name, kind, shape, start + offset, alignment)
        if sum(stored.size for stored in self.tensors.values()) > self._size:
            self._fail("its tensors lie upon each other")

    def _take(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _take_text(self) -> str:
        length = self._take("Q")
        if length > self._size - self._at:
            self._fail("a text in its header runs past the end of the file")
        self._at += length
        return self._data[self._at - length : self._at].decode()

    def _take_name(self, what: str) -> str:
        if _U64.unpack_from(self._data, self._at)[0] > _MAX_NAME:
            self._fail(f"the name of {what} has more than {_MAX_NAME} bytes")
        return self._take_text()

    def _take_value(self, key: str, kind: int) -> Any:
        if kind == _FLOAT32:
            # 1e-5 was meant exactly, not the float32 next to it.
            return float(str(np.float32(self._take("f"))))
        if kind in _SCALARS:
            return self._take(_SCALARS[kind])
        if kind == _STRING:
            return self._take_text()
        if kind != _ARRAY:
            self._fail(f"{key} has a value of the unknown type {kind}")
        inner, length = self._take("I"), self._take("Q")
        if inner not in _SCALARS and inner != _STRING:
            self._fail(f"{key} is an array of the type {inner}, which is not served")
        self._elements += length
        if self._elements > _MAX_ELEMENTS or length > self._size:
            self._fail(f"{key} claims {length} elements")
        array = _List(inner, length, self._at)
        if inner == _STRING:
            at, data = self._at, self._data
            for _ in range(length):
                at += 8 + _U64.unpack_from(data, at)[0]
            self._at = at
        else:
            self._at += length * struct.calcsize("<" + _SCALARS[inner])
        if self._at > self._size:
            self._fail(f"{key} runs past the end of the file")
        return array

    def _take_tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self._take_name("a tensor")
        dims = self._take("I")
        if not 1 <= dims <= _MAX_DIMS:
            self._fail(f"tensor {name!r} has {dims} dimensions")
        shape = tuple(self._take("Q") for _ in range(dims))[::-1]
        return name, self._take("I"), shape, self._take("Q")

    def _add_tensor(self, name: str, number: int, shape: tuple[int, ...], offset: int, alignment: int) -> None:
        if number not in KINDS:
            served = ", ".join(sorted(kind.name for kind in KINDS.values()))
            raise ModelError(
                f"{self.path}: tensor {name!r} is stored as {_kind_name(number)}, which is not served; {served} are"
            )
        kind = KINDS[number]
        if name in self.tensors:
            self._fail(f"tensor {name!r} comes twice")
        if shape[-1] % kind.block or 0 in shape:
            self._fail(f"tensor {name!r} has shape {list(shape)}, which {kind} cannot store")
        size = math.prod(shape) // kind.block * kind.size
        if offset % alignment or offset + size > self._size:
            self._fail(f"tensor {name!r} would lie at bytes {offset} to {offset + size} of {self._size}")
        self.tensors[name] = TensorInfo(name, kind, shape, offset, size)

    def _scalar(self, key: str, kind: type[T], default: T | None) -> T:
        value = self._metadata.get(key, default)
        if value is None:
            raise ModelError(f"{self.path} lacks the key {key!r}")
        if type(value) is not kind:
            self._fail(f"{key} must be of type {kind.__name__}")
        return value

    def _array(self, key: str, kinds: tuple[int, ...], words: str) -> _List | None:
        value = self._metadata.get(key)
        if value is not None and (not isinstance(value, _List) or value.kind not in kinds):
            self._fail(f"{key} must be a list of {words}")
        return value

    def _fail(self, why: str) -> NoReturn:
        raise ModelError(f"{self.path} is damaged: {why}")


def _kind_name(number: int) -> str:
    from gguf.constants import GGMLQuantizationType

    known = {kind.value: kind.name for kind in GGMLQuantizationType}
    return known.get(number, f"the unknown type {number}")
