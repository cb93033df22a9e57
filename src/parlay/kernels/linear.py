"""Matrix products of the reference kernels, through oneDNN, and the type that holds a packed weight.

There are three ways, each slower and less in debt to a library than the one before:
    onednn    oneDNN sums K in one order for every number of rows but one: a lone row takes another kernel. It is
              therefore doubled. MKL, which torch prefers for float32, is not row-invariant at all.
    float32   The same, with bfloat16 weights held as float32. Without bfloat16 instructions oneDNN multiplies a few
              rows of bfloat16 in another order than many.
    rows      numpy multiplies and adds one row at a time, so that no row can tell that there are others.
The self-check finds out which is needed.
"""

from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """A weight `[outputs, inputs]` as some kernels want it; only they look at `tensor`."""

    tensor: Tensor
    outputs: int
    inputs: int


Way = Literal["onednn", "float32", "rows"]
WAYS: tuple[Way, ...] = get_args(Way)


def pack(weight: Tensor, way: Way = "onednn") -> LinearWeight:
    """Return the weight as it is, or in float32 where `way` multiplies in float32."""
    return LinearWeight((weight if way == "onednn" else weight.float()).contiguous(), *weight.shape)


def linear(x: Tensor, weight: LinearWeight, out: Tensor, way: Way = "onednn") -> None:
    """Write `x weight^T`, multiplied in the packed weight's dtype, to `out`."""
    x = x.to(weight.tensor.dtype)
    if way == "rows":
        matrix = weight.tensor.numpy()
        for row, result in zip(x.numpy(), out, strict=True):
            result.copy_(torch.from_numpy((row * matrix).sum(axis=1)))
        return
    rows = torch.cat((x, x)) if x.shape[0] == 1 else x
    out.copy_(_product(rows, weight.tensor)[: x.shape[0]])


def _product(x: Tensor, weight: Tensor) -> Tensor:
    if x.dtype is torch.float32 and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise.default(x, weight, None, "none", [], ""))
    return torch.nn.functional.linear(x, weight)
