"""What tensors of a GGUF file are made of: the model's own, in another order, multiplied or in another shape."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorOrigin:
    """Where a file's tensor comes from.

    Attributes:
        name: name of the model's tensor.
        outputs: indices of its outputs, in order, int64; None for all.
        inputs: indices of its inputs, in order; None for all.
        factor: factor on them, a number or one for each output, `[outputs]`.
        rates: the model has logarithms of what the file has the negative of.
        shape: shape in the file, where it differs; -1 stands for what is left.
    """

    name: str
    outputs: Tensor | None = None
    inputs: Tensor | None = None
    factor: float | Tensor = 1.0
    rates: bool = False
    shape: tuple[int, ...] = ()

    @property
    def moved(self) -> bool:
        """Whether the file has the model's numbers, or only some of them, at most in another order of outputs."""
        return self.inputs is None and not self.rates and isinstance(self.factor, float) and self.factor == 1

    def within(self, prefix: str) -> TensorOrigin:
        """Return the origin of a tensor of a layer whose tensors' names begin so."""
        return replace(self, name=prefix + self.name)

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in the file of what has a shape in the model."""
        return tuple(torch.empty(shape, device="meta").reshape(self.shape).shape) if self.shape else shape

    def numbers(self, own: Tensor) -> Tensor:
        """Return the file's numbers, float32, from the model's own, `[outputs, ...]`."""
        made = own.float() if self.outputs is None else own.float()[self.outputs]
        if self.inputs is not None:
            made = made[:, self.inputs]
        if self.rates:  # as layers that have the logarithms compute them
            flat = [-math.exp(each) for each in made.reshape(-1).tolist()]
            made = torch.tensor(flat, dtype=torch.float32).view(made.shape)
        factor = self.factor.view(-1, 1) if isinstance(self.factor, Tensor) else self.factor
        return made if self.moved or self.rates else made * factor
