"""Where tensors of kernels lie that compute on the machine's own processor."""

from contextlib import AbstractContextManager, nullcontext
from typing import Self

from torch import Tensor

_HERE: AbstractContextManager[object] = nullcontext()


class HostMemory:
    """The part of `Kernels` that says where tensors lie: where torch makes them."""

    @property
    def host(self) -> Self:  # noqa: D102
        return self

    def here(self) -> AbstractContextManager[object]:  # noqa: D102
        return _HERE

    def place(self, tensor: Tensor) -> Tensor:  # noqa: D102
        return tensor

    def holds(self, tensor: Tensor) -> bool:  # noqa: D102
        return True
