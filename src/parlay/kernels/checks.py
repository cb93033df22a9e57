"""Whether tensors are what the native kernels take them for, which get nothing but their addresses."""

import torch
from torch import Tensor

from parlay.kernels.base import Filters


def sound(first: Tensor, *others: Tensor) -> bool:
    """Whether all tensors are contiguous and of the first one's dtype. A plain loop: a step asks dozens of times."""
    dtype = first.dtype
    for tensor in others:
        if tensor.dtype is not dtype or not tensor.is_contiguous():
            return False
    return (dtype is torch.bfloat16 or dtype is torch.float32) and first.is_contiguous()


def fits(filters: Filters | None, rows: int) -> bool:
    """Whether filters are contiguous, of the right types and of so many rows."""
    if filters is None:
        return True
    tensors = (filters.min_p, filters.top_k, filters.top_p)
    types = (torch.float64, torch.int64, torch.float64)
    return all(t.dtype is d and t.shape == (rows,) and t.is_contiguous() for t, d in zip(tensors, types, strict=True))
