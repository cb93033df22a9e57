"""Matrix products of the reference kernels, and the type that holds a packed weight.

Plain numbers go through oneDNN. Of three backends each is slower and depends less on a library than the one before:
    onednn    oneDNN sums K in one order for every number of rows but one: a lone row takes another kernel. It is
              therefore doubled. MKL, which torch prefers for float32, is not row-invariant at all.
    float32   The same, with bfloat16 weights held as float32. Without bfloat16 instructions oneDNN multiplies a few
              rows of bfloat16 in another order than many.
    rows      numpy multiplies and adds one row at a time, so no row depends on the others.
The self-check detects which is needed. Weights in float16 are held as float32, which changes none of them.
Quantised weights have only one, see `kernels.reference_quantised`.
"""

from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from parlay.kernels import reference_quantised
from parlay.weights.blocks import Blocks, unpack
from parlay.weights.kinds import HALF, Kind
from parlay.weights.weight import Part, Weight


@dataclass(frozen=True, slots=True)
class PackedPart:
    """Outputs of a weight that are stored alike, as some kernels want them; only they look inside.

    Attributes:
        kind: kind in which they were stored.
        tensor: the numbers or blocks.
        outputs: number of outputs.
        blocks: what blocks hold, where the kernels want them unpacked.
    """

    kind: Kind
    tensor: Tensor
    outputs: int
    blocks: Blocks | None = None


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """A packed weight `[outputs, inputs]`, its parts stacked along the outputs."""

    parts: tuple[PackedPart, ...]
    outputs: int
    inputs: int


Backend = Literal["onednn", "float32", "rows"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)


def pack(weight: Tensor | Weight, backend: Backend = "onednn", *, wide: bool = False) -> LinearWeight:
    """Return a weight as the reference kernels want it.

    Args:
        weight: `[outputs, inputs]`.
        backend: how to multiply plain numbers; some want them in float32.
        wide: have plain numbers in float32 in any case.
    """
    weight = Weight.of(weight)
    return LinearWeight(tuple(_pack(part, wide or backend != "onednn") for part in weight.parts), *weight.shape)


def _pack(part: Part, wide: bool) -> PackedPart:
    if part.quantised:
        return PackedPart(part.kind, part.data, len(part.data), unpack(part.kind, part.data.numpy()))
    wide = wide or part.kind is HALF
    return PackedPart(part.kind, (part.data.float() if wide else part.data).contiguous(), len(part.data))


def linear(x: Tensor, weight: LinearWeight, out: Tensor, backend: Backend = "onednn") -> None:
    """Write `x weight^T`, plain numbers multiplied in the packed weight's dtype, to `out`."""
    results = torch.split(out, [part.outputs for part in weight.parts], dim=1)
    for part, result in zip(weight.parts, results, strict=True):
        if part.blocks is None:
            _multiply(x.to(part.tensor.dtype), part.tensor, result, backend)
        else:
            result.copy_(torch.from_numpy(reference_quantised.product(x.float().numpy(), part.blocks)))


def _multiply(x: Tensor, weight: Tensor, out: Tensor, backend: Backend) -> None:
    if backend == "rows":
        matrix = weight.numpy()
        for row, result in zip(x.numpy(), out, strict=True):
            result.copy_(torch.from_numpy((row * matrix).sum(axis=1)))
        return
    rows = torch.cat((x, x)) if x.shape[0] == 1 else x
    out.copy_(_product(rows, weight)[: x.shape[0]])


def rows_of(weight: LinearWeight, tokens: Tensor) -> Tensor:
    """Return rows `tokens` of a weight of one part, quantised or in float16, as numbers, `[n, inputs]`."""
    (part,) = weight.parts
    return part.tensor[tokens] if part.blocks is None else torch.from_numpy(part.blocks.numbers())[tokens]


def _product(x: Tensor, weight: Tensor) -> Tensor:
    if x.dtype is torch.float32 and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise.default(x, weight, None, "none", [], ""))
    return torch.nn.functional.linear(x, weight)
