"""The header of a GGUF file: metadata by key, and where tensors lie. No count or length in it is believed.

Source: the format's description, `docs/gguf.md` in ggml's repository; versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn
from zlib import crc32

import numpy as np

from parlay.checkpoints.files import pointer
from parlay.errors import ModelError
from parlay.weights.kinds import KINDS, Kind

# What a metadata value may be: number in the file, and struct's letter.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_FLOAT32, STRING, _ARRAY = 6, 8, 9

# Far beyond any model, and small enough that a header of nonsense is refused within a moment.
_MAX_KEYS = _MAX_TENSORS = 1 << 16
_MAX_ELEMENTS = 1 << 23  # of all arrays together
_MAX_NAME = 1 << 10  # bytes
_MAX_DIMS = 4

U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies.

    Attributes:
        name: name in the file.
        kind: how it is stored.
        shape: dimensions in torch's order, the last one contiguous.
        offset: position of its first byte in the file.
        size: size in bytes.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class MetadataList:
    """Where a list of the metadata lies.

    Attributes:
        kind: type of its elements, a key of `SCALARS` or STRING.
        length: number of elements.
        offset: position of the first element in the file.
    """

    kind: int
    length: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before the tensors.

    Attributes:
        metadata: values by key, lists as where they lie.
        spans: first byte of each value's type, and the end of the value.
        tensors: tensors by the file's own names.
        end: length of the header in bytes.
        checksum: checksum of these bytes.
    """

    metadata: Mapping[str, Any]
    spans: Mapping[str, tuple[int, int]]
    tensors: Mapping[str, TensorInfo]
    end: int
    checksum: int


def read_header(path: Path, data: mmap.mmap) -> Header:
    """Return the header of a file, as it was read before where its bytes are the same.

    Args:
        path: the file.
        data: the whole file.

    Raises:
        ModelError: it is no GGUF file, is damaged or truncated, or stores a tensor in a way that is not supported.
    """
    changed = path.stat().st_mtime_ns
    header = _read(path, len(data), changed)
    if _checksum(data, header.end) != header.checksum:  # written again within a tick of the file system's clock
        _read.cache_clear()
        header = _read(path, len(data), changed)
    return header


# A start opens its file a dozen times, and to step over the texts of a large vocabulary takes a tenth of a second.
@lru_cache(maxsize=64)  # parts of a large model, and of its drafter
def _read(path: Path, size: int, changed: int) -> Header:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _HeaderReader(path, data).read()


def _checksum(data: mmap.mmap, end: int) -> int:
    with memoryview(data) as whole, whole[:end] as header:
        return crc32(header)


class _HeaderReader:
    """Goes through a header once."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.tensors: dict[str, TensorInfo] = {}
        self._metadata: dict[str, Any] = {}
        self._spans: dict[str, tuple[int, int]] = {}
        self._elements = 0
        self._data = data
        self._size = len(data)
        self._at = 0

    def read(self) -> Header:
        try:
            self._read_header()
        except (struct.error, OverflowError):
            self._fail("its header runs past the end of the file")
        except UnicodeDecodeError:
            self._fail("a name or text in its header is not valid UTF-8")
        return Header(self._metadata, self._spans, self.tensors, self._at, _checksum(self._data, self._at))

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
            raise ModelError(f"{self.path} {what}; GGUF files of version 2 and 3, little-endian, are supported")
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
        alignment = self._metadata.get("general.alignment", 32)
        if type(alignment) is not int:
            self._fail("general.alignment must be of type int")
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
        if U64.unpack_from(self._data, self._at)[0] > _MAX_NAME:
            self._fail(f"the name of {what} has more than {_MAX_NAME} bytes")
        return self._take_text()

    def _take_value(self, key: str, kind: int) -> Any:
        if kind == _FLOAT32:
            # 1e-5 was meant exactly, not the float32 next to it.
            return float(str(np.float32(self._take("f"))))
        if kind in SCALARS:
            return self._take(SCALARS[kind])
        if kind == STRING:
            return self._take_text()
        if kind != _ARRAY:
            self._fail(f"{key} has a value of the unknown type {kind}")
        inner, length = self._take("I"), self._take("Q")
        if inner not in SCALARS and inner != STRING:
            self._fail(f"{key} is an array of the type {inner}, which is not supported")
        self._elements += length
        if self._elements > _MAX_ELEMENTS or length > self._size:
            self._fail(f"{key} claims {length} elements")
        array = MetadataList(inner, length, self._at)
        if inner == STRING:
            at, data = self._at, self._data
            for _ in range(length):
                at += 8 + U64.unpack_from(data, at)[0]
            self._at = at
        else:
            self._at += length * struct.calcsize("<" + SCALARS[inner])
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
            supported = ", ".join(sorted(kind.name for kind in KINDS.values()))
            raise ModelError(
                f"{self.path}: tensor {name!r} is stored as {_kind_name(number)}, which is not supported; "
                f"{supported} are"
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

    def _fail(self, why: str) -> NoReturn:
        raise ModelError(f"{self.path} is damaged: {why}")


def _kind_name(number: int) -> str:
    from gguf.constants import GGMLQuantizationType

    known = {kind.value: kind.name for kind in GGMLQuantizationType}
    return known.get(number, f"the unknown type {number}")
