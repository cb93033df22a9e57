"""Memory for what a step reads in one stream: in pages of 2 MB, where the system has them."""

import mmap
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from parlay import system

_PAGE = 2 * 1024 * 1024


def empty_huge(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return an uninitialised tensor; its memory is asked for in huge pages if it fills at least one."""
    count = prod(shape)
    size = count * dtype.itemsize
    if size < _PAGE:
        return torch.empty(tuple(shape), dtype=dtype)
    memory = mmap.mmap(-1, size + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # kept alive by the tensor
    system.advise_huge_pages(memory)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % _PAGE
    return whole[start : start + size].view(dtype).view(tuple(shape))
