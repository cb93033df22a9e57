"""What rank 0 sends to the other ranks of a model: the passes it runs, and nothing about requests.

Ranks that share layers compute each of them together. So rank 0 announces each operation before it runs it, and the
others do the same in the same order; results are exchanged only within the layers. All that decides (the scheduler,
verification, drafting, processors) is on rank 0.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from parlay.kernels.base import AttentionMetadata, StateMetadata
from parlay.runner.batch import Batch


class Array(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A tensor.

    Attributes:
        dtype: name of its dtype in torch.
        shape: size of each of its one or more dimensions.
        data: the numbers, row by row.
    """

    dtype: Literal["float32", "bfloat16", "int32", "int64"]
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, values: Tensor) -> "Array":
        """Return a tensor of one of those dtypes as data."""
        name: Any = str(values.dtype).removeprefix("torch.")
        data = values.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
        return cls(name, tuple(values.shape), data)

    @property
    def tensor(self) -> Tensor:
        """The tensor, in memory of its own."""
        made = torch.empty(self.shape, dtype=getattr(torch, self.dtype))
        made.view(-1).view(torch.uint8).numpy()[:] = np.frombuffer(self.data, np.uint8)
        return made


class Forward(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Run a batch through the layers.

    Attributes:
        tensors: the batch's tokens, positions and slots, and what its view and its states have, in the order of their
            fields.
    """

    tensors: tuple[Array, ...]

    @classmethod
    def of(cls, batch: Batch) -> "Forward":
        """Return the order to run a batch."""
        view = (getattr(batch.view, field.name) for field in fields(AttentionMetadata))
        states = (
            () if batch.states is None else (getattr(batch.states, field.name) for field in fields(StateMetadata))
        )
        return cls(tuple(map(Array.of, (batch.tokens, batch.positions, batch.slots, *view, *states))))

    @property
    def batch(self) -> Batch:
        """The batch, without the assignment of rows to segments of tokens."""
        tokens, positions, slots, *views = (one.tensor for one in self.tensors)
        own = len(fields(AttentionMetadata))
        states = StateMetadata(*views[own:]) if len(views) > own else None
        return Batch(tokens, positions, slots, AttentionMetadata(*views[:own]), (), states)


class Logits(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Compute the logits of some rows of the last batch."""

    rows: tuple[int, ...]


class Move(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Copy keys and values from slots to slots, in every layer."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]


class Call(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Run a pass of the proposer whose layers several ranks share.

    Attributes:
        name: name of the pass.
        given: arguments of the pass; a `Forward` stands for its batch.
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
    """End the rank, which is not to join again before the reason is gone.

    Attributes:
        reason: why, for the user of the rank's machine.
    """

    reason: str


Order = Forward | Logits | Move | Call | Collect | Refusal
Broadcast = Callable[[Order], AbstractContextManager[None]]  # the context in which rank 0 carries it out

_decoder = msgspec.msgpack.Decoder(Order)
encode: Callable[[Order], bytes] = msgspec.msgpack.Encoder().encode
decode: Callable[[bytes], Order] = _decoder.decode


_ALONE = nullcontext()


def no_broadcast(order: Order) -> AbstractContextManager[None]:
    """Send nothing: for a model of one rank."""
    return _ALONE


def slots_of(order: Move) -> tuple[Tensor, Tensor]:
    """Return the slots of an order in the form that kernels take."""
    return _slots(order.sources), _slots(order.targets)


def _slots(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)
