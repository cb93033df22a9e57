"""Small arrays on their way to where kernels read them: in one copy, where that is a GPU's memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parlay.kernels.base import Kernels

ALIGNED = 16  # bytes, where each array begins


def aligned(size: int) -> int:
    """Return where the next array begins behind so many bytes."""
    return -(-size // ALIGNED) * ALIGNED


def sent(kernels: Kernels, arrays: Sequence[Tensor]) -> list[Tensor]:
    """Return arrays of the host where kernels read them; all go there in one copy."""
    if kernels.host is kernels:
        return [*arrays]
    sizes = [array.numel() * array.element_size() for array in arrays]
    begins, end = list[int](), 0
    for size in sizes:
        begins.append(end)
        end += aligned(size)
    packed = np.empty(end, np.uint8)
    for array, begin, size in zip(arrays, begins, sizes, strict=True):
        packed[begin : begin + size] = array.contiguous().numpy().reshape(-1).view(np.uint8)
    whole = kernels.to_device(torch.from_numpy(packed))
    return [
        whole[begin : begin + size].view(array.dtype).view(array.shape)
        for array, begin, size in zip(arrays, begins, sizes, strict=True)
    ]


def fetched(kernels: Kernels, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors that kernels have written, on the host; all come in one copy."""
    if kernels.host is kernels:
        return [*tensors]
    # Of a tensor with one element any stride is contiguous, but not to `view`.
    flat = [tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8) for tensor in tensors]
    whole = torch.cat(flat).cpu()
    parts = torch.split(whole, [len(one) for one in flat])
    return [part.clone().view(tensor.dtype).view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


@dataclass(frozen=True, slots=True)
class Upload:
    """Arrays of the host that go to where kernels read in one copy.

    Attributes:
        arrays: all of them.
        targets: tensors that the last of them are written to.
    """

    arrays: Sequence[Tensor]
    targets: Sequence[Tensor]

    def unpack(self, arrays: Sequence[Tensor]) -> list[Tensor]:
        """Write to the targets, and return the other arrays; given all of them where kernels read."""
        own = len(arrays) - len(self.targets)
        for target, array in zip(self.targets, arrays[own:], strict=True):
            target.copy_(array)
        return [*arrays[:own]]


class Uploads:
    """Numbers that are written to tensors of kernels: at once on the host, together on a GPU."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self.apart = kernels.host is not kernels
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def write(self, target: Tensor, values: NDArray[np.generic] | Tensor) -> None:
        """Write values of the host to a tensor, or a part of one; they are there once `send` has been called."""
        array = values if isinstance(values, Tensor) else torch.from_numpy(values)
        if self.apart:
            self._waiting.append((target, array.to(target.dtype)))
        else:
            target.copy_(array)

    def take(self, arrays: Sequence[Tensor] = ()) -> Upload:
        """Return what waits as one upload, with further arrays of the host before it."""
        waiting, self._waiting = self._waiting, []
        return Upload([*arrays, *(array for _, array in waiting)], [target for target, _ in waiting])

    def send(self, arrays: Sequence[Tensor] = ()) -> list[Tensor]:
        """Send what waits, and return further arrays where kernels read them."""
        upload = self.take(arrays)
        return upload.unpack(sent(self._kernels, upload.arrays)) if upload.arrays else []
