"""Linear layers stored in eight bits or four with scales beside them: FP8, and what llm-compressor writes.

Source: vLLM's `fp8` and `fbgemm_fp8` checkpoints, DeepSeek-V3's blocks, and the formats of compressed-tensors.

    FP8     weight float8_e4m3fn [outputs, inputs]; weight_scale of one number, [outputs, 1], or a number for each
            block; weight_scale_inv is the same under DeepSeek's name
    int8    weight int8 [outputs, inputs]; weight_scale likewise; weight_zero_point int8, where asymmetric
    packed  weight_packed int32 [outputs, inputs / n], n = 32 / bits, the first input in the lowest bits, each plus
            half of the range; weight_scale [outputs, groups]; weight_zero_point int32 [outputs / n, groups], packed
            along the outputs; weight_shape int64 [2]; weight_g_idx int32 [inputs], the group of each input
    all     a number is scale * (stored - zero point)

What the scales of activations say is of no use here: kernels round rows by themselves, see `kernels.quantised`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from parlay.errors import ModelError
from parlay.models.packed import Shape
from parlay.models.packing import Packing
from parlay.weights.kinds import BY_NAME, Kind
from parlay.weights.weight import Part, Weight

_WORD = 32  # bits
_NIBBLES, _BYTES = BY_NAME["Q4_1"], BY_NAME["Q8_0"]
_LEAST = 2.0**-14  # of scales that float16 has with all of its bits
_SCALES = ("weight_scale", "weight_scale_inv")
_BESIDE = (
    *_SCALES,
    *("weight_zero_point", "weight_packed", "weight_shape", "weight_g_idx"),
    *("input_scale", "input_zero_point", "output_scale", "output_zero_point", "k_scale", "v_scale"),
)


class ScaledLayers:
    """The quantised layers of a checkpoint under the names that their matrices have; reads as a file does.

    Attributes:
        parts: names of the tensors that they are made of, and of those that tell of activations.
    """

    def __init__(self, packing: Packing, tensors: Mapping[str, Any]) -> None:
        """Find the layers and check their shapes.

        Args:
            packing: what the config says.
            tensors: the open file of every tensor, by name.

        Raises:
            ModelError: a part is missing, or shapes contradict each other or the config.
        """
        self._packing, self._tensors = packing, tensors
        beside = {name for name in tensors if name.rpartition(".")[2] in _BESIDE}
        bases = {name.rpartition(".")[0] for name in beside if name.rpartition(".")[2] in (*_SCALES, "weight_packed")}
        self._bases = {f"{base}.weight": base for base in sorted(bases)}
        self.parts = frozenset(beside | (self._bases.keys() & tensors.keys()))
        self._shapes = {name: self._check(base) for name, base in self._bases.items()}
        self._kinds: dict[str, Kind | None] = {}

    def keys(self) -> list[str]:
        """Return the matrices' names."""
        return list(self._bases)

    def get_slice(self, name: str) -> Shape:
        """Return what knows a matrix's shape without reading it."""
        return Shape(list(self._shapes[name]))

    def get_tensor(self, name: str) -> Tensor:
        """Return a matrix as float32, `[outputs, inputs]`.

        Raises:
            ModelError: a scale is no number above 0, or an input is of a group that there is not.
        """
        base = self._bases[name]
        levels, scales, zeros = self._read(base)
        if self._has(base, "weight_g_idx"):
            group = self._groups(base, scales.shape[1])
            return (levels - (0 if zeros is None else zeros[:, group])) * scales[:, group]
        spread = self._spread(name, scales)
        return (levels if zeros is None else levels - self._spread(name, zeros)) * spread

    def kind(self, name: str) -> Kind | None:
        """Return the blocks that a matrix can be given in; None if it has to be dequantised."""
        if name not in self._kinds:
            self._kinds[name] = self._find_kind(name)
        return self._kinds[name]

    def get_blocks(self, name: str) -> Weight:
        """Return a matrix in the blocks of its kind, of 32 inputs."""
        kind = self.kind(name)
        assert kind is not None
        levels, scales, zeros = self._read(self._bases[name])
        outputs, inputs = levels.shape
        codes = levels.reshape(outputs, inputs // kind.block, kind.block)
        data = torch.empty((*codes.shape[:2], kind.size), dtype=torch.uint8)
        repeats = codes.shape[1] // scales.shape[1]
        data[:, :, :2] = _halves(scales.expand(outputs, -1), repeats)
        if kind is _BYTES:
            data[:, :, 2:] = codes.to(torch.int8).view(torch.uint8)
        else:
            least = -scales * (8 + (0 if zeros is None else zeros))
            nibbles = (codes + 8).to(torch.uint8)
            data[:, :, 2:4] = _halves(least, repeats)
            data[:, :, 4:] = nibbles[:, :, :16] | nibbles[:, :, 16:] << 4
        return Weight((Part(kind, data.view(outputs, -1)),))

    def _find_kind(self, name: str) -> Kind | None:
        base, (outputs, inputs) = self._bases[name], self._shapes[name]
        packed = self._has(base, "weight_packed")
        if self._has(base, "weight_g_idx") or not (packed or self._dtype(f"{base}.weight") == "I8"):
            return None
        scales = self._scales(base)
        groups = scales.shape[1]
        blocks = _NIBBLES if packed and self._packing.bits == 4 else _BYTES
        if inputs % groups or inputs // groups % blocks.block or len(scales) not in (1, outputs):
            return None
        if blocks is _BYTES and (self._has(base, "weight_zero_point") or float(scales.min()) < _LEAST):
            return None
        return blocks

    # ------------------------------------------------------------------------------------------------- reading

    def _read(self, base: str) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return signed integers or FP8's numbers `[outputs, inputs]`, scales and zero points, all float32."""
        if not self._has(base, "weight_packed"):
            zeros = self._get(base, "weight_zero_point").float() if self._has(base, "weight_zero_point") else None
            levels = self._get(base, "weight").float()
            return levels, self._scales(base), None if zeros is None else _matrix(zeros)
        outputs, inputs = self._shapes[f"{base}.weight"]
        zeros = None
        if self._has(base, "weight_zero_point"):
            zeros = self._integers(self._get(base, "weight_zero_point").T)[:, :outputs].T.float()
        return self._integers(self._get(base, "weight_packed"))[:, :inputs].float(), self._scales(base), zeros

    def _integers(self, words: Tensor) -> Tensor:
        """Return the signed integers of words `[a, b]`, `[a, b * n]`."""
        bits = self._packing.bits
        found = (words[:, :, None] >> torch.arange(0, _WORD, bits, dtype=torch.int32)) & ((1 << bits) - 1)
        return found.reshape(len(words), -1) - (1 << (bits - 1))

    def _scales(self, base: str) -> Tensor:
        part = self._scale_of(base)
        scales = _matrix(self._get(base, part).float())
        if not bool((scales.isfinite() & (scales > 0)).all()):
            raise ModelError(
                f"{self._packing.path}: {base}.{part} holds scales that are no numbers above 0; the checkpoint is "
                "damaged, fetch it again"
            )
        return scales

    def _spread(self, name: str, factors: Tensor) -> Tensor:
        """Return numbers of blocks `[a, b]` as one for each weight."""
        outputs, inputs = self._shapes[name]
        high, wide = self._block(name, (len(factors), factors.shape[1]))
        return factors.repeat_interleave(high, 0)[:outputs].repeat_interleave(wide, 1)[:, :inputs]

    def _block(self, name: str, blocks: tuple[int, int]) -> tuple[int, int]:
        """Return the size of blocks, of which there are so many; those at the end may be smaller."""
        size = [-(-whole // count) for whole, count in zip(self._shapes[name], blocks, strict=True)]
        for axis, said in enumerate(self._packing.blocks or ()):
            size[axis] = said if blocks[axis] > 1 else size[axis]
        return size[0], size[1]

    def _groups(self, base: str, count: int) -> Tensor:
        """Return the group of each input."""
        group = self._get(base, "weight_g_idx").long()
        if not bool(((group >= 0) & (group < count)).all()):
            raise ModelError(f"{self._packing.path}: {base}.weight_g_idx names groups beyond the {count} with scales")
        return group

    def _get(self, base: str, part: str) -> Tensor:
        tensor: Tensor = self._tensors[f"{base}.{part}"].get_tensor(f"{base}.{part}")
        return tensor

    # ------------------------------------------------------------------------------------------------ checking

    def _check(self, base: str) -> tuple[int, int]:
        """Return outputs and inputs."""
        path, packed = self._packing.path, self._has(base, "weight_packed")
        for part in (self._scale_of(base), *(("weight_shape",) if packed else ("weight",))):
            if not self._has(base, part):
                raise ModelError(f"{path} has quantised parts of {base} but lacks {base}.{part}; fetch it again")
        if packed:
            shape = self._get(base, "weight_shape")
            outputs, inputs = map(int, shape.flatten().tolist()) if shape.numel() == 2 else (0, 0)
            words = -(-inputs * self._packing.bits // _WORD)
            if min(outputs, inputs) < 1 or self._shape(base, "weight_packed") != (outputs, words):
                self._refuse(base, "weight_packed", f"{outputs} x {inputs} numbers of {self._packing.bits} bits")
        else:
            stored = self._shape(base, "weight")
            if len(stored) != 2:
                self._refuse(base, "weight", "a matrix")
            outputs, inputs = stored
            if self._dtype(f"{base}.weight") not in ("I8", "F8_E4M3"):
                raise ModelError(
                    f"{path}: {base}.weight is stored as {self._dtype(f'{base}.weight')} beside a scale; int8 and "
                    "float8_e4m3fn are served"
                )
        counts = self._shape(base, self._scale_of(base))
        rows, columns = (counts if len(counts) == 2 else (1, 1)) if counts not in ((outputs,),) else (outputs, 1)
        said = self._packing.blocks
        blocks = said and (-(-outputs // said[0]), -(-inputs // said[1]))
        # By tensor, by channel, by group of inputs, or in the blocks that the config says.
        fits = rows in (1, outputs) and columns <= inputs and not inputs % columns
        if len(counts) > 2 or min(rows, columns) < 1 or not (fits or (rows, columns) == blocks):
            self._refuse(base, self._scale_of(base), f"the scales of {outputs} x {inputs} numbers")
        if self._has(base, "weight_zero_point"):
            zeros = self._shape(base, "weight_zero_point")
            packed_rows = -(-outputs * self._packing.bits // _WORD)
            if zeros not in (((packed_rows, columns),) if packed else (counts,)):
                self._refuse(base, "weight_zero_point", f"zero points beside scales {list(counts)}")
        if self._has(base, "weight_g_idx") and self._shape(base, "weight_g_idx") != (inputs,):
            self._refuse(base, "weight_g_idx", f"groups of {inputs} inputs")
        return outputs, inputs

    def _refuse(self, base: str, part: str, what: str) -> None:
        raise ModelError(
            f"{self._packing.path}: {base}.{part} has shape {list(self._shape(base, part))}, which cannot be {what}; "
            "the config or the checkpoint is wrong"
        )

    def _scale_of(self, base: str) -> str:
        return next((part for part in _SCALES if self._has(base, part)), _SCALES[0])

    def _has(self, base: str, part: str) -> bool:
        return f"{base}.{part}" in self._tensors

    def _dtype(self, name: str) -> str:
        return str(self._tensors[name].get_slice(name).get_dtype())

    def _shape(self, base: str, part: str) -> tuple[int, ...]:
        name = f"{base}.{part}"
        return tuple(self._tensors[name].get_slice(name).get_shape())


def _matrix(factors: Tensor) -> Tensor:
    """Return factors of a tensor, of channels or of blocks as `[a, b]`."""
    return factors if factors.dim() == 2 else factors.reshape(-1, 1)


def _halves(values: Tensor, repeats: int) -> Tensor:
    """Return numbers `[outputs, groups]` as the bytes of float16, `[outputs, groups * repeats, 2]`."""
    return values.half().repeat_interleave(repeats, dim=1).contiguous()[:, :, None].view(torch.uint8)
