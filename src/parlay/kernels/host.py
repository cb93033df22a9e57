"""Where tensors of kernels lie that compute on the machine's own processor."""

from contextlib import AbstractContextManager, nullcontext
from typing import Self

import torch
from torch import Tensor

_HERE: AbstractContextManager[object] = nullcontext()


class CopiedStaging:
    """`Staging` whose copies are done when they return."""

    def __init__(self, size: int, here: AbstractContextManager[object] = _HERE) -> None:
        """Allocate so many bytes twice, those that kernels read within a context."""
        self.host = torch.zeros(size, dtype=torch.uint8, device="cpu")
        with here:
            self.there = torch.zeros(size, dtype=torch.uint8)

    def renew(self) -> None:  # noqa: D102
        pass

    def send(self, size: int) -> None:  # noqa: D102
        self.there[:size].copy_(self.host[:size])


class HostMemory:
    """The part of `Kernels` that says where tensors lie: where torch makes them."""

    @property
    def host(self) -> Self:  # noqa: D102
        return self

    def here(self) -> AbstractContextManager[object]:  # noqa: D102
        return _HERE

    def place(self, tensor: Tensor) -> Tensor:  # noqa: D102
        return tensor

    def staging(self, size: int) -> CopiedStaging:  # noqa: D102
        return CopiedStaging(size, self.here())

    def holds(self, tensor: Tensor) -> bool:  # noqa: D102
        return True
