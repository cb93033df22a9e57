"""Linear layers of AWQ and GPTQ checkpoints: integers of four or eight bits, several in a word of 32.

Source: AutoAWQ's `WQLinear_GEMM`, and AutoGPTQ's `QuantLinear` with its checkpoint formats "gptq" and "gptq_v2".

    AWQ     qweight int32 [inputs, outputs / 8], qzeros int32 [groups, outputs / 8]; a word's eight nibbles are its
            outputs 0, 2, 4, 6, 1, 3, 5, 7
    GPTQ    qweight int32 [inputs / n, outputs], n = 32 / bits; qzeros int32 [groups, outputs / n], in "gptq" less
            one; g_idx int32 [inputs], the group of each input, may be left out where groups follow each other
            or be all 0
    both    scales [groups, outputs]; a number is scale * (integer - zero point)
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from parlay.checkpoints.quantised.config import QuantisationConfig
from parlay.checkpoints.quantised.layers import QuantisedLayers, blocks_of, fits_float16
from parlay.errors import ModelError
from parlay.weights.kinds import BY_NAME, Kind
from parlay.weights.weight import Weight

_WORD = 32  # bits
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where a word's outputs are
_UNORDERED = 0  # fills an index where inputs keep their order, as ExLlama takes it
_PARTS = ("qweight", "qzeros", "scales", "g_idx")
_FLOATS = ("F16", "BF16", "F32")
_NIBBLES, _BYTES = BY_NAME["Q4_1"], BY_NAME["Q8_0"]
_MIDDLE = 128  # the zero point of symmetric bytes


class GPTQLayers(QuantisedLayers):
    """The layers of four or eight bits of an AWQ or GPTQ checkpoint."""

    def __init__(self, packing: QuantisationConfig, tensors: Mapping[str, Any]) -> None:
        """Find the layers and check their shapes.

        Args:
            packing: what the config says.
            tensors: the open file of every tensor, by name.

        Raises:
            ModelError: a part is missing, or shapes contradict each other or the config.
        """
        self._packing = packing
        bases = [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]
        parts = {f"{base}.{part}" for base in bases for part in _PARTS}
        super().__init__(packing.path, tensors, bases, parts & set(tensors))

    def get_tensor(self, name: str) -> Tensor:  # noqa: D102
        base = self._bases[name]
        levels, scales, zeros = self._read(base)
        group = self._order(base, "g_idx", len(scales), _UNORDERED)
        if group is None:
            group = torch.arange(len(levels)) // (len(levels) // len(scales))
        return ((levels.float() - zeros[group].float()) * scales[group]).T.contiguous()

    def get_blocks(self, name: str) -> Weight:  # noqa: D102
        kind = self.kind(name)
        assert kind is not None
        levels, scales, zeros = self._read(self._bases[name])
        if kind is _BYTES:
            return blocks_of(kind, levels.T ^ _MIDDLE, scales.T)  # less the zero point, as a signed byte
        return blocks_of(kind, levels.T, scales.T, (-scales * zeros.float()).T)

    def _find_kind(self, name: str) -> Kind | None:
        base, (_, inputs) = self._bases[name], self._shapes[name]
        scales, zeros = self._scales(base).T, self._zeros(base)
        groups = len(zeros)
        if inputs // groups % _NIBBLES.block or self._order(base, "g_idx", groups, _UNORDERED) is not None:
            return None
        if self._bits(base) == 4:
            return _NIBBLES if fits_float16(scales, 15) else None
        return _BYTES if bool((zeros == _MIDDLE).all()) and fits_float16(scales) else None

    def _read(self, base: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return integers uint8 `[inputs, outputs]`, and scales and zero points `[groups, outputs]`."""
        words = self._get(base, "qweight")
        spread = self._spread(words, self._bits(base))
        if self._packing.method == "gptq":
            spread = spread.transpose(1, 2)  # a word has several inputs
        levels = spread.reshape(-1, self._shapes[f"{base}.weight"][0])
        return levels, self._scales(base), self._zeros(base)

    def _scales(self, base: str) -> Tensor:
        """Return scales as float32."""
        return self._get(base, "scales").float()

    def _zeros(self, base: str) -> Tensor:
        words = self._get(base, "qzeros")
        bits = self._bits(base)
        return (self._spread(words, bits).reshape(len(words), -1) + self._packing.shift) & ((1 << bits) - 1)

    def _bits(self, base: str) -> int:
        """Return the bits of a layer's integers: of several kinds of layers, shapes tell which one it is."""
        several = [scheme.bits for scheme in self._packing.schemes]
        scales, zeros = self._shape(base, "scales"), self._shape(base, "qzeros")
        bits = zeros[-1] * _WORD // scales[-1] if len(zeros) == len(scales) == 2 and scales[-1] else 0
        return bits if bits in several else several[0]

    def _spread(self, words: Tensor, bits: int) -> Tensor:
        """Return the integers of words `[a, b]` as uint8 `[a, b, n]`."""
        found = (words[:, :, None] >> torch.arange(0, _WORD, bits, dtype=torch.int32)) & ((1 << bits) - 1)
        return (found[:, :, _AWQ_ORDER] if self._packing.method == "awq" else found).to(torch.uint8)

    def _check(self, base: str) -> tuple[int, int]:
        """Return outputs and inputs."""
        self._need(base, *_PARTS[:3])
        path, bits = self._path, self._bits(base)
        several = _WORD // bits
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
