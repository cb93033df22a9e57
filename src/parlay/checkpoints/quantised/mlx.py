"""Layers as MLX quantises them: small integers of two to eight bits with a scale and a bias for each group.

Source: mlx 0.32, `mlx.core.quantize`; mlx-lm 0.32, `quantize_model` and the names of `SwitchLinear`.

    affine  weight uint32 [outputs, inputs * bits / 32], one stream of bits, the first input in the lowest;
            scales, biases [outputs, inputs / group]; a number is scale * integer + bias
    mxfp4   weight likewise, of four bits; scales uint8 [outputs, inputs / 32], exponents plus 127
    experts `switch_mlp.gate_proj.weight` and others of a layer, [experts, outputs, ...] each
"""

from collections.abc import Set
from dataclasses import dataclass

import torch
from torch import Tensor

from parlay.checkpoints.pieces import is_switch, switch_name
from parlay.checkpoints.quantised.config import Scheme
from parlay.checkpoints.quantised.integers import NIBBLES, WORD, blocks_of, fits_float16
from parlay.checkpoints.quantised.layers import QuantisedLayers
from parlay.weights.kinds import BY_NAME, Kind
from parlay.weights.weight import Part, Weight

_MICROSCALING = BY_NAME["MXFP4"]
_FLOATS = ("F16", "BF16", "F32")
_EACH = 8  # integers that fill whole bytes, of any number of bits
_ROWS = 1024  # that are unpacked at once, in eight bytes per number


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a matrix is: the name of its tensors without their parts, and which of a stack it is, if it is of one."""

    base: str
    expert: int | None = None


class MLXLayers(QuantisedLayers):
    """The layers of such a checkpoint, each expert's matrices by themselves."""

    def _find(self, tensors: Set[str]) -> tuple[Set[str], Set[str]]:
        self._places: dict[str, _Source] = {}
        stored = {name.removesuffix(".scales") for name in tensors if name.endswith(".scales")}
        for base in stored:
            self._need(base, "weight")
            name = f"{base}.weight"
            if not is_switch(name):
                self._places[base] = _Source(base)
                continue
            shape = self._shape(base, "weight")
            if len(shape) != 3:
                self._refuse(base, "weight", "a stack of experts, [experts, outputs, words]")
            for expert in range(shape[0]):
                self._places[switch_name(name, expert).removesuffix(".weight")] = _Source(base, expert)
        parts = {f"{base}.{part}" for base in stored for part in ("weight", "scales", "biases")}
        return self._places.keys(), tensors & parts

    def _check(self, base: str) -> tuple[int, int]:
        own = self._places[base].base
        scheme, stacked = self._scheme(own), self._places[base].expert is not None
        self._expect(own, "weight", "U32")
        self._expect(own, "scales", *(("U8",) if scheme.exponents else _FLOATS))
        shape, scales = self._shape(own, "weight"), self._shape(own, "scales")
        if len(shape) != 2 + stacked or scales[:-1] != shape[:-1]:
            self._refuse(own, "scales", f"scales of a matrix whose words are {list(shape)}")
        inputs = scales[-1] * scheme.group
        if shape[-1] * WORD != inputs * scheme.bits:
            self._refuse(own, "weight", f"{inputs} inputs of {scheme.bits} bits, as its scales and the config say")
        if not scheme.exponents:
            self._need(own, "biases")
            self._expect(own, "biases", *_FLOATS)
            if self._shape(own, "biases") != scales:
                self._refuse(own, "biases", f"biases beside scales {list(scales)}")
        return shape[-2], inputs

    def _scheme(self, base: str) -> Scheme:
        return self._packing.apart.get(base, self._packing.schemes[0])

    def _find_kind(self, name: str) -> Kind | None:
        place = self._places[self._bases[name]]
        scheme = self._scheme(place.base)
        if scheme.exponents:
            return _MICROSCALING
        if scheme.bits > 4 or scheme.group % NIBBLES.block:
            return None
        scales, biases = self._part(place, "scales").float(), self._part(place, "biases").float()
        return NIBBLES if fits_float16(scales, 15) and fits_float16(biases) else None

    def get_tensor(self, name: str) -> Tensor:  # noqa: D102
        place = self._places[self._bases[name]]
        scheme = self._scheme(place.base)
        if scheme.exponents:
            return self.get_blocks(name).numbers()
        integers = self._integers(place, scheme.bits)
        scales, biases = (self._part(place, part).float()[:, :, None] for part in ("scales", "biases"))
        return (integers.view(len(integers), -1, scheme.group) * scales).add_(biases).flatten(1)

    def get_blocks(self, name: str) -> Weight:  # noqa: D102
        place = self._places[self._bases[name]]
        scheme = self._scheme(place.base)
        integers = self._integers(place, scheme.bits)
        if not scheme.exponents:
            return blocks_of(NIBBLES, integers, self._part(place, "scales"), self._part(place, "biases"))
        # A block has its exponent first, and the numbers 0 and 16, 1 and 17, ... in a byte.
        first, second = integers.view(len(integers), -1, _MICROSCALING.block).chunk(2, dim=-1)
        exponents = self._part(place, "scales")[..., None]
        return Weight((Part(_MICROSCALING, torch.cat((exponents, first | second << 4), dim=-1).flatten(1)),))

    def _integers(self, place: _Source, bits: int) -> Tensor:
        """Return a matrix's integers, uint8 `[outputs, inputs]`."""
        rows = self._part(place, "weight").view(torch.uint8)
        if not 8 % bits:  # none is in two bytes
            shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
            return (rows[:, :, None] >> shifts & ((1 << bits) - 1)).flatten(1)
        return torch.cat([_across_bytes(some, bits) for some in torch.split(rows, _ROWS)])

    def _part(self, place: _Source, part: str) -> Tensor:
        """Return a matrix's part; of a stack nothing else is read."""
        if place.expert is None:
            return self._get(place.base, part)
        name = f"{place.base}.{part}"
        found: Tensor = self._tensors[name].get_slice(name)[place.expert : place.expert + 1][0]
        return found


def _across_bytes(rows: Tensor, bits: int) -> Tensor:
    """Return the integers of a stream of bits, uint8 `[outputs, inputs]`, of its bytes `[outputs, bytes]`."""
    parts = rows.view(len(rows), -1, bits).long() << torch.arange(0, 8 * bits, 8)
    words = parts.sum(dim=-1, keepdim=True)
    return (words >> torch.arange(0, _EACH * bits, bits) & ((1 << bits) - 1)).to(torch.uint8).flatten(1)
