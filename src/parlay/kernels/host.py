"""Host memory, for kernels that run on the CPU."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter
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
            self.device = torch.zeros(size, dtype=torch.uint8)

    def renew(self) -> None:  # noqa: D102
        pass

    def send(self, size: int) -> None:  # noqa: D102
        self.device[:size].copy_(self.host[:size])


@dataclass(frozen=True, slots=True)
class Instant:
    """`Mark` on the host, where kernels have ended when they return."""

    seconds: float

    def seconds_since(self, earlier: Self) -> float:  # noqa: D102
        return self.seconds - earlier.seconds


class HostMemory:
    """The memory part of `Kernels`: tensors stay where torch makes them."""

    @property
    def host(self) -> Self:  # noqa: D102
        return self

    def device_context(self) -> AbstractContextManager[object]:  # noqa: D102
        return _HERE

    def to_device(self, tensor: Tensor) -> Tensor:  # noqa: D102
        return tensor

    def staging(self, size: int) -> CopiedStaging:  # noqa: D102
        return CopiedStaging(size, self.device_context())

    def is_on_device(self, tensor: Tensor) -> bool:  # noqa: D102
        return True

    def mark(self) -> Instant:  # noqa: D102
        return Instant(perf_counter())
