"""Matrix products.

A weight is the first operand of a tensor core's product and rows are the second, so that the same instructions add
the same numbers in the same order whether a tile has 16 rows or 128. A row of a tile is computed from its own inputs,
whatever stands in the other rows. Where a weight has too few outputs to occupy the GPU its K is split, always alike,
and the sums of the parts are added in their order: by the program that is done last, or with many rows by one program
that makes them all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary
from triton.tools.tensor_descriptor import TensorDescriptor

from parlay.kernels.linear import LinearWeight, PackedPart
from parlay.kernels.triton.blocks import BlockPart, layout_of, load_tile, look_up, pack_blocks
from parlay.kernels.triton.launch import INTERPRETED, arrived_last, dot, padded, rounded
from parlay.weights.weight import Part, Weight

_PROGRAMS = 128  # that occupy a GPU: about one for each of its processors
_ALIGNED = tl.constexpr(16)  # bytes, of what Triton reads in one piece
_PIECE = tl.constexpr(128)  # inputs; a part of K has some of them
_COUNTED = 4096  # tiles of a weight that is split, at most: it has few
_MANY = 64  # rows; with more, programs occupy the GPU without splits


@dataclass(frozen=True, slots=True)
class Tile:
    """How a product is cut.

    Attributes:
        rows, outputs, inputs: size of a tile; `inputs` divides 128.
        warps, stages: warps and pipeline stages per program.
    """

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int


def tile_of(rows: int, dtype: torch.dtype) -> Tile:
    """Return the tile for so many rows; for numbers of one type all give the same bits."""
    if dtype is torch.float32:
        return Tile(16, 32, 32, 4, 2)
    if INTERPRETED.value:  # whose products have other bits in other shapes
        rows = 1
    if rows > _MANY:
        return Tile(64, 128, 64, 4, 4)
    return Tile(max(16, padded(rows)), 64, 128, 4, 5)


def tile_of_many(rows: int, outputs: int) -> Tile:
    """Return the tile for so many rows of a plain weight, where a GPU copies blocks by itself."""
    large = Tile(256, 128, 64, 8, 4)
    programs = -(-rows // large.rows) * -(-outputs // large.outputs)
    return large if programs >= _PROGRAMS else Tile(128, 128, 64, 8, 4)


def copies_blocks(device: torch.device) -> bool:
    """Whether a GPU has an engine that copies blocks of a matrix, as those since Hopper have."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def splits_of(outputs: int, inputs: int, dtype: torch.dtype) -> int:
    """Return into how many parts a weight's K is cut; one number for all numbers of rows."""
    pieces, splits = -(-inputs // _PIECE.value), 1
    if dtype is not torch.float32:
        while splits < 16 and -(-outputs // 64) * splits < _PROGRAMS and pieces >= 8 * splits:
            splits *= 2
    return splits


@triton.jit
def _sum_part(
    x_at, row_is, weight, scales, least, output, outputs, inputs, step, part, each,
    tile_rows: tl.constexpr, tile_outputs: tl.constexpr, tile_inputs: tl.constexpr,
    bits: tl.constexpr, base: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    # The products of one part of K, `each` pieces long: [tile_outputs, tile_rows].
    inner = tl.arange(0, tile_inputs)
    dtype: tl.constexpr = x_at.dtype.element_ty
    total = tl.zeros((tile_outputs, tile_rows), tl.float32)
    for begin in range(part * each * _PIECE, tl.minimum((part + 1) * each * _PIECE, inputs), tile_inputs):
        left = inputs - begin
        own = tl.load(x_at + begin, mask=row_is[None, :] & (inner < left)[:, None], other=0.0)
        numbers = load_tile(
            weight, scales, least, output, outputs, step, begin, left,
            tile_outputs, tile_inputs, bits, base, group, dtype,
        )  # fmt: skip
        total = dot(tl.trans(numbers), own, total)
    return total


@triton.jit(do_not_specialize=["rows", "splits"], do_not_specialize_on_alignment=["partial"])
def _multiply(
    x, weight, scales, least, out, partial, counters, rows, outputs, inputs, step, width, splits,
    tile_rows: tl.constexpr, tile_outputs: tl.constexpr, tile_inputs: tl.constexpr, folds: tl.constexpr,
    bits: tl.constexpr, base: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    # One part of a weight, or if it folds all parts; a row of results has `width` numbers. For the weight's own
    # arguments see `load_tile`.
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    output = tl.program_id(1) * tile_outputs + tl.arange(0, tile_outputs)
    row_is = row < rows
    each = tl.cdiv(tl.cdiv(inputs, _PIECE), splits)
    x_at = x + row.to(tl.int64)[None, :] * inputs + tl.arange(0, tile_inputs)[:, None]
    at = row.to(tl.int64)[None, :] * width + output[:, None]
    is_one = row_is[None, :] & (output < outputs)[:, None]
    if folds:
        whole = tl.zeros((tile_outputs, tile_rows), tl.float32)
        for part in range(splits):
            whole += _sum_part(
                x_at, row_is, weight, scales, least, output, outputs, inputs, step, part, each,
                tile_rows, tile_outputs, tile_inputs, bits, base, group,
            )  # fmt: skip
        tl.store(out + at, rounded(whole, out.dtype.element_ty), mask=is_one)
    else:
        part = tl.program_id(2)
        total = _sum_part(
            x_at, row_is, weight, scales, least, output, outputs, inputs, step, part, each,
            tile_rows, tile_outputs, tile_inputs, bits, base, group,
        )  # fmt: skip
        own = partial + at
        tl.store(own + part.to(tl.int64) * rows * width, total, mask=is_one)
        if arrived_last(counters + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), splits):
            whole = tl.zeros((tile_outputs, tile_rows), tl.float32)
            for _ in range(splits):
                whole += tl.load(own, mask=is_one, other=0.0, cache_modifier=".cg")
                own += rows.to(tl.int64) * width
            tl.store(out + at, rounded(whole, out.dtype.element_ty), mask=is_one)


@triton.jit(do_not_specialize=["rows", "splits"])
def _multiply_many(
    x, weight, out, rows, outputs, inputs, width, splits,
    tile_rows: tl.constexpr, tile_outputs: tl.constexpr, tile_inputs: tl.constexpr,
):  # fmt: skip
    # All parts of a plain weight, as `_multiply` sums them; both operands are descriptors, zeros where they end.
    first_row, first_output = tl.program_id(0) * tile_rows, tl.program_id(1) * tile_outputs
    each = tl.cdiv(tl.cdiv(inputs, _PIECE), splits)
    whole = tl.zeros((tile_outputs, tile_rows), tl.float32)
    for part in range(splits):
        total = tl.zeros((tile_outputs, tile_rows), tl.float32)
        for begin in range(part * each * _PIECE, tl.minimum((part + 1) * each * _PIECE, inputs), tile_inputs):
            numbers, own = weight.load([first_output, begin]), x.load([first_row, begin])
            total = dot(numbers, tl.trans(own), total)
        whole += total
    row, output = first_row + tl.arange(0, tile_rows), first_output + tl.arange(0, tile_outputs)
    at = row.to(tl.int64)[None, :] * width + output[:, None]
    is_one = (row < rows)[None, :] & (output < outputs)[:, None]
    tl.store(out + at, rounded(whole, out.dtype.element_ty), mask=is_one)


@triton.jit
def _address(table, expert, dtype: tl.constexpr):
    return tl.multiple_of(tl.load(table + expert).to(tl.pointer_type(dtype)), _ALIGNED)


@triton.jit(
    do_not_specialize=["copies"], do_not_specialize_on_alignment=["experts", "weights", "scales", "least", "out"]
)
def _multiply_experts(
    x, experts, weights, scales, least, out, copies, outputs, inputs, step, width,
    tile_rows: tl.constexpr, tile_outputs: tl.constexpr, tile_inputs: tl.constexpr, splits: tl.constexpr,
    bits: tl.constexpr, base: tl.constexpr, group: tl.constexpr, stored: tl.constexpr, scale: tl.constexpr,
):  # fmt: skip
    # One pair of a row and an expert: the first row of a tile of `_multiply`, with the same sums. Of weights, scales
    # and least there are tables of addresses.
    pair = tl.program_id(0)
    output = tl.program_id(1) * tile_outputs + tl.arange(0, tile_outputs)
    line = tl.arange(0, tile_rows)
    expert = tl.load(experts + pair)
    weight = _address(weights, expert, stored)
    own_scales, own_least = None, None
    if scales is not None:
        own_scales = _address(scales, expert, scale)
    if least is not None:
        own_least = _address(least, expert, scale)
    x_at = x + (pair // copies).to(tl.int64) * inputs + tl.arange(0, tile_inputs)[:, None] + line[None, :] * 0
    each = tl.cdiv(tl.cdiv(inputs, _PIECE), splits)
    whole = tl.zeros((tile_outputs, tile_rows), tl.float32)
    for part in range(splits):
        whole += _sum_part(
            x_at, line == 0, weight, own_scales, own_least, output, outputs, inputs, step, part, each,
            tile_rows, tile_outputs, tile_inputs, bits, base, group,
        )  # fmt: skip
    at = pair.to(tl.int64) * width + output[:, None] + line[None, :] * 0
    is_one = (line == 0)[None, :] & (output < outputs)[:, None]
    tl.store(out + at, rounded(whole, out.dtype.element_ty), mask=is_one)


_TYPES = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.int16: tl.int16,
    torch.uint8: tl.uint8,
}


def _aligned(x: Tensor) -> Tensor:
    return x.clone() if x.data_ptr() % _ALIGNED.value else x


def _layout(part: PackedPart) -> tuple[int, int | None, int]:
    """Return `bits`, `base` and `group` of `load_tile`."""
    if isinstance(part, BlockPart):
        return part.layout.bits, part.layout.base, part.layout.group
    return 0, 0, 1


def _tensors(part: PackedPart) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return what `load_tile` reads."""
    return (part.tensor, part.scales, part.least) if isinstance(part, BlockPart) else (part.tensor, None, None)


def _met(part: PackedPart, dtype: torch.dtype) -> torch.dtype:
    """Return the type in which a part meets rows of type T; codes become numbers of T."""
    return dtype if isinstance(part, BlockPart) or part.tensor.dtype is dtype else torch.float32


class TritonLinear:
    """The products of `Kernels`; see there for what each method does.

    Quantised weights are multiplied as the numbers that they stand for, rounded to T: rows are not quantised. A plain
    weight of those numbers has the same tile; its bits are the same but for the order of inputs within a block of K,
    which the compiler chooses, always alike for a kind.
    """

    def __init__(self, device: torch.device) -> None:
        """Start without weights on a device."""
        self.device, self._copies = device, copies_blocks(device)
        self._counters = torch.zeros(_COUNTED, dtype=torch.int32, device=device)
        # Of experts' weights: addresses [parts, 3, experts] of what `_tensors` returns, by the first one's tensor.
        self._tables: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def pack_linear(self, weight: Tensor | Weight) -> LinearWeight:  # noqa: D102
        weight = Weight.of(weight)
        alike = groupby(weight.parts, key=lambda part: layout_of(part.kind) if part.quantised else part.data.dtype)
        parts = [list(some) for _, some in alike]
        return LinearWeight(tuple(map(self._pack, parts)), *weight.shape)

    def _pack(self, parts: list[Part]) -> PackedPart:
        """Return neighbours that are stored alike as one."""
        if parts[0].quantised:
            return pack_blocks(parts, self.device)
        own = [part.data.to(self.device) for part in parts]
        numbers = (torch.cat(own) if len(own) > 1 else own[0]).contiguous()
        return PackedPart(parts[0].kind, _aligned(numbers), len(numbers))

    def pack_head(self, weight: Tensor | Weight) -> LinearWeight:  # noqa: D102
        return self.pack_linear(weight)

    def embed_packed(self, weight: LinearWeight, tokens: Tensor, out: Tensor) -> None:  # noqa: D102
        if len(tokens):
            (part,) = weight.parts
            width = min(padded(weight.inputs), 1024)
            grid = len(tokens), triton.cdiv(weight.inputs, width)
            sizes = weight.outputs, weight.inputs, part.tensor.shape[1]
            look_up[grid](*_tensors(part), tokens, out, *sizes, width, *_layout(part))

    def linear(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:  # noqa: D102
        rows, width = len(x), weight.outputs
        if not rows:
            return
        x, splits = _aligned(x), splits_of(width, weight.inputs, x.dtype)
        partial, folds = out, splits == 1 or rows > _MANY
        if not folds:
            partial = torch.empty((splits, rows, width), dtype=torch.float32, device=x.device)
        begin = 0
        for part in weight.parts:
            if rows > _MANY and self._copied(part, x):
                self._multiply_many(x, part, out[:, begin:], width, splits)
                begin += part.outputs
                continue
            tile = tile_of(rows, _met(part, x.dtype))
            tiles = triton.cdiv(rows, tile.rows), triton.cdiv(part.outputs, tile.outputs)
            _multiply[(*tiles, 1 if folds else splits)](
                *(x, *_tensors(part), out[:, begin:], partial[..., begin:], self._counters, rows),
                *(part.outputs, weight.inputs, part.tensor.shape[1], width, splits),
                *(tile.rows, tile.outputs, tile.inputs, folds, *_layout(part)),
                num_warps=tile.warps,
                num_stages=tile.stages,
            )
            begin += part.outputs

    def _copied(self, part: PackedPart, x: Tensor) -> bool:
        """Whether blocks of a part and of rows can be copied by the GPU itself: rows of 16 bytes' multiples."""
        plain = not isinstance(part, BlockPart) and part.tensor.dtype is x.dtype is not torch.float32
        return self._copies and plain and x.shape[1] * x.element_size() % _ALIGNED.value == 0

    def _multiply_many(self, x: Tensor, part: PackedPart, out: Tensor, width: int, splits: int) -> None:
        (rows, inputs), outputs = x.shape, part.outputs
        tile = tile_of_many(rows, outputs)
        operands = (
            TensorDescriptor(x, [rows, inputs], [inputs, 1], [tile.rows, tile.inputs]),
            TensorDescriptor(part.tensor, [outputs, inputs], [inputs, 1], [tile.outputs, tile.inputs]),
        )
        _multiply_many[(triton.cdiv(rows, tile.rows), triton.cdiv(outputs, tile.outputs))](
            *(*operands, out, rows, outputs, inputs, width, splits, tile.rows, tile.outputs, tile.inputs),
            num_warps=tile.warps,
            num_stages=tile.stages,
        )

    def logits(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:  # noqa: D102
        self.linear(x, weight, out)

    def expert_linear(  # noqa: D102
        self, x: Tensor, experts: Tensor, weights: Sequence[LinearWeight], out: Tensor
    ) -> None:
        if not len(x):
            return
        first = weights[0]
        x, tables, splits = _aligned(x), self._addresses(weights), splits_of(first.outputs, first.inputs, x.dtype)
        begin = 0
        for part, table in zip(first.parts, tables, strict=True):
            tile, (stored, scales, least) = tile_of(1, _met(part, x.dtype)), _tensors(part)
            _multiply_experts[(len(out), triton.cdiv(part.outputs, tile.outputs))](
                *(x, experts, table[0], None if scales is None else table[1], None if least is None else table[2]),
                *(out[:, begin:], len(out) // len(x), part.outputs, first.inputs, stored.shape[1], first.outputs),
                *(tile.rows, tile.outputs, tile.inputs, splits, *_layout(part)),
                *(_TYPES[stored.dtype], None if scales is None else _TYPES[scales.dtype]),
                num_warps=tile.warps,
                num_stages=tile.stages,
            )
            begin += part.outputs

    def _addresses(self, weights: Sequence[LinearWeight]) -> Tensor:
        table: Tensor | None = self._tables.get(weights[0].parts[0].tensor)
        if table is None:
            stored = [[_tensors(part) for part in weight.parts] for weight in weights]
            addresses = [
                [[0 if each is None else each.data_ptr() for each in alike] for alike in zip(*part, strict=True)]
                for part in zip(*stored, strict=True)
            ]
            table = torch.tensor(addresses, dtype=torch.int64, device=self.device)
            self._tables[weights[0].parts[0].tensor] = table
        return table
