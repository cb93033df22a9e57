"""Rows of a KV cache, plain or in eight bits (see `kernels.reference_cache_rows`)."""

import triton
import triton.language as tl

from parlay.kernels.triton.launch import rounded
from parlay.types.cache import NUMBERS_PER_SCALE, row_bytes

_NUMBERS = tl.constexpr(NUMBERS_PER_SCALE)
_BYTES = tl.constexpr(row_bytes(NUMBERS_PER_SCALE))
_NAN = tl.constexpr(0x7E00)  # the scale of a block with a number that is not finite
_WHOLE = tl.constexpr(12582912.0)  # 1.5 * 2^23: the sum with a number below 2^22 has no fraction, ties go to even


@triton.jit
def load_rows(cache, place, column, inside, width, dtype: tl.constexpr):
    """Return rows of a cache, `[rows, columns]` in `dtype`, with 0 outside.

    Args:
        cache: numbers in `dtype`, or bytes.
        place: int64 `[rows]`, which.
        column: `[columns]`.
        inside: `[rows, columns]`.
        width: numbers per row.
    """
    if cache.dtype.element_ty == tl.uint8:
        at = cache + (place * (width // _NUMBERS * _BYTES))[:, None] + (column // _NUMBERS * _BYTES)[None, :]
        low, high = tl.load(at, mask=inside, other=0), tl.load(at + 1, mask=inside, other=0)
        scale = (low.to(tl.uint16) | (high.to(tl.uint16) << 8)).to(tl.float16, bitcast=True).to(tl.float32)
        code = tl.load(at + 2 + (column % _NUMBERS)[None, :], mask=inside, other=0).to(tl.int8, bitcast=True)
        numbers = rounded(scale * code.to(tl.float32), dtype).to(dtype)
    else:
        numbers = tl.load(cache + place[:, None] * width + column[None, :], mask=inside, other=0.0)
    return numbers


@triton.jit
def store_row(cache, place, row, width, block: tl.constexpr):
    """Store a row, `[block]` with 0 beyond `width`, at `place` of a cache."""
    if cache.dtype.element_ty == tl.uint8:
        count: tl.constexpr = block // _NUMBERS
        x = tl.reshape(row.to(tl.float32), (count, _NUMBERS))
        lost = tl.min((tl.abs(x) < float("inf")).to(tl.int32), 1) == 0
        x = tl.where(lost[:, None], 0.0, x)
        scale = tl.div_rn(tl.max(tl.abs(x), 1), tl.full((count,), 127.0, tl.float32)).to(tl.float16)
        each = tl.where(scale != 0, scale.to(tl.float32), float("inf"))
        level = tl.div_rn(x, tl.broadcast_to(each[:, None], (count, _NUMBERS)))
        level = tl.minimum(tl.maximum((level + _WHOLE) - _WHOLE, -127.0), 127.0)
        bits = tl.where(lost, _NAN, scale.to(tl.uint16, bitcast=True).to(tl.int32))
        one = tl.arange(0, count)
        at = cache + place * (width // _NUMBERS * _BYTES) + one * _BYTES
        inside = one * _NUMBERS < width
        tl.store(at, (bits & 255).to(tl.uint8), mask=inside)
        tl.store(at + 1, (bits >> 8).to(tl.uint8), mask=inside)
        to = at[:, None] + 2 + tl.arange(0, _NUMBERS)[None, :]
        tl.store(to, level.to(tl.int8).to(tl.uint8, bitcast=True), mask=inside[:, None])
    else:
        column = tl.arange(0, block)
        tl.store(cache + place * width + column, row, mask=column < width)
