"""Matrices of a checkpoint that are made of several tensors each; each format's file says how, this is what is alike.

Imports no torch, as do those who only want `StoredShape`.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Never

from parlay.errors import ModelError, shown

if TYPE_CHECKING:
    from torch import Tensor

    from parlay.checkpoints.quantised.config import QuantisationConfig
    from parlay.weights.kinds import Kind
    from parlay.weights.weight import Weight


_SMALL = ("I8", "U8", "U32", "F8_E4M3", "F8_E5M2")  # dtypes that weights have only beside scales


@dataclass(frozen=True, slots=True)
class StoredShape:
    """What is known of a tensor without reading it; `dtype` is empty for a matrix that is made of several."""

    shape: list[int]
    dtype: str = ""

    def get_shape(self) -> list[int]:
        """Return its sizes."""
        return self.shape

    def get_dtype(self) -> str:
        """Return what safetensors call its dtype."""
        return self.dtype


class QuantisedLayers:
    """The quantised layers of a checkpoint under the names that their matrices have; reads as a file does.

    A format gives `_find`, `_check`, `get_tensor` and, if blocks can hold its numbers, `_find_kind` and `get_blocks`.

    Attributes:
        parts: names of the tensors that they are made of, and of others that must not be read.
    """

    def __init__(self, packing: QuantisationConfig, tensors: Mapping[str, Any]) -> None:
        """Find the layers and check their shapes, nearly from headers alone.

        Args:
            packing: what the config says.
            tensors: the open file of every tensor, by name.

        Raises:
            ModelError: a part is missing, or shapes contradict each other, the config or the layer's own words.
        """
        self._packing, self._path, self._tensors = packing, packing.path, tensors
        bases, self.parts = self._find(tensors.keys())
        self._bases = {f"{base}.weight": base for base in sorted(bases)}
        for name in tensors:
            if name.endswith(".weight") and name not in self._bases and name not in self.parts:
                self._check_alone(name.removesuffix(".weight"))
        self._shapes = {name: self._check(base) for name, base in self._bases.items()}
        self._kinds: dict[str, Kind | None] = {}

    def keys(self) -> list[str]:
        """Return the matrices' names."""
        return list(self._bases)

    def get_slice(self, name: str) -> StoredShape:
        """Return a matrix's shape without reading it."""
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

    def _find(self, tensors: Set[str]) -> tuple[Set[str], Set[str]]:
        """Return the layers' names, such as `model.layers.0.self_attn.q_proj`, and `parts`."""
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
