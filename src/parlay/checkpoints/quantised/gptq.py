"""Linear layers of AWQ and GPTQ checkpoints: integers of four or eight bits, several in a word of 32.

Source: AutoAWQ's `WQLinear_GEMM`, and AutoGPTQ's `QuantLinear` with its checkpoint formats "gptq" and "gptq_v2".

    AWQ     qweight int32 [inputs, outputs / 8], qzeros int32 [groups, outputs / 8]; a word's eight nibbles are its
            outputs 0, 2, 4, 6, 1, 3, 5, 7
    GPTQ    qweight int32 [inputs / n, outputs], n = 32 / bits; qzeros int32 [groups, outputs / n], in "gptq" less
            one; g_idx int32 [inputs], the group of each input, may be left out where groups follow each other
            or be all 0
    both    scales [groups, outputs]; a number is scale * (integer - zero point)
"""

from collections.abc import Set

from torch import Tensor

from parlay.checkpoints.quantised.integers import WORD, IntegerLayers, signed, unpacked
from parlay.errors import ModelError

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where a word's outputs are
_PARTS = ("qweight", "qzeros", "scales", "g_idx")
_FLOATS = ("F16", "BF16", "F32")


class GPTQLayers(IntegerLayers):
    """The layers of four or eight bits of an AWQ or GPTQ checkpoint."""

    _index, _unset = "g_idx", 0  # as ExLlama takes it

    def _find(self, tensors: Set[str]) -> tuple[Set[str], Set[str]]:
        bases = {name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")}
        return bases, tensors & {f"{base}.{part}" for base in bases for part in _PARTS}

    def _bits(self, base: str) -> int:
        """Return the bits of a layer's integers: of several kinds of layers, shapes tell which one it is."""
        several = [scheme.bits for scheme in self._packing.schemes]
        scales, zeros = self._shape(base, "scales"), self._shape(base, "qzeros")
        bits = zeros[-1] * WORD // scales[-1] if len(zeros) == len(scales) == 2 and scales[-1] else 0
        return bits if bits in several else several[0]

    def _levels(self, base: str) -> Tensor:
        found = self._unpacked(base, "qweight")
        if self._packing.method == "gptq":
            found = found.transpose(1, 2)  # a word has several inputs
        outputs, _ = self._shapes[f"{base}.weight"]
        return signed(found.reshape(-1, outputs).T.contiguous(), self._bits(base))

    def _scales(self, base: str) -> Tensor:
        return self._get(base, "scales").float().T

    def _zeros(self, base: str) -> Tensor | None:
        found, bits = self._unpacked(base, "qzeros"), self._bits(base)
        zeros = signed((found.flatten(1) + self._packing.shift) & ((1 << bits) - 1), bits)
        return zeros.float().T if bool(zeros.any()) else None

    def _unpacked(self, base: str, part: str) -> Tensor:
        found = unpacked(self._get(base, part), self._bits(base))
        return found[:, :, _AWQ_ORDER] if self._packing.method == "awq" else found

    def _check(self, base: str) -> tuple[int, int]:
        """Return outputs and inputs."""
        self._need(base, *_PARTS[:3])
        path, bits = self._path, self._bits(base)
        several = WORD // bits
        self._expect(base, "qweight", "I32")
        self._expect(base, "qzeros", "I32")
        self._expect(base, "scales", *_FLOATS)
        words, zeros, scales = (self._shape(base, part) for part in _PARTS[:3])
        if len(words) != 2 or len(zeros) != 2 or len(scales) != 2:
            raise ModelError(f"{path}: {base} must be made of matrices; the checkpoint is damaged")
        (inputs, outputs), groups = words, scales[0]
        if self._packing.method == "gptq":
            inputs *= several
        else:
            outputs *= several
        fits = scales[1] == outputs and zeros == (groups, outputs // several) and not outputs % several
        if not fits or not groups or inputs % groups:
            raise ModelError(
                f"{path}: {base} has qweight {list(words)}, qzeros {list(zeros)} and scales {list(scales)}, which do "
                f"not fit {bits} bits of {self._packing.method}; the config or the checkpoint is wrong"
            )
        if self._has(base, "g_idx"):
            self._expect(base, "g_idx", "I32", "I64")
            if self._shape(base, "g_idx") != (inputs,):
                raise ModelError(f"{path}: {base}.g_idx must have {inputs} numbers, one for each input")
        return outputs, inputs
