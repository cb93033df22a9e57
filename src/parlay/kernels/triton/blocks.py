"""Quantised weights on the device: kept quantised there, numbers again in a product's registers.

All kinds of blocks have one layout, in which a product reads any tile without knowing where blocks begin:

    codes   uint8 `[outputs, inputs]`, or two in a byte where four bits hold them, the even input's lower
    scales  `[inputs / group, outputs]`, in the least dtype that holds a kind's scales; int16 is bfloat16's bits
    least   like scales, or none

A number is `scale * level + least` in float32, a level being `code + base`. Where there is a least the product is
exact: it does not matter whether both are one operation or two.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from parlay.kernels.linear import PackedPart
from parlay.kernels.triton.launch import rounded
from parlay.weights.blocks import Blocks, Bytes, Floats, Ints, unpack
from parlay.weights.kinds import Kind
from parlay.weights.weight import Part

_SLAB = 1 << 20  # numbers that are unpacked at once
_MICRO = np.array([0, 1, 2, 3, 4, 6, 8, 12])  # what MXFP4's lower three bits mean, doubled; the fourth is a sign
_MICRO_CODES = np.zeros(25, np.uint8)  # of levels from -12 on
_MICRO_CODES[12 - _MICRO] = np.arange(8, 16)
_MICRO_CODES[12 + _MICRO] = np.arange(8)
_MICRO_SCALE = tl.constexpr(2.0**127)
# Float32 in whose lowest bits an integer can be put: no conversion, of which a GPU does fewer at once.
_WHOLE_BITS = tl.constexpr(0x4B000000)
_WHOLE = tl.constexpr(8388608.0)


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How a kind's blocks are kept.

    Attributes:
        bits: bits per code.
        base: the level of code 0; None where codes are MXFP4's.
        group: inputs that share a scale.
        scale: dtype of scales and least.
        least: whether there are least values.
    """

    bits: int
    base: int | None
    group: int
    scale: torch.dtype
    least: bool

    @property
    def size(self) -> float:
        """Bits per number, scales included."""
        return self.bits + 8 * self.scale.itemsize * (2 if self.least else 1) / self.group


# Kinds of four bits or less, and their base.
_NIBBLES = {"Q4_0": -8, "Q4_1": 0, "Q2_K": 0, "Q3_K": -4, "Q4_K": 0, "TQ1_0": -1, "TQ2_0": -1, "MXFP4": None}
# Kinds with a scale for every 16 inputs; others have one for every 32.
_SIXTEEN = ("Q2_K", "Q3_K", "Q6_K", "IQ2_XS", "IQ2_S", "IQ1_M")
_WITH_LEAST = ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K")


def layout_of(kind: Kind) -> BlockLayout:
    """Return how blocks of a kind, one of `COMPUTED`, are kept."""
    nibbles = kind.name in _NIBBLES
    scale = torch.float32  # products of a block's factor and a small integer
    if kind.block == 32:
        scale = torch.float16 if kind.exponent is None else torch.int16
    return BlockLayout(
        bits=4 if nibbles else 8,
        base=_NIBBLES[kind.name] if nibbles else -128,
        group=16 if kind.name in _SIXTEEN else 32,
        scale=scale,
        least=kind.name in _WITH_LEAST,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPart(PackedPart):
    """Outputs that are kept quantised; `tensor` has the codes, and `kind` is that of the first ones.

    Attributes:
        layout: layout of the blocks.
        scales, least: see above.
    """

    layout: BlockLayout
    scales: Tensor
    least: Tensor | None


def pack_blocks(parts: Sequence[Part], device: torch.device) -> BlockPart:
    """Return neighbouring parts of one layout as one, on a device."""
    layout, inputs = layout_of(parts[0].kind), parts[0].inputs
    outputs = sum(len(part.data) for part in parts)
    codes = torch.empty((outputs, inputs * layout.bits // 8), dtype=torch.uint8, device=device)
    scales = torch.empty((inputs // layout.group, outputs), dtype=layout.scale, device=device)
    least = torch.empty_like(scales) if layout.least else None
    begin = 0
    for blocks in _slabs(parts):
        end = begin + len(blocks.levels)
        codes[begin:end] = torch.from_numpy(_codes(blocks, layout)).to(device)
        scales[:, begin:end] = torch.from_numpy(_scales(blocks, layout).T).to(device)
        if least is not None and blocks.least is not None:
            least[:, begin:end] = torch.from_numpy(blocks.least.T).to(device)
        begin = end
    return BlockPart(parts[0].kind, codes, outputs, layout=layout, scales=scales, least=least)


def _slabs(parts: Sequence[Part]) -> Iterator[Blocks]:
    for part in parts:
        for slab in torch.split(part.data, max(1, _SLAB // part.inputs)):
            yield unpack(part.kind, slab.cpu().numpy())


def _scales(blocks: Blocks, layout: BlockLayout) -> Floats | Ints:
    return blocks.scales.view(np.int32) >> 16 if layout.scale is torch.int16 else blocks.scales


def _codes(blocks: Blocks, layout: BlockLayout) -> Bytes:
    """Return levels as they are kept."""
    if layout.base is None:
        codes: Bytes = _MICRO_CODES[blocks.levels + 12]
    else:
        codes = (blocks.levels - layout.base).astype(np.uint8)
    if layout.bits == 4:
        codes = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    return codes


@triton.jit
def _exact(scales):
    """Return scales in float32."""
    if scales.dtype == tl.int16:  # powers of two so small that some conversions would lose them
        exact = (scales.to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        exact = scales.to(tl.float32)
    return exact


@triton.jit
def _levels(codes, base: tl.constexpr):
    """Return the levels of uint32 codes, in float32."""
    if base is None:
        # Float32 has the same bits in other places, and its exponents stand for 126 less; levels are doubled.
        levels = (((codes & 7) << 22) | ((codes & 8) << 28)).to(tl.float32, bitcast=True) * _MICRO_SCALE
    else:
        levels = (codes | _WHOLE_BITS).to(tl.float32, bitcast=True) - (_WHOLE - base)
    return levels


@triton.jit
def _each(shared, tile_inputs: tl.constexpr, tile_outputs: tl.constexpr, group: tl.constexpr):
    """Return `[groups, outputs]` as `[inputs, outputs]`."""
    shape: tl.constexpr = (tile_inputs // group, group, tile_outputs)
    return tl.reshape(tl.broadcast_to(shared[:, None, :], shape), (tile_inputs, tile_outputs))


@triton.jit
def load_tile(
    weight, scales, least, output, outputs, step, begin, left,
    tile_outputs: tl.constexpr, tile_inputs: tl.constexpr,
    bits: tl.constexpr, base: tl.constexpr, group: tl.constexpr, dtype: tl.constexpr,
):  # fmt: skip
    """Return a weight's numbers `[tile_inputs, tile_outputs]` from input `begin` on, of which `left` are left.

    Args:
        weight: plain numbers, which stay as they are, with 0 bits; else codes, whose numbers are rounded to `dtype`.
        scales, least: the codes' scales and least values, see `BlockLayout`.
        output: the outputs to read, `[tile_outputs]`.
        outputs: number of all outputs.
        step: elements from one output to the next in `weight`.
        begin, left: first input and number of inputs left, multiples of a group.
    """
    output_is = output < outputs
    if bits == 0:
        inner = tl.arange(0, tile_inputs)
        at = weight + output.to(tl.int64)[None, :] * step + inner[:, None]
        tile = tl.load(at + begin, mask=output_is[None, :] & (inner < left)[:, None], other=0.0)
    else:
        each: tl.constexpr = 8 // bits
        byte, shared = tl.arange(0, tile_inputs // each), tl.arange(0, tile_inputs // group)
        at = weight + output.to(tl.int64)[None, :] * step + byte[:, None]
        end = step - begin // each  # which is a multiple of 16 as `step` is
        # Codes beyond the end may be any: they are finite numbers, and rows are 0 there.
        codes = tl.load(at + begin // each, mask=output_is[None, :] & (byte < end)[:, None]).to(tl.uint32)
        if bits == 4:
            pairs = tl.join(_levels(codes & 15, base), _levels(codes >> 4, base))
            levels = tl.reshape(tl.permute(pairs, (0, 2, 1)), (tile_inputs, tile_outputs))
        else:
            levels = _levels(codes, base)
        at = (begin // group + shared).to(tl.int64)[:, None] * outputs + output[None, :]
        is_one = (shared * group < left)[:, None] & output_is[None, :]
        scale = _exact(tl.load(scales + at, mask=is_one, other=0))
        numbers = levels * _each(scale, tile_inputs, tile_outputs, group)
        if least is not None:
            lowest = tl.load(least + at, mask=is_one, other=0.0).to(tl.float32)
            numbers += _each(lowest, tile_inputs, tile_outputs, group)
        tile = rounded(numbers, dtype).to(dtype)
    return tile


@triton.jit
def look_up(
    weight, scales, least, tokens, out, outputs, inputs, step, width: tl.constexpr,
    bits: tl.constexpr, base: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    """Write a token's numbers, rounded; for arguments see `load_tile`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * width + tl.arange(0, width)
    column_is = column < inputs
    output = tl.load(tokens + row)
    if bits == 0:
        numbers = tl.load(weight + output * step + column, mask=column_is).to(tl.float32)
    else:
        each: tl.constexpr = 8 // bits
        byte = tl.load(weight + output * step + column // each, mask=column_is, other=0).to(tl.uint32)
        at = (column // group).to(tl.int64) * outputs + output
        levels = _levels((byte >> (column % each * bits).to(tl.uint32)) & ((1 << bits) - 1), base)
        numbers = levels * _exact(tl.load(scales + at, mask=column_is, other=0))
        if least is not None:
            numbers += tl.load(least + at, mask=column_is, other=0.0).to(tl.float32)
    dtype = out.dtype.element_ty
    tl.store(out + row * inputs + column, rounded(numbers, dtype).to(dtype), mask=column_is)
