"""Layers whose numbers are `scale * (level - zero point)`, with a scale for each tensor, output, group or block.

Each format's file says how its tensors hold these three; what becomes of them is the same.
"""

from typing import ClassVar

import torch
from torch import Tensor

from parlay.checkpoints.quantised.layers import QuantisedLayers
from parlay.errors import ModelError
from parlay.weights.kinds import BY_NAME, Kind
from parlay.weights.weight import Part, Weight

WORD = 32  # bits
NIBBLES, BYTES = BY_NAME["Q4_1"], BY_NAME["Q8_0"]
_MOST = 65504.0  # of float16


class IntegerLayers(QuantisedLayers):
    """Layers of integers, or of FP8's numbers.

    A format gives `_check`, `_bits`, `_levels`, `_scales` and `_zeros`.
    """

    _index: ClassVar[str]  # the part that has the group of each input, int32 or int64 `[inputs]`; it may be missing
    _unset: ClassVar[int]  # fills a whole index where inputs were never put in another order

    def _bits(self, base: str) -> int | None:
        """Return the bits of a layer's integers, 4 or 8; None where its levels are no integers."""
        raise NotImplementedError

    def _levels(self, base: str) -> Tensor:
        """Return signed integers, int8, or FP8's numbers, `[outputs, inputs]`."""
        raise NotImplementedError

    def _scales(self, base: str) -> Tensor:
        """Return scales, float32 `[a, b]`: each is that of a block of levels, of which there are so many."""
        raise NotImplementedError

    def _zeros(self, base: str) -> Tensor | None:
        """Return zero points as scales are shaped, float32; None where all are 0."""
        raise NotImplementedError

    def get_tensor(self, name: str) -> Tensor:  # noqa: D102
        base = self._bases[name]
        levels, scales, zeros = self._levels(base).float(), self._scales(base), self._zeros(base)
        group = self._order(base, scales.shape[1])

        def spread(factors: Tensor) -> Tensor:
            return self._spread(name, factors) if group is None else factors[:, group]

        return (levels if zeros is None else levels - spread(zeros)) * spread(scales)

    def get_blocks(self, name: str) -> Weight:  # noqa: D102
        kind = self.kind(name)
        assert kind is not None
        base = self._bases[name]
        levels, zeros = self._levels(base), self._zeros(base)
        scales = self._scales(base).expand(len(levels), -1)
        if kind is BYTES:
            return blocks_of(kind, levels.view(torch.uint8), scales)
        least = -scales * (8 + (0 if zeros is None else zeros))
        return blocks_of(kind, (levels + 8).view(torch.uint8), scales, least)

    def _find_kind(self, name: str) -> Kind | None:
        base, (outputs, inputs) = self._bases[name], self._shapes[name]
        bits = self._bits(base)
        if bits is None:
            return None
        scales = self._scales(base)
        groups = scales.shape[1]
        if self._order(base, groups) is not None:
            return None
        if inputs % groups or inputs // groups % BYTES.block or len(scales) not in (1, outputs):
            return None
        if bits == 4:
            return NIBBLES if fits_float16(scales, 15) else None
        return BYTES if self._zeros(base) is None and fits_float16(scales) else None

    def _order(self, base: str, groups: int) -> Tensor | None:
        """Return the group of each input, int64 `[inputs]`; None where groups follow each other.

        Args:
            base: name of the layer.
            groups: number of groups that have scales.

        Raises:
            ModelError: its index names groups beyond those, or they are not equally large.
        """
        part = self._index
        if not self._has(base, part):
            return None
        group = self._get(base, part).long()
        each = len(group) // groups
        if bool((group == self._unset).all()) or torch.equal(group, torch.arange(len(group)) // each):
            return None
        if not bool(((group >= 0) & (group < groups)).all()):
            raise ModelError(f"{self._path}: {base}.{part} names groups beyond the {groups} that have scales")
        if not bool((group.bincount(minlength=groups) == each).all()):
            raise ModelError(
                f"{self._path}: {base}.{part} gives some groups more inputs than others; the checkpoint is damaged, "
                "fetch it again"
            )
        return group

    def _spread(self, name: str, factors: Tensor) -> Tensor:
        """Return numbers of blocks `[a, b]` as one for each weight; blocks at the end may be smaller."""
        outputs, inputs = self._shapes[name]
        blocks = self._packing.blocks
        if blocks and factors.shape == block_counts((outputs, inputs), blocks):
            high, wide = blocks
        else:
            high, wide = outputs // len(factors), inputs // factors.shape[1]
        return factors.repeat_interleave(high, 0)[:outputs].repeat_interleave(wide, 1)[:, :inputs]


def block_counts(shape: tuple[int, int], block: tuple[int, int]) -> tuple[int, int]:
    """Return how many blocks a matrix has along outputs and inputs, those at the end being smaller."""
    return -(-shape[0] // block[0]), -(-shape[1] // block[1])


def unpacked(words: Tensor, bits: int) -> Tensor:
    """Return the integers of words `[a, b]`, the lowest bits first, uint8 `[a, b, 32 / bits]`."""
    return ((words[:, :, None] >> torch.arange(0, WORD, bits, dtype=torch.int32)) & ((1 << bits) - 1)).to(torch.uint8)


def signed(integers: Tensor, bits: int) -> Tensor:
    """Return integers, uint8, less half of their range, int8."""
    return (integers - (1 << (bits - 1))).view(torch.int8)


def fits_float16(scales: Tensor, times: int = 1) -> bool:
    """Whether the scales of blocks can be rounded to float16, which has fewer bits below 2^-14 and ends at 65504.

    Rounding may cost a scale 2^-11 of the largest of its output. That is what the largest itself may lose, and an
    output is a sum over all of its groups.

    Args:
        scales: float32 `[outputs, groups]`; AutoRound makes some below 0.
        times: how many scales the largest factor of a block is, such as a minimum.
    """
    largest = scales.abs().amax(dim=1, keepdim=True)
    if float(largest.max()) * times > _MOST:
        return False
    return bool(((scales.half().float() - scales).abs() <= largest * 2.0**-11).all())


def blocks_of(kind: Kind, codes: Tensor, scales: Tensor, least: Tensor | None = None) -> Weight:
    """Return a matrix in blocks, `Q8_0`, or `Q4_1` where there are minimums.

    Args:
        kind: kind of the blocks.
        codes: uint8 `[outputs, inputs]`, signed bytes or nibbles.
        scales, least: `[outputs, groups]`, to be rounded to float16.
    """
    outputs, inputs = codes.shape
    stored = codes.reshape(outputs, inputs // kind.block, kind.block)
    if least is not None:
        stored = stored[:, :, :16] | stored[:, :, 16:] << 4
    repeats = stored.shape[1] // scales.shape[1]
    factors = [
        one.half().repeat_interleave(repeats, dim=1).contiguous()[:, :, None].view(torch.uint8)
        for one in (scales, least)
        if one is not None
    ]
    return Weight((Part(kind, torch.cat([*factors, stored], dim=2).view(outputs, -1)),))
