"""Feed-forward networks."""

from dataclasses import dataclass

from torch import Tensor

from parlay.kernels.base import Activation
from parlay.models.context import ForwardContext
from parlay.models.layers import ColumnParallelLinear, GatheredLinear, ReducedLinear


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """`down(activation(gate(x)) * up(x))`; both factors may have a limit, see `Kernels.act_mul`."""

    gate_up: ColumnParallelLinear
    down: GatheredLinear | ReducedLinear
    activation: Activation = "silu"
    limit: float = 0.0

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:
        """Return `[rows, hidden]` for `x` of `[rows, hidden]`."""
        buffers = context.buffers
        gate_up = self.gate_up(x, buffers, "gate_up")
        product = buffers("product", gate_up.shape[1] // 2)
        if gate_up.shape[1]:
            context.kernels.act_mul(gate_up, self.activation, product, self.limit)
        return self.down(product, buffers, "mlp")


@dataclass(frozen=True, slots=True)
class PlainMLP:
    """`down(activation(up(x)))`."""

    up: ColumnParallelLinear
    down: GatheredLinear | ReducedLinear
    activation: Activation

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:
        """Return `[rows, hidden]` for `x` of `[rows, hidden]`."""
        inner = self.up(x, context.buffers, "up")
        if inner.shape[1]:
            context.kernels.activate(inner, self.activation)
        return self.down(inner, context.buffers, "mlp")


@dataclass(frozen=True, slots=True)
class ScaledMLP:
    """`network_scale * down(activation(gate_scale * gate(x)) * up(x))`."""

    gate: ColumnParallelLinear
    up: ColumnParallelLinear
    down: GatheredLinear | ReducedLinear
    activation: Activation
    gate_scale: float
    network_scale: float

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:
        """Return `[rows, hidden]` for `x` of `[rows, hidden]`."""
        kernels, buffers = context.kernels, context.buffers
        gate, up = self.gate(x, buffers, "gate"), self.up(x, buffers, "up")
        if gate.shape[1]:
            kernels.scale(gate, self.gate_scale)
            kernels.activate(gate, self.activation)
            kernels.multiply(gate, up)
        out = self.down(gate, buffers, "mlp")
        kernels.scale(out, self.network_scale)
        return out


@dataclass(frozen=True, slots=True)
class XieluMLP:
    """`down(xielu(up(x)))`; `numbers` are those of `Kernels.xielu`."""

    up: ColumnParallelLinear
    down: GatheredLinear | ReducedLinear
    numbers: Tensor

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:
        """Return `[rows, hidden]` for `x` of `[rows, hidden]`."""
        inner = self.up(x, context.buffers, "up")
        if inner.shape[1]:
            context.kernels.xielu(inner, self.numbers)
        return self.down(inner, context.buffers, "mlp")


Network = GatedMLP | PlainMLP | ScaledMLP | XieluMLP
