"""What layers read their tensors from."""

from typing import Protocol

import torch
from torch import Tensor

from parlay.weights.kinds import Kind
from parlay.weights.weight import Weight


class Readable(Protocol):
    """Tensors by name: a `Checkpoint`, or some in memory."""

    def read(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """As `Checkpoint.read`."""
        ...

    def read_weight(self, name: str, dtype: torch.dtype) -> Weight:
        """As `Checkpoint.read_weight`."""
        ...

    def head_kinds(self, name: str) -> tuple[Kind | None, Kind | None]:
        """As `Checkpoint.head_kinds`."""
        ...

    def read_head(self, name: str, head: int, *, values: bool) -> Weight:
        """As `Checkpoint.read_head`."""
        ...
