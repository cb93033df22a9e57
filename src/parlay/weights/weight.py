"""A matrix as it is stored: parts stacked along its outputs, each of one kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from parlay.weights.blocks import unpack
from parlay.weights.kinds import BY_NAME, HALF, Kind

_PLAIN = {torch.float32: BY_NAME["F32"], torch.bfloat16: BY_NAME["BF16"], torch.float16: HALF}
_MOST_EXPONENT = 252  # of a scale in E8M0: numbers beyond leave float32, and 255 is none
_INFINITE = 0x7C00  # the exponent of a float16 that is no finite number
_SLAB = 1 << 20  # numbers that are unpacked at once


@dataclass(frozen=True, slots=True)
class Part:
    """Outputs that are stored alike.

    Attributes:
        kind: kind of storage.
        data: numbers `[outputs, inputs]`, or uint8 `[outputs, blocks * kind.size]`.
    """

    kind: Kind
    data: Tensor

    @property
    def inputs(self) -> int:
        """Numbers a row."""
        return self.data.shape[1] if self.kind.block == 1 else self.data.shape[1] // self.kind.size * self.kind.block

    @property
    def quantised(self) -> bool:
        """Whether it is stored in blocks."""
        return self.kind.block > 1

    @property
    def compact(self) -> bool:
        """Whether it stays in a form that activations never have: blocks or float16."""
        return self.quantised or self.kind is HALF

    def finite(self) -> bool:
        """Whether all numbers are finite; of blocks, all factors and exponents."""
        if not self.quantised:
            return bool(self.data.isfinite().all())
        blocks = self.data.view(-1, self.kind.size)
        if self.kind.exponent is not None and bool((blocks[:, self.kind.exponent] > _MOST_EXPONENT).any()):
            return False
        if self.kind.nibbles is not None:  # an exponent of all bits is none
            highest = blocks[:, [self.kind.nibbles + 7, self.kind.nibbles + 5]] >> 4
            if bool(((highest[:, 0] & 7) << 4 | highest[:, 1]).ge(0x7C).any()):
                return False
        if not self.kind.factors:
            return True
        words = blocks.view(torch.int16)  # as all places and sizes of these kinds are even
        return all(bool((words[:, at // 2] & _INFINITE != _INFINITE).all()) for at in self.kind.factors)

    def numbers(self) -> Tensor:
        """Return what is stored, blocks as float32, `[outputs, inputs]`."""
        if not self.quantised:
            return self.data
        rows = max(1, _SLAB // self.inputs)
        slabs = torch.split(self.data, rows)
        return torch.cat([torch.from_numpy(unpack(self.kind, slab.numpy()).numbers()) for slab in slabs])


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix `[outputs, inputs]` in one or several parts; nothing of it is unpacked until it is used."""

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, numbers: "Tensor | Weight") -> "Weight":
        """Return a matrix of plain numbers as a weight; a weight is returned as it is."""
        return numbers if isinstance(numbers, Weight) else cls((Part(_PLAIN[numbers.dtype], numbers),))

    @classmethod
    def stack(cls, weights: Sequence["Weight"]) -> "Weight":
        """Return weights that read the same inputs as one, outputs in order; neighbours of one kind are joined."""
        parts = [part for weight in weights for part in weight.parts]
        stacked = []
        for kind, alike in groupby(parts, key=lambda part: part.kind):
            data = [part.data for part in alike]
            stacked.append(Part(kind, torch.cat(data) if len(data) > 1 else data[0]))
        return cls(tuple(stacked))

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return sum(len(part.data) for part in self.parts), self.parts[0].inputs

    @property
    def compact(self) -> bool:
        """Whether any part stays in a form that activations never have."""
        return any(part.compact for part in self.parts)

    @property
    def block(self) -> int:
        """Inputs that can only be had together."""
        return max(part.kind.block for part in self.parts)

    def finite(self) -> bool:
        """Whether no number is infinite or not a number."""
        return all(part.finite() for part in self.parts)

    def inputs(self, begin: int, end: int) -> "Weight":
        """Return some of the inputs.

        Raises:
            ValueError: they are not whole blocks.
        """
        parts = []
        for part in self.parts:
            block = part.kind.block
            if begin % block or end % block:
                raise ValueError(f"inputs {begin} to {end} are not whole blocks of {block}")
            size = part.kind.size if part.quantised else 1
            parts.append(Part(part.kind, part.data[:, begin // block * size : end // block * size].contiguous()))
        return Weight(tuple(parts))

    def outputs(self, begin: int, end: int) -> "Weight":
        """Return some of the outputs."""
        parts, at = [], 0
        for part in self.parts:
            rows = part.data[max(begin - at, 0) : max(end - at, 0)]
            at += len(part.data)
            if len(rows):
                parts.append(Part(part.kind, rows))
        return Weight(tuple(parts))

    def chosen(self, outputs: Tensor) -> "Weight":
        """Return some of the outputs of a weight of one part, in any order.

        Args:
            outputs: int64 `[n]`.
        """
        (part,) = self.parts
        return Weight((Part(part.kind, part.data[outputs.cpu()]),))

    def numbers(self) -> Tensor:
        """Return the matrix as plain numbers, blocks as float32: the slow twin of what kernels do with it."""
        parts = [part.numbers() for part in self.parts]
        return parts[0] if len(parts) == 1 else torch.cat([part.float() for part in parts])
