"""Rows of a KV cache in eight bits: the slow, obvious twin of csrc/cache_rows.h, bit for bit.

A row is stored as blocks of 32 numbers with a scale each, like a weight of GGUF's kind Q8_0.
"""

import numpy as np
import torch
from torch import Tensor

from parlay.types.cache import row_bytes
from parlay.weights.quantise import INT8, to_int8
from parlay.weights.weight import Part

_NAN = 0x7E  # the second byte of a scale that is not a number


def write_rows(cache: Tensor, blocks: Tensor, offsets: Tensor, rows: Tensor) -> None:
    """Store rows at slots of a cache.

    Args:
        cache: T `[num_blocks, KV, block_size, D]`, or uint8 `[num_blocks, KV, block_size, row_bytes(D)]`.
        blocks: int64 `[rows]`.
        offsets: int64 `[rows]`, within the blocks.
        rows: T `[rows, KV, D]`.
    """
    cache[blocks, :, offsets] = in_bytes(rows) if cache.dtype == torch.uint8 else rows


def read_rows(cache: Tensor, blocks: Tensor, offsets: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rows of a cache, `[rows, KV, D]` in `dtype`; see `write_rows`."""
    rows = cache[blocks, :, offsets]
    return in_numbers(rows, dtype) if cache.dtype == torch.uint8 else rows


def in_bytes(rows: Tensor) -> Tensor:
    """Return rows `[..., D]` as uint8 `[..., row_bytes(D)]`; blocks with a number that is not finite are NaN."""
    if not rows.numel():
        return torch.empty((*rows.shape[:-1], row_bytes(rows.shape[-1])), dtype=torch.uint8)
    chunks = rows.float().reshape(-1, INT8.block)
    lost = ~chunks.isfinite().all(dim=1)
    data = to_int8(chunks.masked_fill(lost[:, None], 0)).parts[0].data
    data[lost, 1] = _NAN
    return data.reshape(*rows.shape[:-1], -1)


def in_numbers(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rows that `in_bytes` made, rounded to `dtype`."""
    if not rows.numel():
        return torch.empty((*rows.shape[:-1], rows.shape[-1] // INT8.size * INT8.block), dtype=dtype)
    with np.errstate(invalid="ignore"):  # a scale beyond float16 is infinite
        numbers = Part(INT8, rows.reshape(-1, INT8.size)).numbers()
    return numbers.to(dtype).reshape(*rows.shape[:-1], -1)
