"""Rotary positions and what is stored of a row for later ones, in Triton: one program per head of a row."""

import triton
import triton.language as tl
from torch import Tensor

from .cache_rows import store_row
from .launch import EXACT, padded, rounded
from .norms import mean_scale, warps, weighted


@triton.jit
def _turned(head, cos_sin, column, turning, HALF: tl.constexpr):
    """Return a head's columns, of which those in `turning` are rotated, in float32 and not rounded.

    `column` counts from the head's first; without `turning` numbers stay as they are.
    """
    upper = column >= HALF
    index = tl.where(upper, column - HALF, column)
    own = tl.load(head + column, mask=turning, other=0.0).to(tl.float32)
    other = tl.load(head + tl.where(upper, index, column + HALF), mask=turning, other=0.0).to(tl.float32)
    cos = tl.load(cos_sin + index, mask=turning, other=0.0)
    sin = tl.load(cos_sin + HALF + index, mask=turning, other=0.0)
    return tl.where(upper, own * cos + other * sin, own * cos - other * sin)


@triton.jit(
    do_not_specialize_on_alignment=[
        "qkv",
        "positions",
        "slots",
        "cos_sin",
        "q_out",
        "key_cache",
        "value_cache",
        "q_norm",
        "k_norm",
    ]
)
def _rotary_store(
    qkv,
    positions,
    slots,
    cos_sin,
    q_out,
    key_cache,
    value_cache,
    q_norm,
    k_norm,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TURNING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    number = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    turns = number < HEADS + KV_HEADS  # no value does
    inside = column < tl.where(turns, DIM, VALUE_DIM)
    dtype: tl.constexpr = qkv.dtype.element_ty
    before = tl.minimum(number, HEADS + KV_HEADS)
    head = (
        qkv + row * ((HEADS + KV_HEADS) * DIM + KV_HEADS * VALUE_DIM) + before * DIM + (number - before) * VALUE_DIM
    )
    value = tl.load(head + column, mask=inside, other=0.0)
    if TURNING > 0:
        turning = column < tl.where(turns, TURNING, 0)
        at = tl.load(positions + row).to(tl.int64)
        turned = _turned(head, cos_sin + at * TURNING, column, turning, TURNING // 2)
        value = tl.where(turning, rounded(turned, dtype).to(dtype), value)
    if q_norm is not None and turns:
        if number < HEADS:
            factor = tl.load(q_norm + column, mask=inside, other=0.0)
        else:
            factor = tl.load(k_norm + column, mask=inside, other=0.0)
        wide = value.to(tl.float32)
        scale = mean_scale(tl.sum(wide * wide), DIM, eps)
        value = weighted(wide * scale, factor.to(tl.float32), dtype).to(dtype)
    if number < HEADS:
        tl.store(q_out + (row * HEADS + number) * DIM + column, value, mask=inside)
    elif KV_HEADS > 0:
        slot = tl.load(slots + row)
        if slot >= 0:
            first = slot // BLOCK_SIZE * KV_HEADS * BLOCK_SIZE + slot % BLOCK_SIZE
            if turns:
                store_row(key_cache, first + (number - HEADS) * BLOCK_SIZE, value, DIM, BLOCK)
            else:
                store_row(value_cache, first + (number - HEADS - KV_HEADS) * BLOCK_SIZE, value, VALUE_DIM, BLOCK)


@triton.jit(do_not_specialize_on_alignment=["query", "latent", "norm", "positions", "slots", "cos_sin", "cache"])
def _latent_store(
    query,
    latent,
    norm,
    eps,
    positions,
    slots,
    cos_sin,
    cache,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    TURNING: tl.constexpr,
    TURNING_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    number = tl.program_id(1)
    column = tl.arange(0, TURNING_BLOCK)
    turning = column < TURNING
    dtype: tl.constexpr = query.dtype.element_ty
    table = cos_sin + tl.load(positions + row).to(tl.int64) * TURNING
    if number < HEADS:
        head = query + (row * HEADS + number) * DIM
        turned = _turned(head, table, column, turning, TURNING // 2)
        tl.debug_barrier()  # a thread may read what another one writes
        tl.store(head + column, rounded(turned, dtype).to(dtype), mask=turning)
    else:
        slot = tl.load(slots + row)
        if slot >= 0:
            head, whole = latent + row * DIM, tl.arange(0, BLOCK)
            turned = _turned(head, table, whole, whole < TURNING, TURNING // 2)
            still = (whole >= TURNING) & (whole < DIM)
            value = tl.load(head + whole, mask=still, other=0.0).to(tl.float32)
            factor = tl.load(norm - TURNING + whole, mask=still, other=0.0).to(tl.float32)
            normal = weighted(value * mean_scale(tl.sum(value * value), DIM - TURNING, eps), factor, dtype)
            entry = tl.where(still, normal, rounded(turned, dtype)).to(dtype)
            store_row(cache, slot, entry, DIM, BLOCK)


class TritonRotary:
    """Rotations, and stores in the cache; see `Kernels` for what each method does."""

    def rotary_store(  # noqa: D102
        self,
        qkv: Tensor,
        positions: Tensor,
        slots: Tensor,
        cos_sin: Tensor,
        q_out: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 0.0,
    ) -> None:
        rows, heads, dim = q_out.shape
        _, kv_heads, block_size, _ = key_cache.shape
        if not rows or not heads + 2 * kv_heads:
            return
        if q_norm is None or k_norm is None:
            q_norm = k_norm = None
        value_dim = (qkv.shape[1] - (heads + kv_heads) * dim) // kv_heads if kv_heads else dim
        block = padded(max(dim, value_dim))
        _rotary_store[rows, heads + 2 * kv_heads](
            qkv,
            positions,
            slots,
            cos_sin,
            q_out,
            key_cache,
            value_cache,
            q_norm,
            k_norm,
            float(eps),
            heads,
            kv_heads,
            block_size,
            dim,
            value_dim,
            cos_sin.shape[1],
            block,
            num_warps=warps(block),
            **EXACT,
        )

    def latent_store(  # noqa: D102
        self,
        query: Tensor,
        latent: Tensor,
        norm: Tensor,
        eps: float,
        positions: Tensor,
        slots: Tensor,
        cos_sin: Tensor,
        cache: Tensor,
    ) -> None:
        rows, heads, dim = query.shape
        if not rows:
            return
        turning = cos_sin.shape[1]
        block = padded(dim)
        _latent_store[rows, heads + 1](
            query,
            latent,
            norm,
            float(eps),
            positions,
            slots,
            cos_sin,
            cache,
            heads,
            dim,
            turning,
            padded(turning),
            block,
            num_warps=warps(block),
            **EXACT,
        )
