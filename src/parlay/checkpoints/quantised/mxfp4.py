"""Experts of gpt-oss checkpoints in MXFP4: each number is one of sixteen, times its block's power of two.

Source: the Open Compute Project's "Microscaling Formats" 1.0; layout as in transformers' `integrations/mxfp4.py`.

    experts.gate_up_proj_blocks  uint8 [experts, 2 width, hidden / 32, 16]; outputs of gate and up take turns, and a
                                 byte's lower four bits are the first of two numbers
    experts.gate_up_proj_scales  uint8 [experts, 2 width, hidden / 32], exponents plus 127
    experts.down_proj_blocks     uint8 [experts, hidden, width / 32, 16]; scales likewise
"""

from collections.abc import Set
from dataclasses import dataclass

import torch
from torch import Tensor

from parlay.checkpoints.quantised.layers import QuantisedLayers
from parlay.weights.kinds import BY_NAME, Kind
from parlay.weights.weight import Part, Weight

_KIND = BY_NAME["MXFP4"]
_BLOCKS, _SCALES = "_blocks", "_scales"
# The matrices of a stack, and which of its outputs are theirs.
_STACKS = {
    "gate_up_proj": {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)},
    "down_proj": {"down_proj": slice(None)},
}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an expert's matrix is: the module of its stack, the stack, which of the experts, and its outputs."""

    module: str
    stack: str
    expert: int
    outputs: slice


class MXFP4Layers(QuantisedLayers):
    """The experts of such a checkpoint, each matrix by itself, in the blocks that GGUF files have for this."""

    def _find(self, tensors: Set[str]) -> tuple[Set[str], Set[str]]:
        self._places: dict[str, _Place] = {}
        stacks = {name.removesuffix(_BLOCKS) for name in tensors if name.endswith(_BLOCKS)}
        for module, _, stack in (name.rpartition(".") for name in stacks):
            self._check_stack(module, stack)
            for expert in range(self._shape(module, stack + _BLOCKS)[0]):
                for name, outputs in _STACKS[stack].items():
                    self._places[f"{module}.{expert}.{name}"] = _Place(module, stack, expert, outputs)
        return self._places.keys(), {stack + part for stack in stacks for part in (_BLOCKS, _SCALES)}

    def _check_stack(self, module: str, stack: str) -> None:
        self._need(module, stack + _SCALES)
        for part in (stack + _BLOCKS, stack + _SCALES):
            self._expect(module, part, "U8")
        shape = self._shape(module, stack + _BLOCKS)
        if stack not in _STACKS or len(shape) != 4 or shape[-1] != _KIND.size - 1:
            names = " or ".join(name + _BLOCKS for name in _STACKS)
            self._refuse(module, stack + _BLOCKS, f"{names} of MXFP4, [experts, outputs, inputs / 32, 16]")
        if self._shape(module, stack + _SCALES) != shape[:-1]:
            self._refuse(module, stack + _SCALES, f"scales of {stack + _BLOCKS}, one a block")

    def _check(self, base: str) -> tuple[int, int]:
        place = self._places[base]
        _, outputs, blocks, _ = self._shape(place.module, place.stack + _BLOCKS)
        return len(range(outputs)[place.outputs]), blocks * _KIND.block

    def _find_kind(self, name: str) -> Kind:
        return _KIND

    def get_tensor(self, name: str) -> Tensor:  # noqa: D102
        return self.get_blocks(name).numbers()

    def get_blocks(self, name: str) -> Weight:  # noqa: D102
        place = self._places[self._bases[name]]
        pairs, scales = (self._expert(place, part) for part in (_BLOCKS, _SCALES))
        # A block's numbers in order; the file that is written has 0 and 16, 1 and 17, ... in a byte.
        numbers = torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)
        first, second = numbers.chunk(2, dim=-1)
        return Weight((Part(_KIND, torch.cat((scales[..., None], first | second << 4), dim=-1).flatten(1)),))

    def _expert(self, place: _Place, part: str) -> Tensor:
        """Return an expert's part of a stack, of which nothing else is read."""
        name = f"{place.module}.{place.stack}{part}"
        stack = self._tensors[name].get_slice(name)
        found: Tensor = stack[place.expert : place.expert + 1][0][place.outputs]
        return found
