"""Where tensors lie that kernels read, the machine's memory or a GPU's, and how long kernels took there."""

from contextlib import AbstractContextManager
from typing import Protocol, Self

from torch import Tensor


class Staging(Protocol):
    """A host buffer and its copy where kernels read, filled by one copy that may end later.

    Attributes:
        host: uint8 `[size]`, in the machine's memory.
        device: uint8 `[size]`, where kernels read.
    """

    host: Tensor
    device: Tensor

    def renew(self) -> None:
        """Wait until `host` may be written: until the copy before has ended."""
        ...

    def send(self, size: int) -> None:
        """Copy the first bytes."""
        ...


class Mark(Protocol):
    """A point in what kernels were given to do."""

    def seconds_since(self, earlier: Self) -> float:
        """Return the seconds that the kernels took from an earlier mark to here, once they have come so far."""
        ...


class DeviceMemory(Protocol):
    """What a device offers for its memory, and its time."""

    def device_context(self) -> AbstractContextManager[object]:
        """Return a context in which new tensors lie in the memory that the kernels read."""
        ...

    def to_device(self, tensor: Tensor) -> Tensor:
        """Return a tensor in that memory: itself if it is there already."""
        ...

    def is_on_device(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in that memory."""
        ...

    def staging(self, size: int) -> Staging:
        """Return so many bytes in both memories."""
        ...

    def mark(self) -> Mark:
        """Return a mark behind what the kernels were given so far."""
        ...
