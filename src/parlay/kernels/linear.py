"""Matrix products of the reference kernels, through oneDNN, and the type that holds a packed weight.

oneDNN sums K in one order for every number of rows but one: a lone row takes another kernel. It is therefore
doubled. MKL, which torch prefers for float32, is not row-invariant at all.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """A weight `[outputs, inputs]` as some kernels want it; only they look at `tensor`."""

    tensor: Tensor
    outputs: int
    inputs: int


def pack(weight: Tensor) -> LinearWeight:
    """Return the weight as it is."""
    return LinearWeight(weight.contiguous(), *weight.shape)


def linear(x: Tensor, weight: LinearWeight, out: Tensor) -> None:
    """Write `x weight^T`, all of one dtype, to `out`."""
    rows = torch.cat((x, x)) if x.shape[0] == 1 else x
    out.copy_(_product(rows, weight.tensor)[: x.shape[0]])


def _product(x: Tensor, weight: Tensor) -> Tensor:
    if x.dtype is torch.float32 and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise.default(x, weight, None, "none", [], ""))
    return torch.nn.functional.linear(x, weight)
