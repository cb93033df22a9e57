"""What rank 0 sends to the other ranks of a model: the passes it runs, and nothing about requests.

Ranks that share layers compute each of them together. So rank 0 announces each operation before it runs it, and the
others do the same in the same order; results are exchanged only within the layers. All that decides (the scheduler,
verification, drafting, processors) is on rank 0.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from parlay.kernels.base import AttentionView
from parlay.runner.batch import Batch


class Forward(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Run a batch through the layers.

    Attributes:
        tokens, slots: int64 `[rows]`.
        positions, row_request, first, last: int32 `[rows]`.
        tables: int32 `[requests, blocks]`.
        blocks: how many there are in a table.
        extra_offsets: int32 `[rows + 1]`.
        extra_slots: int32.
    """

    tokens: bytes
    slots: bytes
    positions: bytes
    row_request: bytes
    first: bytes
    last: bytes
    tables: bytes
    blocks: int
    extra_offsets: bytes
    extra_slots: bytes

    @classmethod
    def of(cls, batch: Batch) -> "Forward":
        """Return the order to run a batch."""
        view = batch.view
        return cls(
            _bytes(batch.tokens),
            _bytes(batch.slots),
            _bytes(batch.positions),
            _bytes(view.row_request),
            _bytes(view.first),
            _bytes(view.last),
            _bytes(view.tables),
            view.tables.shape[1],
            _bytes(view.extra_offsets),
            _bytes(view.extra_slots),
        )

    @property
    def batch(self) -> Batch:
        """The batch, without the assignment of rows to stretches of tokens."""
        view = AttentionView(
            tables=_tensor(self.tables, np.int32).view(-1, self.blocks),
            row_request=_tensor(self.row_request, np.int32),
            first=_tensor(self.first, np.int32),
            last=_tensor(self.last, np.int32),
            extra_offsets=_tensor(self.extra_offsets, np.int32),
            extra_slots=_tensor(self.extra_slots, np.int32),
        )
        tokens, slots = _tensor(self.tokens, np.int64), _tensor(self.slots, np.int64)
        return Batch(tokens, _tensor(self.positions, np.int32), slots, view, ())


class Logits(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Compute the logits of some rows of the last batch."""

    rows: tuple[int, ...]


class Move(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Copy keys and values from slots to slots, in every layer."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]


class Array(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A tensor of at least one number.

    Attributes:
        dtype: its name in torch.
        shape: of one or more dimensions.
        data: the numbers, row by row.
    """

    dtype: Literal["float32", "bfloat16", "int32", "int64"]
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, values: Tensor) -> "Array":
        """Return a tensor of one of those dtypes as data."""
        name: Any = str(values.dtype).removeprefix("torch.")
        return cls(name, tuple(values.shape), _bytes(values.reshape(-1).contiguous().view(torch.uint8)))

    @property
    def tensor(self) -> Tensor:
        """The tensor, in memory of its own."""
        return _tensor(self.data, np.uint8).view(getattr(torch, self.dtype)).view(self.shape)


class Call(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Run a pass of the proposer whose layers several ranks share.

    Attributes:
        name: of the pass.
        given: its arguments; a `Forward` stands for its batch.
    """

    name: str
    given: tuple[int | Array | Forward, ...]

    @classmethod
    def of(cls, name: str, arguments: Iterable[Any]) -> "Call":
        """Return the order for a pass with some whole numbers, tensors and batches."""
        return cls(name, tuple(_DATA[type(one)](one) for one in arguments))

    @property
    def arguments(self) -> list[int | Tensor | Batch]:
        """What the pass is given."""
        return [one if isinstance(one, int) else _value(one) for one in self.given]


_DATA: Mapping[type, Callable[[Any], int | Array | Forward]] = {int: int, Tensor: Array.of, Batch: Forward.of}


def _value(data: Array | Forward) -> Tensor | Batch:
    return data.tensor if isinstance(data, Array) else data.batch


class Collect(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Take the results of the oldest pass that is under way: for the first of several stages."""


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """End, and do not come again before something has changed.

    Attributes:
        reason: what has to change, for the user of the rank's machine.
    """

    reason: str


Order = Forward | Logits | Move | Call | Collect | Refusal
OnOrder = Callable[[Order], AbstractContextManager[None]]  # the region in which rank 0 carries it out

_decoder = msgspec.msgpack.Decoder(Order)
encode: Callable[[Order], bytes] = msgspec.msgpack.Encoder().encode
decode: Callable[[bytes], Order] = _decoder.decode


_ALONE = nullcontext()


def nobody(order: Order) -> AbstractContextManager[None]:
    """Send nothing: for a model of one rank."""
    return _ALONE


def _bytes(values: Tensor) -> bytes:
    return values.numpy().tobytes()


def _tensor(data: bytes, dtype: type[np.generic]) -> Tensor:
    values: np.ndarray[Any, Any] = np.frombuffer(data, dtype).copy()
    return torch.from_numpy(values)


def slots_of(order: Move) -> tuple[Tensor, Tensor]:
    """Return the slots of an order in the form that kernels take."""
    return _slots(order.sources), _slots(order.targets)


def _slots(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)
