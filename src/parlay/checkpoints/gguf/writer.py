"""Writing GGUF files: a header, and where each tensor comes to lie. Version 3, little-endian.

Source: the format's description, `docs/gguf.md` in ggml's repository. The `gguf` package's writer is not used: here
the metadata of a file that is read go into the next one byte for byte.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parlay.weights.kinds import Kind

Value = bool | int | float | str | list[str] | list[bool] | list[int] | list[float]

ALIGNMENT = 32  # bytes, what files have that say nothing
_INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 5, 6, 7, 8, 9
_UINT32, _INT64 = 4, 11


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to be written.

    Attributes:
        name: name in the file.
        kind: how it is stored.
        shape: dimensions in torch's order, the last one contiguous.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) // self.kind.block * self.kind.size


def encode(value: Value) -> bytes:
    """Return a value of the metadata, its type first; whole numbers and numbers have 32 bits where that is enough."""
    if isinstance(value, list):
        scalar = _scalar_type(value[0]) if value else _INT32
        kind = _INT32 if scalar == _UINT32 else scalar
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + b"".join(_bytes(kind, one) for one in value)
    kind = _scalar_type(value)
    return struct.pack("<I", kind) + _bytes(kind, value)


def header(metadata: Mapping[str, bytes], tensors: Sequence[Entry]) -> bytes:
    """Return what stands before the tensors, which follow each other in order, each filled up by `padding`.

    Args:
        metadata: what `encode` returns, by key.
        tensors: all tensors.
    """
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_text(key), value]
    offset = 0
    for entry in tensors:
        parts += [_text(entry.name), struct.pack("<I", len(entry.shape))]
        parts += [struct.pack("<Q", size) for size in reversed(entry.shape)]
        parts.append(struct.pack("<IQ", entry.kind.number, offset))
        offset += entry.size + padding(entry.size)
    whole = b"".join(parts)
    return whole + bytes(padding(len(whole)))


def padding(size: int) -> int:
    """Return how many bytes there are between the end of so many and where the next thing may begin."""
    return -size % ALIGNMENT


def _scalar_type(value: object) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        return _UINT32 if 0 <= value < 1 << 32 else _INT64
    return _FLOAT32 if isinstance(value, float) else _STRING


def _bytes(kind: int, value: object) -> bytes:
    if kind == _STRING:
        return _text(str(value))
    return struct.pack({_INT32: "<i", _UINT32: "<I", _INT64: "<q", _FLOAT32: "<f", _BOOL: "<?"}[kind], value)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
