"""Kernels that break the contract on purpose."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.kernels.linear import LinearWeight
from parlay.weights.weight import Weight


class OtherOrder:
    """Sums some calls' products from the last input to the first: right, but with other rounding errors."""

    def __init__(
        self, kernels: Kernels, when: Callable[[int], bool], name: str = "broken", then: Kernels | None = None
    ) -> None:
        """Break `kernels.linear` for the numbers of rows that `when` picks; `then` are the careful kernels."""
        self.name = name
        self._kernels = kernels
        self._when = when
        self._then = then
        self._backwards: dict[int, LinearWeight] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def fallback(self) -> Kernels | None:
        return self._then

    def pack_linear(self, weight: Tensor | Weight) -> LinearWeight:
        packed = self._kernels.pack_linear(weight)
        numbers = Weight.of(weight).numbers()
        self._backwards[packed.parts[0].tensor.data_ptr()] = self._kernels.pack_linear(numbers.flip(1).contiguous())
        return packed

    def linear(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:
        if self._when(len(x)):
            x, weight = x.flip(1).contiguous(), self._backwards[weight.parts[0].tensor.data_ptr()]
        self._kernels.linear(x, weight, out)


class OneSlot(OtherOrder):
    """Sums backwards in one slot of larger calls only."""

    def __init__(self, kernels: Kernels, slot: int) -> None:
        super().__init__(kernels, lambda rows: True)
        self._slot = slot

    def linear(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:
        self._kernels.linear(x, weight, out)
        if len(x) > self._slot:
            super().linear(x[self._slot : self._slot + 1], weight, out[self._slot : self._slot + 1])
