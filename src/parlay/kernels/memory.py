"""Where tensors lie that kernels read: the machine's memory or a GPU's."""

from contextlib import AbstractContextManager
from typing import Protocol

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


class DeviceMemory(Protocol):
    """What a device offers for its memory."""

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
