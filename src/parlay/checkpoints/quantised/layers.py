"""Matrices of a checkpoint that are made of several tensors each; each format's file says how, this is what is alike.

Imports no torch, as do those who only want `StoredShape`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Never

from parlay.errors import ModelError, shown

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from parlay.weights.kinds import Kind
    from parlay.weights.weight import Weight


_MOST = 65504.0  # of float16
_SMALL = ("I8", "U8", "F8_E4M3", "F8_E5M2")  # dtypes that weights have only beside scales


@dataclass(frozen=True, slots=True)
class StoredShape:
    """What is known of a matrix without reading it."""

    shape: list[int]

    def get_shape(self) -> list[int]:
        """Return outputs and inputs."""
        return self.shape


class QuantisedLayers:
    """The quantised layers of a checkpoint under the names that their matrices have; reads as a file does.

    A format gives `_check`, `get_tensor` and, where blocks can hold its numbers, `_find_kind` and `get_blocks`.

    Attributes:
        parts: names of the tensors that they are made of, and of others that must not be read.
    """

    def __init__(self, path: Path, tensors: Mapping[str, Any], bases: Iterable[str], parts: Iterable[str]) -> None:
        """Check the shapes of layers, from headers alone.

        Args:
            path: of the model, for errors.
            tensors: the open file of every tensor, by name.
            bases: the layers' names, such as `model.layers.0.self_attn.q_proj`.
            parts: see the attribute.

        Raises:
            ModelError: a part is missing, or shapes contradict each other or the config.
        """
        self._path, self._tensors = path, tensors
        self._bases = {f"{base}.weight": base for base in sorted(bases)}
        self.parts = frozenset(parts)
        for name in tensors:
            if name.endswith(".weight") and name not in self._bases and name not in self.parts:
                self._check_alone(name.removesuffix(".weight"))
        self._shapes = {name: self._check(base) for name, base in self._bases.items()}
        self._kinds: dict[str, Kind | None] = {}

    def keys(self) -> list[str]:
        """Return the matrices' names."""
        return list(self._bases)

    def get_slice(self, name: str) -> StoredShape:
        """Return what knows a matrix's shape without reading it."""
        return StoredShape(list(self._shapes[name]))

    def kind(self, name: str) -> Kind | None:
        """Return the blocks that a matrix can be given in; None if it has to be dequantised."""
        if name not in self._kinds:
            self._kinds[name] = self._find_kind(name)
        return self._kinds[name]

    def get_tensor(self, name: str) -> Tensor:
        """Return a matrix as float32, `[outputs, inputs]`.

        Raises:
            ModelError: what is stored makes no numbers.
        """
        raise NotImplementedError

    def get_blocks(self, name: str) -> Weight:
        """Return a matrix in the blocks of its kind."""
        raise NotImplementedError

    def _check(self, base: str) -> tuple[int, int]:
        """Return outputs and inputs, or raise a ModelError."""
        raise NotImplementedError

    def _find_kind(self, name: str) -> Kind | None:
        return None

    def _check_alone(self, base: str) -> None:
        """Refuse integers without what goes with them, which would be taken for plain numbers."""
        if self._dtype(base, "weight") in _SMALL:
            raise ModelError(
                f"{self._path}: {base}.weight is stored as {self._dtype(base, 'weight')} but lacks the scales that "
                "go with it; the checkpoint is incomplete, fetch it again"
            )

    def _order(self, base: str, part: str, groups: int, unset: int) -> Tensor | None:
        """Return the group of each input, int64 `[inputs]`; None where groups follow each other.

        Args:
            base: a layer.
            part: its index of groups, int32 or int64 `[inputs]`, which may be missing.
            groups: how many have scales.
            unset: what a whole index is filled with where inputs were never put in another order.

        Raises:
            ModelError: groups are beyond those, or not equally large.
        """
        import torch

        if not self._has(base, part):
            return None
        group = self._get(base, part).long()
        each = len(group) // groups
        if bool((group == unset).all()) or torch.equal(group, torch.arange(len(group)) // each):
            return None
        if not bool(((group >= 0) & (group < groups)).all()):
            raise ModelError(f"{self._path}: {base}.{part} names groups beyond the {groups} that have scales")
        if not bool((group.bincount(minlength=groups) == each).all()):
            raise ModelError(
                f"{self._path}: {base}.{part} gives some groups more inputs than others; the checkpoint is damaged, "
                "fetch it again"
            )
        return group

    def _has(self, base: str, part: str) -> bool:
        return f"{base}.{part}" in self._tensors

    def _need(self, base: str, *parts: str) -> None:
        for part in parts:
            if not self._has(base, part):
                raise ModelError(
                    f"{self._path} has quantised parts of {base} but lacks {base}.{part}; fetch it again"
                )

    def _get(self, base: str, part: str) -> Tensor:
        tensor: Tensor = self._tensors[f"{base}.{part}"].get_tensor(f"{base}.{part}")
        return tensor

    def _dtype(self, base: str, part: str) -> str:
        """Return a tensor's dtype as safetensors call it, such as "BF16"."""
        return str(self._tensors[f"{base}.{part}"].get_slice(f"{base}.{part}").get_dtype())

    def _shape(self, base: str, part: str) -> tuple[int, ...]:
        return tuple(self._tensors[f"{base}.{part}"].get_slice(f"{base}.{part}").get_shape())

    def _refuse(self, base: str, part: str, what: str) -> Never:
        raise ModelError(
            f"{self._path}: {base}.{part} has shape {list(self._shape(base, part))}, which cannot be {what}; "
            "the config or the checkpoint is wrong"
        )

    def _expect(self, base: str, part: str, *dtypes: str) -> None:
        """Check a tensor's dtype."""
        if self._dtype(base, part) not in dtypes:
            raise ModelError(
                f"{self._path}: {base}.{part} is stored as {shown(self._dtype(base, part))}, not as "
                f"{' or '.join(dtypes)}; the config or the checkpoint is wrong"
            )


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
        kind: of the blocks.
        codes: uint8 `[outputs, inputs]`, signed bytes or nibbles.
        scales, least: `[outputs, groups]`, to be rounded to float16.
    """
    import torch

    from parlay.weights.weight import Part, Weight

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
