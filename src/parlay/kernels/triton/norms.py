"""Norms, in Triton: one program has a whole row or a whole head, so the order of a sum is a matter of its width."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from .elementwise import sigmoid
from .launch import EXACT, padded, rounded


def warps(block: int) -> int:
    """Return how many warps sum up a vector of that length."""
    return min(max(block // 512, 1), 16)


@triton.jit
def mean_scale(squares, COUNT: tl.constexpr, eps):
    """Return `1 / sqrt(squares / COUNT + eps)`."""
    return tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(squares, COUNT * 1.0) + eps))


@triton.jit
def weighted(normal, weight, dtype: tl.constexpr, PLUS_ONE: tl.constexpr = False):
    """Return a norm's output: rounded before the weight and behind it, unless the weight is stored less one."""
    y = normal * (1.0 + weight) if PLUS_ONE else rounded(normal, dtype) * weight
    return rounded(y, dtype)


@triton.jit(do_not_specialize_on_alignment=["x", "delta", "weight", "bias", "out"])
def _norm(x, delta, weight, bias, out, eps, WIDTH: tl.constexpr, PLUS_ONE: tl.constexpr, BLOCK: tl.constexpr):
    """Without a bias an RMS norm, else a layer norm; with `delta` that is added to x first."""
    first = tl.program_id(0).to(tl.int64) * WIDTH
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    dtype: tl.constexpr = out.dtype.element_ty
    value = tl.load(x + first + column, mask=inside, other=0.0).to(tl.float32)
    if delta is not None:
        value += tl.load(delta + first + column, mask=inside, other=0.0).to(tl.float32)
        value = rounded(value, dtype)
        tl.store(x + first + column, value.to(dtype), mask=inside)
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if bias is None:
        y = weighted(value * mean_scale(tl.sum(value * value), WIDTH, eps), factor, dtype, PLUS_ONE)
    else:
        distance = tl.where(inside, value - tl.div_rn(tl.sum(value), WIDTH * 1.0), 0.0)
        normal = distance * mean_scale(tl.sum(distance * distance), WIDTH, eps)
        y = normal * factor + tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        y = rounded(y, dtype)
    tl.store(out + first + column, y.to(dtype), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["qkv", "q_weight", "k_weight", "v_weight"])
def _head_norm(
    qkv,
    q_weight,
    k_weight,
    v_weight,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    head = tl.program_id(1)
    first = (tl.program_id(0).to(tl.int64) * (HEADS + 2 * KV_HEADS) + head) * DIM
    column = tl.arange(0, BLOCK)
    inside = column < DIM
    dtype: tl.constexpr = qkv.dtype.element_ty
    value = tl.load(qkv + first + column, mask=inside, other=0.0).to(tl.float32)
    if head < HEADS:
        factor = tl.load(q_weight + column, mask=inside, other=0.0)
    else:
        factor = tl.load(k_weight + column, mask=inside, other=0.0)
        if v_weight is not None and head >= HEADS + KV_HEADS:
            factor = tl.load(v_weight + column, mask=inside, other=0.0)
    factor = factor.to(tl.float32)
    y = weighted(value * mean_scale(tl.sum(value * value), DIM, eps), factor, dtype, PLUS_ONE)
    tl.store(qkv + first + column, y.to(dtype), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["qkv", "q_squares", "k_squares"])
def _head_squares(
    qkv, q_squares, k_squares, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    from_row = qkv + (row * (HEADS + 2 * KV_HEADS) + head) * DIM
    value = tl.load(from_row + column, mask=column < DIM, other=0.0).to(tl.float32)
    total = tl.sum(value * value)
    if head < HEADS:
        tl.store(q_squares + row * HEADS + head, total)
    else:
        tl.store(k_squares + row * KV_HEADS + head - HEADS, total)


@triton.jit
def _sum_of(squares, COUNT: tl.constexpr):
    # One by one: the contract fixes the order.
    total = 0.0
    for head in tl.static_range(COUNT):
        total += tl.load(squares + head)
    return total


@triton.jit(do_not_specialize_on_alignment=["qkv", "q_weight", "k_weight", "q_squares", "k_squares"])
def _joint_norm(
    qkv,
    q_weight,
    k_weight,
    q_squares,
    k_squares,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    ALL_HEADS: tl.constexpr,
    ALL_KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < DIM
    dtype: tl.constexpr = qkv.dtype.element_ty
    if head < HEADS:
        scale = mean_scale(_sum_of(q_squares + row * ALL_HEADS, ALL_HEADS), ALL_HEADS * DIM, eps)
        factor = tl.load(q_weight + head * DIM + column, mask=inside, other=0.0)
    else:
        scale = mean_scale(_sum_of(k_squares + row * ALL_KV_HEADS, ALL_KV_HEADS), ALL_KV_HEADS * DIM, eps)
        factor = tl.load(k_weight + (head - HEADS) * DIM + column, mask=inside, other=0.0)
    values = qkv + (row * (HEADS + 2 * KV_HEADS) + head) * DIM + column
    normal = tl.load(values, mask=inside, other=0.0).to(tl.float32) * scale
    tl.store(values, weighted(normal, factor.to(tl.float32), dtype).to(dtype), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["x", "gate", "weight", "out"])
def _gated_norm(
    x,
    gate,
    weight,
    out,
    eps,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    SHARED: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    group = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < GROUP
    dtype: tl.constexpr = out.dtype.element_ty
    place = tl.program_id(0).to(tl.int64) * WIDTH + group * GROUP + column
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    opened = tl.load(gate + place, mask=inside, other=0.0).to(tl.float32)
    opened = opened * sigmoid(opened)
    if GATE_FIRST:
        value = value * opened
    if SHARED:  # by all groups
        factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    else:
        factor = tl.load(weight + group * GROUP + column, mask=inside, other=0.0).to(tl.float32)
    y = weighted(value * mean_scale(tl.sum(value * value), GROUP, eps), factor, dtype)
    if not GATE_FIRST:
        y = rounded(y * opened, dtype)
    tl.store(out + place, y.to(dtype), mask=inside)


def _by_parts(kernel: Any, rows: int, parts: int, width: int, *arguments: Any) -> None:
    """Run `kernel` on all parts of all rows, each of `width` columns."""
    if rows and parts and width:
        block = padded(width)
        kernel[rows, parts](*arguments, BLOCK=block, num_warps=warps(block), **EXACT)


class TritonNorms:
    """Norms; see `Kernels` for what each method does."""

    def rms_norm(  # noqa: D102
        self,
        x: Tensor,
        weight: Tensor,
        eps: float,
        out: Tensor,
        plus_one: bool = False,
        delta: Tensor | None = None,
    ) -> None:
        rows, width = x.shape
        _by_parts(_norm, rows, 1, width, x, delta, weight, None, out, float(eps), width, plus_one)

    def head_norm(  # noqa: D102
        self,
        qkv: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        heads: int,
        eps: float,
        plus_one: bool = False,
        v_weight: Tensor | None = None,
    ) -> None:
        dim = len(q_weight)
        kv_heads = (qkv.shape[1] // dim - heads) // 2
        parts = heads + (kv_heads if v_weight is None else 2 * kv_heads)
        weights = q_weight, k_weight, v_weight
        _by_parts(_head_norm, len(qkv), parts, dim, qkv, *weights, float(eps), heads, kv_heads, dim, plus_one)

    def head_squares(self, qkv: Tensor, q_squares: Tensor, k_squares: Tensor) -> None:  # noqa: D102
        heads, kv_heads = q_squares.shape[1], k_squares.shape[1]
        dim = qkv.shape[1] // max(heads + 2 * kv_heads, 1)
        _by_parts(_head_squares, len(qkv), heads + kv_heads, dim, qkv, q_squares, k_squares, heads, kv_heads, dim)

    def joint_norm(  # noqa: D102
        self,
        qkv: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        q_squares: Tensor,
        k_squares: Tensor,
        heads: int,
        eps: float,
    ) -> None:
        dim = len(q_weight) // max(heads, 1)
        kv_heads = len(k_weight) // max(dim, 1)
        counts = heads, kv_heads, q_squares.shape[1], k_squares.shape[1], dim
        tensors = qkv, q_weight, k_weight, q_squares, k_squares
        _by_parts(_joint_norm, len(qkv), heads + kv_heads, dim, *tensors, float(eps), *counts)

    def layer_norm(  # noqa: D102
        self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor, delta: Tensor | None = None
    ) -> None:
        rows, width = x.shape
        _by_parts(_norm, rows, 1, width, x, delta, weight, bias, out, float(eps), width, False)

    def gated_norm(  # noqa: D102
        self, x: Tensor, gate: Tensor, weight: Tensor, group: int, eps: float, gate_first: bool, out: Tensor
    ) -> None:
        rows, width = x.shape
        shared = len(weight) == group
        options = float(eps), width, group, shared, gate_first
        _by_parts(_gated_norm, rows, width // max(group, 1), group, x, gate, weight, out, *options)
