"""What a group of layers keeps of the tokens that it has processed."""

from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple

CacheKind = Literal["keys", "states", "both", "nothing"]  # what a layer keeps


class StateCapacity(NamedTuple):
    """How much room there is for states of recurrent layers.

    Attributes:
        slots: number of slots, each for the states of a sequence in all layers.
        places: number of places, each for the inputs of a draft node in all layers.
    """

    slots: int = 0
    places: int = 0


NO_CAPACITY = StateCapacity()

# How keys and values are stored: in the dtype of activations, or in eight bits, each 32 numbers with a scale (Q8_0).
KVCacheDtype = Literal["auto", "int8"]
NUMBERS_PER_SCALE = 32
_BLOCK_BYTES = NUMBERS_PER_SCALE + 2


def row_bytes(width: int) -> int:
    """Return the bytes of a row of `width` numbers in eight bits."""
    return width // NUMBERS_PER_SCALE * _BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    """What one recurrent layer keeps of a sequence, and of a draft node until the next step.

    Attributes:
        channels: columns of its convolution.
        taps: rows that each of the convolution's outputs is made of, its own included.
        state: shape of the state, in float32 numbers; empty where there is none but the convolution's rows.
        gates: numbers per row that the state's update takes besides the convolution's outputs.
    """

    channels: int
    taps: int
    state: tuple[int, ...] = ()
    gates: int = 0

    def bytes_per_slot(self, itemsize: int) -> int:
        """Bytes of a sequence's state."""
        return (self.taps - 1) * self.channels * itemsize + 4 * (prod(self.state) if self.state else 0)

    def bytes_per_place(self, itemsize: int) -> int:
        """Bytes of a draft node's inputs."""
        return (self.channels * (1 + bool(self.state)) + self.gates) * itemsize


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """What one layer group (a target, or a proposer with cache layers) keeps.

    Attributes:
        layers: layers with attention in the group.
        kv_heads: key and value heads per layer.
        head_dim: elements per head.
        itemsize: bytes per element.
        dtype: how keys and values are stored, see `KVCacheDtype`.
        values: whether there are values; otherwise they are the keys, as in latent attention.
        recurrent: what a recurrent layer keeps; None where there are none.
        pattern: kind of cache of every layer; empty where all keep keys and values.
        heads: number of key heads, their width and that of values, for every layer, where any of that differs; widths
            of 0 where it reads another layer's.
        sources: index of the layer whose keys and values each layer reads, or -1.
        slots: number of its own tokens that there is room for per token of the target.
        extra: numbers per token besides its keys and values, in all layers.
    """

    layers: int
    kv_heads: int
    head_dim: int
    itemsize: int
    dtype: KVCacheDtype = "auto"
    values: bool = True
    recurrent: RecurrentSpec | None = None
    pattern: tuple[CacheKind, ...] = ()
    heads: tuple[tuple[int, int, int], ...] = ()
    sources: tuple[int, ...] = ()
    slots: int = 1
    extra: int = 0

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one of the target's tokens takes in the group."""
        if self.heads:
            size = sum(count * (self.row_bytes(key) + self.row_bytes(value)) for count, key, value in self.heads)
        else:
            size = (1 + self.values) * self.layers * self.kv_heads * self.row_bytes(self.head_dim)
        return self.slots * (size + self.extra * self.itemsize)

    def row_bytes(self, width: int) -> int:
        """Bytes of a key or value of `width` numbers."""
        return row_bytes(width) if self.dtype == "int8" else width * self.itemsize

    @property
    def bytes_per_slot(self) -> int:
        """Bytes that the states of a sequence take; each sequence that runs has two."""
        return self._scans * self.recurrent.bytes_per_slot(self.itemsize) if self.recurrent else 0

    @property
    def bytes_per_place(self) -> int:
        """Bytes that the inputs of a draft node take."""
        return self._scans * self.recurrent.bytes_per_place(self.itemsize) if self.recurrent else 0

    @property
    def _scans(self) -> int:
        """How many layers have states."""
        return self.pattern.count("states") + self.pattern.count("both")

    def state_bytes(self, room: StateCapacity) -> int:
        """Bytes of all states and inputs that there is room for."""
        return room.slots * self.bytes_per_slot + room.places * self.bytes_per_place
