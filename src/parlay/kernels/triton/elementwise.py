"""Embedding, activations, other operations on each number by itself, and copies, in Triton.

No number's bits depend on how threads share the work here, so a row may be cut into pieces of any size.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from parlay.kernels.base import Activation, Gate

from .launch import EXACT, padded, rounded

_PIECE = 1024  # columns at most that one program works on


@triton.jit
def sigmoid(x):
    """Return `1 / (1 + e^-x)`."""
    return tl.div_rn(1.0, 1.0 + tl.exp(-x))


@triton.jit
def _gelu(x):
    # x Phi(x); Phi(-t) is e^(-t^2 / 2) h(u) / (1 + t) with the h of csrc/activation.h. Beyond 14.5 it is 0.
    t = tl.minimum(tl.abs(x), 14.5)
    u = tl.div_rn(t - 4.0, t + 4.0)
    h = -7.286278560059145e-05 * u - 6.34155876468867e-05
    h = h * u + 0.0006918377475813031
    h = h * u - 0.00030202537891454995
    h = h * u - 0.00500328978523612
    h = h * u + 0.01793988235294819
    h = h * u - 0.032197535037994385
    h = h * u + 0.028599999845027924
    h = h * u + 0.013999615795910358
    h = h * u - 0.09670346975326538
    h = h * u + 0.472053200006485
    tail = tl.exp(-0.5 * t * t) * tl.div_rn(h, 1.0 + t)
    return x * tl.where(x < 0, tail, 1.0 - tail)


@triton.jit
def activated(x, KIND: tl.constexpr):
    """Return an activation of float32 numbers, see `base.Activation`."""
    if KIND == "silu":
        y = tl.div_rn(x, 1.0 + tl.exp(-x))
    elif KIND == "gelu":
        y = _gelu(x)
    elif KIND == "gelu_tanh":
        twice = x * (x * x * 0.07135481387376785 + 1.5957691669464111)
        y = tl.div_rn(x, 1.0 + tl.exp(-twice))
    elif KIND == "clamped_swiglu":
        low = tl.where(x > 7.0, 7.0, x)  # unlike a minimum it keeps what is not a number
        y = tl.div_rn(low, 1.0 + tl.exp(-1.702 * low))
    else:
        tl.static_assert(KIND == "relu" or KIND == "relu2")
        y = tl.where(x < 0, 0.0, x)
        if KIND == "relu2":
            y = y * y
    return y


@triton.jit
def _tanh(x):
    # Below 0.6 one minus a quotient would lose digits; the polynomial has a relative error of 4e-10 there.
    a = tl.abs(x)
    a = tl.where(a > 20.0, 20.0, a)
    s = a * a
    p = 0.0023707656655460596 * s - 0.008410071022808552
    p = p * s + 0.021788321435451508
    p = p * s - 0.05396155267953873
    p = p * s + 0.13333313167095184
    p = p * s - 0.3333333432674408
    t = tl.where(a < 0.6, a + a * s * p, 1.0 - tl.div_rn(2.0, tl.exp(2.0 * a) + 1.0))
    return tl.where(x < 0, -t, t)


@triton.jit
def softplus(x):
    """ln(1 + e^x), to the last bits where it is small too: 2 artanh(z / (2 + z)) is ln(1 + z)."""
    low = tl.exp(-tl.abs(x))
    z = tl.div_rn(low, 2.0 + low)
    square = z * z
    series = square * (1 / 13) + 1 / 11
    series = series * square + 1 / 9
    series = series * square + 1 / 7
    series = series * square + 1 / 5
    series = series * square + 1 / 3
    series = series * square + 1.0
    return tl.where(x > 0, x, 0.0) + 2.0 * z * series


@triton.jit
def _place(WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    return row, column, column < WIDTH


@triton.jit(do_not_specialize_on_alignment=["out", "weight", "index"])
def _gather(out, weight, index, WIDTH: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row, column, inside = _place(WIDTH, BLOCK)
    source = tl.load(index + row).to(tl.int64)
    value = tl.load(weight + source * WIDTH + column, mask=inside)
    target = out + row * WIDTH + column
    if ADD:
        total = tl.load(target, mask=inside).to(tl.float32) + value.to(tl.float32)
        value = rounded(total, out.dtype.element_ty).to(out.dtype.element_ty)
    tl.store(target, value, mask=inside)


@triton.jit(do_not_specialize_on_alignment=["gate_up", "out"])
def _act_mul(gate_up, out, limit, WIDTH: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr):
    row, column, inside = _place(WIDTH, BLOCK)
    dtype: tl.constexpr = out.dtype.element_ty
    gate = gate_up + row * (2 * WIDTH) + column
    active = rounded(activated(tl.load(gate, mask=inside, other=0.0).to(tl.float32), KIND), dtype)
    up = tl.load(gate + WIDTH, mask=inside, other=0.0).to(tl.float32)
    if KIND == "clamped_swiglu":
        up = tl.where(up > 7.0, 7.0, up)
        up = rounded(tl.where(up < -7.0, -7.0, up) + 1.0, dtype)
    if limit > 0:
        active = rounded(tl.where(active > limit, limit, active), dtype)
        up = tl.where(up > limit, limit, up)
        up = rounded(tl.where(up < -limit, -limit, up), dtype)
    tl.store(out + row * WIDTH + column, rounded(active * up, dtype).to(dtype), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["x", "other"])
def _in_place(x, other, factor, WIDTH: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr):
    row, column, inside = _place(WIDTH, BLOCK)
    dtype: tl.constexpr = x.dtype.element_ty
    value = tl.load(x + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    if KIND == "add_bias":
        value += tl.load(other + column, mask=inside, other=0.0).to(tl.float32)
    elif KIND == "scale":
        value = value * factor
    elif KIND == "soft_cap":
        value = factor * _tanh(tl.div_rn(value, factor))
    elif KIND == "xielu":  # see csrc/activation.h
        t = _tanh(0.5 * tl.minimum(value, tl.load(other + 3)))
        below = tl.load(other + 1) * (tl.div_rn(t + t, 1.0 - t) - value)
        value = tl.where(value > 0, tl.load(other) * value * value, below) + tl.load(other + 2) * value
    else:
        value = activated(value, KIND)
    tl.store(x + row * WIDTH + column, rounded(value, dtype).to(dtype), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["x", "other"])
def _multiply(x, other, GROUP: tl.constexpr, WIDTH: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr):
    row, column, inside = _place(WIDTH, BLOCK)
    dtype: tl.constexpr = x.dtype.element_ty
    value = tl.load(x + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(other + (row * WIDTH + column) // GROUP, mask=inside, other=0.0).to(tl.float32)
    if KIND == "sigmoid":
        factor = rounded(sigmoid(factor), dtype)
    elif KIND == "softplus":
        factor = rounded(softplus(factor), dtype)
    tl.store(x + row * WIDTH + column, rounded(value * factor, dtype).to(dtype), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["cache", "copy", "slots"])
def _move_slots(
    cache,
    copy,
    slots,
    BACK: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    entry = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < DIM
    slot = tl.load(slots + entry)
    place = (slot // BLOCK_SIZE * HEADS + head) * BLOCK_SIZE + slot % BLOCK_SIZE
    cached = cache + place * DIM + column
    copied = copy + (entry * HEADS + head) * DIM + column
    if BACK:
        tl.store(cached, tl.load(copied, mask=inside), mask=inside)
    else:
        tl.store(copied, tl.load(cached, mask=inside), mask=inside)


def _by_pieces(kernel: Any, rows: int, width: int, *arguments: Any, **constants: Any) -> None:
    """Run `kernel` on all pieces of all rows."""
    if rows and width:
        block = min(padded(width), _PIECE)
        kernel[rows, triton.cdiv(width, block)](*arguments, width, **constants, BLOCK=block, num_warps=4, **EXACT)


class TritonElementwise:
    """Operations on each number by itself, and copies; see `Kernels` for what each method does."""

    def embed(self, weight: Tensor, tokens: Tensor, out: Tensor) -> None:  # noqa: D102
        _by_pieces(_gather, *out.shape, out, weight, tokens, ADD=False)

    def act_mul(  # noqa: D102
        self, gate_up: Tensor, activation: Activation, out: Tensor, limit: float = 0.0
    ) -> None:
        _by_pieces(_act_mul, *out.shape, gate_up, out, float(limit), KIND=activation)

    def activate(self, x: Tensor, activation: Activation) -> None:  # noqa: D102
        _by_pieces(_in_place, *x.shape, x, None, 0.0, KIND=activation)

    def add_bias(self, x: Tensor, bias: Tensor) -> None:  # noqa: D102
        _by_pieces(_in_place, *x.shape, x, bias, 0.0, KIND="add_bias")

    def add_embedding(self, x: Tensor, weight: Tensor, index: Tensor) -> None:  # noqa: D102
        _by_pieces(_gather, *x.shape, x, weight, index, ADD=True)

    def scale(self, x: Tensor, factor: float) -> None:  # noqa: D102
        _by_pieces(_in_place, *x.shape, x, None, float(factor), KIND="scale")

    def soft_cap(self, x: Tensor, cap: float) -> None:  # noqa: D102
        _by_pieces(_in_place, *x.shape, x, None, float(cap), KIND="soft_cap")

    def xielu(self, x: Tensor, numbers: Tensor) -> None:  # noqa: D102
        _by_pieces(_in_place, *x.shape, x, numbers, 0.0, KIND="xielu")

    def multiply(self, x: Tensor, other: Tensor, gate: Gate = "plain") -> None:  # noqa: D102
        if other.shape[1]:
            _by_pieces(_multiply, *x.shape, x, other, x.shape[1] // other.shape[1], KIND=gate)

    def copy_slots(  # noqa: D102
        self, src_slots: Tensor, dst_slots: Tensor, key_cache: Tensor, value_cache: Tensor
    ) -> None:
        for cache in (key_cache, value_cache):
            _, heads, block_size, dim = cache.shape
            if not (len(src_slots) and heads and dim):
                continue
            copy = torch.empty(len(src_slots), heads, dim, dtype=cache.dtype, device=cache.device)
            for slots, back in ((src_slots, False), (dst_slots, True)):  # all are read before any is written
                _move_slots[len(slots), heads](
                    cache, copy, slots, back, heads, block_size, dim, padded(dim), num_warps=1, **EXACT
                )
