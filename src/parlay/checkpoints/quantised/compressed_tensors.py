"""Linear layers stored in eight bits or four with scales beside them: FP8, and what llm-compressor writes.

Source: vLLM's `fp8` and `fbgemm_fp8` checkpoints, DeepSeek-V3's blocks, the formats of compressed-tensors, and
bitsandbytes' `Linear8bitLt`.

    FP8     weight float8_e4m3fn [outputs, inputs]; weight_scale of one number, [outputs, 1], or a number for each
            block; weight_scale_inv is the same under DeepSeek's name
    int8    weight int8 [outputs, inputs]; weight_scale likewise; weight_zero_point int8, where asymmetric
            bitsandbytes: SCB float32 [outputs] instead, 127 times the scale; weight_format uint8, 0 for rows
    packed  weight_packed int32 [outputs, inputs / n], n = 32 / bits, the first input in the lowest bits, each plus
            half of the range; weight_scale [outputs, groups]; weight_zero_point int32 [outputs / n, groups], packed
            along the outputs, or int8 [outputs, groups]; weight_shape int64 [2]; weight_g_idx int32 [inputs], the
            group of each input, all -1 where groups follow each other
    all     a number is scale * (stored - zero point)

Scales of activations are not used: kernels quantise rows by themselves, see `kernels.reference_quantised`.
"""

from collections.abc import Mapping, Set
from typing import Any

import torch
from torch import Tensor

from parlay.checkpoints.quantised.config import QuantisationConfig, Scheme
from parlay.checkpoints.quantised.integers import WORD, IntegerLayers, block_counts, signed, unpacked
from parlay.errors import ModelError

_LLM_INT8 = "SCB"
_SCALES = ("weight_scale", "weight_scale_inv", _LLM_INT8)
_FLOATS = ("F32", "BF16", "F16", "F8_E8M0")
_INTEGERS = ("I32", "I64")
_BESIDE = (
    *_SCALES,
    "weight_format",
    *("weight_zero_point", "weight_packed", "weight_shape", "weight_g_idx"),
    *("input_scale", "input_zero_point", "output_scale", "output_zero_point"),
    *("q_scale", "k_scale", "v_scale", "kv_scale"),
)


class ScaledLayers(IntegerLayers):
    """The layers of a checkpoint that have scales beside them."""

    _index, _unset = "weight_g_idx", -1  # where llm-compressor never set it

    def __init__(self, packing: QuantisationConfig, tensors: Mapping[str, Any]) -> None:
        self._packed_bits: dict[str, int] = {}
        super().__init__(packing, tensors)

    def _find(self, tensors: Set[str]) -> tuple[Set[str], Set[str]]:
        beside = {name for name in tensors if name.rpartition(".")[2] in _BESIDE}
        bases = {name.rpartition(".")[0] for name in beside if name.rpartition(".")[2] in (*_SCALES, "weight_packed")}
        weights = {f"{base}.weight" for base in bases}
        return bases, beside | (weights & tensors)

    def _bits(self, base: str) -> int | None:
        if self._has(base, "weight_packed"):
            return self._packed_bits[base]
        return 8 if self._dtype(base, "weight") == "I8" else None

    def _levels(self, base: str) -> Tensor:
        if not self._has(base, "weight_packed"):
            return self._get(base, "weight")
        _, inputs = self._shapes[f"{base}.weight"]
        return self._integers(base, self._get(base, "weight_packed"))[:, :inputs]

    def _zeros(self, base: str) -> Tensor | None:
        if not self._has(base, "weight_zero_point"):
            return None
        zeros = self._get(base, "weight_zero_point")
        if zeros.dtype is torch.int32:
            outputs, _ = self._shapes[f"{base}.weight"]
            zeros = self._integers(base, zeros.T)[:, :outputs].T
        zeros = _matrix(zeros.float())
        return zeros if bool(zeros.any()) else None

    def _integers(self, base: str, words: Tensor) -> Tensor:
        """Return the signed integers of words `[a, b]`, `[a, b * n]`."""
        bits = self._packed_bits[base]
        return signed(unpacked(words, bits).flatten(1), bits)

    def _scales(self, base: str) -> Tensor:
        part = self._scale_of(base)
        scales = _matrix(self._get(base, part).float())
        if part == _LLM_INT8:  # an output of zeros has a scale of 0
            valid, scales = scales.isfinite() & (scales >= 0), scales / 127
        else:
            valid = scales.isfinite() & (scales != 0)  # AutoRound makes some below 0
        if not bool(valid.all()):
            raise ModelError(
                f"{self._path}: {base}.{part} holds scales that are 0 or no finite numbers; the checkpoint "
                "is damaged, fetch it again"
            )
        return scales

    def _check(self, base: str) -> tuple[int, int]:
        packed = self._has(base, "weight_packed")
        self._need(base, self._scale_of(base), "weight_shape" if packed else "weight")
        if not any(scheme.packed == packed for scheme in self._packing.schemes):
            raise ModelError(
                f"{self._path}: {base} is {'' if packed else 'not '}packed into words, unlike what its "
                "quantization_config says; the config or the checkpoint is wrong"
            )
        shape = self._check_packed(base) if packed else self._check_plain(base)
        counts = self._check_scales(base, shape)
        schemes = self._schemes(base, shape, counts)
        if self._has(base, "weight_zero_point"):
            self._expect(base, "weight_zero_point", *(("I32", "I8") if packed else ("I8",)))
            wanted: tuple[int, ...] = self._shape(base, self._scale_of(base))
            if self._dtype(base, "weight_zero_point") == "I32":
                wanted = (-(-shape[0] * self._packed_bits[base] // WORD), counts[1])
            if self._shape(base, "weight_zero_point") != wanted:
                self._refuse(base, "weight_zero_point", f"zero points beside {counts[0]} x {counts[1]} scales")
        elif all(scheme.zeros for scheme in schemes):
            self._need(base, "weight_zero_point")
        if self._has(base, "weight_g_idx"):
            self._expect(base, "weight_g_idx", *_INTEGERS)
            if self._shape(base, "weight_g_idx") != (shape[1],):
                self._refuse(base, "weight_g_idx", f"groups of {shape[1]} inputs")
        return shape

    def _check_plain(self, base: str) -> tuple[int, int]:
        stored = self._shape(base, "weight")
        if len(stored) != 2:
            self._refuse(base, "weight", "a matrix")
        if self._dtype(base, "weight") not in ("I8", "F8_E4M3"):
            raise ModelError(
                f"{self._path}: {base}.weight is stored as {self._dtype(base, 'weight')} beside a scale; int8 and "
                "float8_e4m3fn are supported"
            )
        if self._has(base, "weight_format") and self._get(base, "weight_format").flatten().tolist() != [0]:
            raise ModelError(
                f"{self._path}: {base}.weight is laid out for a certain GPU; save the model again with bitsandbytes "
                "0.45 or later, which writes rows"
            )
        return stored[0], stored[1]

    def _check_packed(self, base: str) -> tuple[int, int]:
        self._expect(base, "weight_packed", "I32")
        self._expect(base, "weight_shape", *_INTEGERS)
        if self._shape(base, "weight_shape") != (2,):
            self._refuse(base, "weight_shape", "outputs and inputs")
        outputs, inputs = map(int, self._get(base, "weight_shape").tolist())
        stored = self._shape(base, "weight_packed")
        supported = sorted({scheme.bits for scheme in self._packing.schemes if scheme.packed})
        fitting = [bits for bits in supported if stored == (outputs, -(-inputs * bits // WORD))]
        if min(outputs, inputs) < 1 or not fitting:
            bits = " or ".join(map(str, supported))
            self._refuse(base, "weight_packed", f"{outputs} x {inputs} numbers of {bits} bits")
        self._packed_bits[base] = fitting[0]
        return outputs, inputs

    def _check_scales(self, base: str, shape: tuple[int, int]) -> tuple[int, int]:
        """Return how many scales there are along outputs and inputs."""
        part, (outputs, inputs) = self._scale_of(base), shape
        self._expect(base, part, *_FLOATS)
        counts = self._shape(base, part)
        if counts in ((), (1,), (outputs,)):
            counts = (*counts, 1, 1)[:2]
        # By tensor, by channel, by group of inputs, or in the blocks that the config says.
        blocks = self._packing.blocks
        if len(counts) == 2 and counts != (blocks and block_counts(shape, blocks)):
            rows, columns = counts
            if rows not in (1, outputs) or not columns or inputs % columns:
                self._refuse(base, part, f"the scales of {outputs} x {inputs} numbers")
        elif len(counts) != 2:
            self._refuse(base, part, f"the scales of {outputs} x {inputs} numbers")
        return counts[0], counts[1]

    def _schemes(self, base: str, shape: tuple[int, int], counts: tuple[int, int]) -> list[Scheme]:
        """Return the schemes that a layer's tensors fit, apart from zero points."""
        inputs, packed = shape[1], self._has(base, "weight_packed")
        alike = [
            scheme
            for scheme in self._packing.schemes
            if scheme.packed == packed and scheme.bits == self._packed_bits.get(base, 8)
        ]
        blocks = self._packing.blocks
        if blocks is None or counts != block_counts(shape, blocks):
            each = inputs // counts[1]
            # A group may be larger than all of a layer's inputs.
            alike = [
                scheme
                for scheme in alike
                if each == (scheme.group or inputs) or (counts[1] == 1 and scheme.group > inputs)
            ]
        if not alike:
            self._refuse(base, self._scale_of(base), "the scales of groups as large as the config says")
        return alike

    def _scale_of(self, base: str) -> str:
        return next((part for part in _SCALES if self._has(base, part)), _SCALES[0])


def _matrix(factors: Tensor) -> Tensor:
    """Return factors of a tensor, of channels or of blocks as `[a, b]`."""
    return factors if factors.dim() == 2 else factors.reshape(-1, 1)
