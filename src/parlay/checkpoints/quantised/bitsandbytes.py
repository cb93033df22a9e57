"""Linear layers of bitsandbytes checkpoints in four bits: each number is one of sixteen, times its block's scale.

Source: QLoRA (Dettmers et al. 2023), and the tensors that bitsandbytes' `QuantState` writes for `nf4` and `fp4`.

    weight              bytes, `[numbers / 2, 1]` as uint8 or the bits of another dtype; the first number on top
    weight.quant_map    float32 [16], the numbers that there are
    weight.absmax       float32 [blocks], the scale of each block of numbers, in the order of rows
    weight.quant_state.bitsandbytes__nf4 (or __fp4)
                        a JSON mapping as uint8: quant_type, blocksize, shape, and the nested_ keys below
    double quantisation absmax is uint8 instead: indices into weight.nested_quant_map, float32 [256]; times
                        weight.nested_absmax, float32, one for every nested_blocksize of them, plus nested_offset
"""

import json
import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parlay.checkpoints.quantised.config import QuantisationConfig
from parlay.checkpoints.quantised.layers import QuantisedLayers
from parlay.errors import ModelError, shown

_STATE = "weight.quant_state.bitsandbytes__"
_FORMS = ("nf4", "fp4")
_PARTS = (
    "absmax",
    "quant_map",
    "nested_absmax",
    "nested_quant_map",
    *(f"quant_state.bitsandbytes__{f}" for f in _FORMS),
)
_BYTES = {"U8": 1, "I8": 1, "F16": 2, "BF16": 2, "F32": 4}
_LONGEST = 1 << 12  # bytes of a state; a hundred and some are usual
_LARGEST = 1 << 16  # numbers per block; bitsandbytes makes up to 4,096


@dataclass(frozen=True, slots=True)
class _State:
    """What a layer's JSON says.

    Attributes:
        shape: outputs and inputs.
        block: numbers that share a scale.
        nested: scales that share one, and what is added to each; None where scales are plain.
    """

    shape: tuple[int, int]
    block: int
    nested: tuple[int, float] | None

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)

    @property
    def blocks(self) -> int:
        return -(-self.numbers // self.block)


class BitsAndBytesLayers(QuantisedLayers):
    """The layers of four bits of a checkpoint, dequantised: no blocks of the kernels hold such numbers."""

    def __init__(self, packing: QuantisationConfig, tensors: Mapping[str, Any]) -> None:
        self._states: dict[str, _State] = {}
        super().__init__(packing, tensors)

    def _find(self, tensors: Set[str]) -> tuple[Set[str], Set[str]]:
        parts = {name for name in tensors if name.partition(".weight.")[2] in _PARTS}
        bases = {name.partition(".weight.")[0] for name in parts}
        return bases, parts | {f"{base}.weight" for base in bases}

    def get_tensor(self, name: str) -> Tensor:  # noqa: D102
        base = self._bases[name]
        state = self._states[base]
        scales, levels = self._scales(base, state), self._get(base, "weight.quant_map")
        if not bool(levels.isfinite().all()):
            raise self._not_numbers(base, "quant_map")
        # The two numbers of a byte, for each byte that there is.
        pairs = torch.stack([levels.repeat_interleave(16), levels.repeat(16)], dim=1)
        stored = self._get(base, "weight").contiguous().view(torch.uint8).flatten()
        numbers = torch.nn.functional.embedding(stored.int(), pairs).flatten()[: state.numbers]
        whole = state.numbers // state.block * state.block
        numbers[:whole].view(-1, state.block).mul_(scales[: whole // state.block, None])
        if whole < state.numbers:
            numbers[whole:] *= scales[-1]
        return numbers.view(state.shape)

    def _scales(self, base: str, state: _State) -> Tensor:
        """Return the scale of each block."""
        scales = self._get(base, "weight.absmax")
        if state.nested is None:
            valid = scales.isfinite() & (scales >= 0)
        else:
            block, offset = state.nested
            outer, levels = self._get(base, "weight.nested_absmax"), self._get(base, "weight.nested_quant_map")
            scales = levels[scales.int()] * outer.repeat_interleave(block)[: len(scales)] + offset
            valid = scales.isfinite()  # rounded themselves, so those near 0 may be a little below
        if not bool(valid.all()):
            raise self._not_numbers(base, "absmax")
        return scales

    def _not_numbers(self, base: str, part: str) -> ModelError:
        return ModelError(
            f"{self._path}: {base}.weight.{part} makes scales or levels that are no finite numbers; the checkpoint "
            "is damaged, fetch it again"
        )

    def _check(self, base: str) -> tuple[int, int]:
        forms = [form for form in _FORMS if self._has(base, _STATE + form)]
        self._need(base, "weight", "weight.absmax", "weight.quant_map", _STATE + (forms or _FORMS)[0])
        state = self._states[base] = self._read_state(base, forms[0])
        nested = state.nested is not None
        self._expect(base, "weight", *_BYTES)
        wide = _BYTES[self._dtype(base, "weight")]
        if math.prod(self._shape(base, "weight")) != -(-state.numbers // (2 * wide)):
            self._refuse(base, "weight", f"{' x '.join(map(str, state.shape))} numbers of four bits")
        self._numbers(base, "weight.quant_map", 16, "F32")
        self._numbers(base, "weight.absmax", state.blocks, "U8" if nested else "F32")
        if state.nested is not None:
            self._need(base, "weight.nested_absmax", "weight.nested_quant_map")
            self._numbers(base, "weight.nested_quant_map", 256, "F32")
            self._numbers(base, "weight.nested_absmax", -(-state.blocks // state.nested[0]), "F32")
        return state.shape

    def _numbers(self, base: str, part: str, count: int, dtype: str) -> None:
        """Check that a tensor has so many numbers of a dtype."""
        self._expect(base, part, dtype)
        if self._shape(base, part) != (count,):
            self._refuse(base, part, f"the {count} numbers that its quant_state asks for")

    def _read_state(self, base: str, form: str) -> _State:
        part = _STATE + form
        self._expect(base, part, "U8")
        if math.prod(self._shape(base, part)) > _LONGEST:
            self._refuse(base, part, f"a state, which has {_LONGEST} bytes at most")
        try:
            raw = json.loads(bytes(self._get(base, part).flatten().tolist()))
            state = _state(raw, form, self._has(base, "weight.nested_absmax"))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ModelError(
                f"{self._path}: {base}.{part} does not describe a matrix of two sizes, its blocks and their scales; "
                "the checkpoint is damaged, fetch it again"
            ) from None
        return state


def _state(raw: Any, form: str, nested: bool) -> _State:
    """Return what a mapping says; a ValueError, KeyError or TypeError means that it is none."""
    high, wide = (_size(size, 1 << 40) for size in raw["shape"])
    offset = float(raw["nested_offset"]) if nested else 0.0
    if raw["quant_type"] != form or not math.isfinite(offset) or (not nested and "nested_blocksize" in raw):
        raise ValueError
    return _State(
        (high, wide),
        _size(raw["blocksize"], _LARGEST),
        (_size(raw["nested_blocksize"], _LARGEST), offset) if nested else None,
    )


def _size(value: object, most: int) -> int:
    if type(value) is not int or not 0 < value <= most:
        raise ValueError(f"{shown(value)} is no size")
    return value
