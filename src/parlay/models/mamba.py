"""Mamba-2: a convolution, then a state space whose decay, input and output follow from the row.

Source: Dao and Gu 2024 (arXiv 2405.21060), section 7; the block as in Granite 4 and Nemotron-H.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from parlay.checkpoints.files import config_file
from parlay.checkpoints.loader import TensorReader
from parlay.errors import ModelError, shown
from parlay.kernels.base import Kernels
from parlay.kernels.metadata import STATE_PIECE
from parlay.models.config import ModelConfig
from parlay.models.context import ForwardContext, StateCache
from parlay.models.layers import ColumnParallelLinear, SplitLinear
from parlay.models.recurrent import check_kernel_size
from parlay.models.tensor_origins import TensorOrigin
from parlay.parallel.group import ALONE, Group
from parlay.types.cache import RecurrentSpec


def step_limits(config: ModelConfig, limits: Any) -> tuple[float, float]:
    """Return the bounds of a row's step as configs have them: infinity may be written as an object.

    Raises:
        ModelError: they are no two numbers in order.
    """
    values = [
        float(each["__float__"]) if isinstance(each, dict) and each.get("__float__") == "Infinity" else each
        for each in (limits if isinstance(limits, list | tuple) else ())
    ]
    if len(values) == 2 and all(type(each) in (int, float) for each in values) and 0 <= values[0] <= values[1]:
        return float(values[0]), float(values[1])
    raise ModelError(f"{config_file(config.path)}: time_step_limit must be two numbers in order, not {shown(limits)}")


@dataclass(frozen=True, slots=True)
class MambaLayers:
    """Mamba-2 in the place of some layers' attention; a `RecurrentLayers`.

    Attributes:
        layers: whether each layer is Mamba-2.
        kernel_size: the convolution's taps.
        heads: heads of x.
        width: columns of a head.
        groups: heads of B and C.
        state: columns of B and C, per group.
        conv_bias: the convolution has a bias.
        bias: the projections have biases.
        least_step, most_step: bounds of the step that a row is.
        rates: the files have rates of decay instead of the logarithms of their sizes.
        normed: there is a norm behind the state space.
        gate_first: its input is gated, instead of its output.
        scales: factors on the output's gates, x, B, C and the steps.
        output_scale: factor on the layer's outputs.
    """

    alike_in_mlx: ClassVar[bool] = False

    layers: tuple[bool, ...]
    kernel_size: int
    heads: int
    width: int
    groups: int
    state: int
    conv_bias: bool = True
    bias: bool = False
    least_step: float = 0.0
    most_step: float = math.inf
    rates: bool = False
    normed: bool = True
    gate_first: bool = True
    scales: tuple[float, float, float, float, float] = (1.0,) * 5
    output_scale: float = 1.0

    def check(self, config: ModelConfig) -> None:
        """Refuse sizes that do not fit together or are not supported.

        Raises:
            ModelError: it names them.
        """
        if self.heads % self.groups:
            raise ModelError(f"{config.path}: {self.heads} Mamba heads do not divide into {self.groups} groups")
        if self.width % 16 or self.state % 8 or self.width > 512 or self.state > 512:
            raise ModelError(
                f"{config.path}: Mamba heads of {self.width} columns with states of {self.state} are not supported; "
                "multiples of 16 and of 8 up to 512 are"
            )
        check_kernel_size(config, self.kernel_size)

    @property
    def _inner(self) -> int:
        return self.heads * self.width

    @property
    def _shared(self) -> int:
        """Columns of B, and of C."""
        return self.groups * self.state

    def shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Return the name and shape of every tensor of a layer."""
        inner, channels = self._inner, self._inner + 2 * self._shared
        shapes: dict[str, tuple[int, ...]] = {
            "in_proj.weight": (inner + channels + self.heads, hidden),
            "conv1d.weight": (channels, 1, self.kernel_size),
            "A_log": (self.heads,),
            "D": (self.heads,),
            "dt_bias": (self.heads,),
            "out_proj.weight": (hidden, inner),
        }
        if self.normed:
            shapes["norm.weight"] = (inner,)
        if self.conv_bias:
            shapes["conv1d.bias"] = (channels,)
        if self.bias:
            shapes |= {"in_proj.bias": (inner + channels + self.heads,), "out_proj.bias": (hidden,)}
        return {f"mamba.{name}": shape for name, shape in shapes.items()}

    def gguf_layers(self, layout: Mapping[str, Any]) -> MambaLayers:
        """Return the layers as a GGUF file has them, with factors in the weights."""
        first = self.gate_first or not self.normed  # without a norm it is the same
        return replace(self, rates=True, scales=(1.0,) * 5, output_scale=1.0, gate_first=first)

    def gguf_origins(self, layout: Mapping[str, Any]) -> dict[str, TensorOrigin]:
        """Return what the tensors of a layer are made of in a GGUF file."""
        parts = self._inner, self._inner, self._shared, self._shared, self.heads
        scales = [torch.full((part,), scale) for part, scale in zip(parts, self.scales, strict=True)]
        factor: float | Tensor = torch.cat(scales) if {*self.scales} != {1.0} else 1.0
        found = {
            "in_proj.weight": TensorOrigin(name="in_proj.weight", factor=factor),
            "out_proj.weight": TensorOrigin(name="out_proj.weight", factor=self.output_scale),
            "conv1d.weight": TensorOrigin(name="conv1d.weight", shape=(-1, self.kernel_size)),
            "A_log": TensorOrigin(name="A_log", rates=not self.rates, shape=(-1, 1)),
            "D": TensorOrigin(name="D", shape=(-1, 1)),
            "norm.weight": TensorOrigin(name="norm.weight", shape=(self.groups, -1)),
        }
        return {f"mamba.{name}": origin.within("mamba.") for name, origin in found.items()}

    def gguf_sizes(self) -> dict[str, int]:
        """Return the sizes of a layer by the keys of GGUF files."""
        return {
            "ssm.conv_kernel": self.kernel_size,
            "ssm.state_size": self.state,
            "ssm.group_count": self.groups,
            "ssm.time_step_rank": self.heads,
            "ssm.inner_size": self._inner,
        }

    def gguf_unsupported(self) -> str:
        """Return what of such layers llama.cpp does not read."""
        return "" if self.conv_bias else "convolutions without a bias"

    def _bounds(self, group: Group) -> tuple[int, ...]:
        """Return the bounds of the ranks' heads: whole groups, which share B and C; in a single group, any heads."""
        return group.bounds(self.heads, 1 if self.groups == 1 else self.heads // self.groups)

    def spec(self, hidden: int, group: Group) -> RecurrentSpec:
        """Return what a layer keeps on one of the ranks: of its heads."""
        begin, end = group.share(self._bounds(group))
        heads = end - begin
        channels = heads * self.width + 2 * self._own_groups(heads) * self.state
        return RecurrentSpec(
            channels, self.kernel_size, (heads, -(-self.width // STATE_PIECE), self.state, STATE_PIECE), heads
        )

    def _own_groups(self, heads: int) -> int:
        return min(heads, 1) if self.groups == 1 else heads // (self.heads // self.groups)

    def products(self, hidden: int) -> list[tuple[str, tuple[int, int]]]:
        """Return the names and shapes of a layer's linear layers."""
        inner = self._inner
        return [
            ("state space in", (2 * inner + 2 * self._shared + self.heads, hidden)),
            ("state space out", (hidden, inner)),
        ]

    def make(self, hidden: int, eps: float, read: TensorReader, kernels: Kernels, group: Group) -> Mamba:
        """Read a layer."""
        inner, shared = self._inner, self._shared
        bounds = self._bounds(group)
        begin, end = group.share(bounds)
        groups = self._own_groups(end - begin)
        first = 0 if self.groups == 1 else begin // (self.heads // self.groups)
        # This rank's columns of x, B and C.
        own = torch.cat(
            (
                torch.arange(begin * self.width, end * self.width),
                inner + torch.arange(first * self.state, (first + groups) * self.state),
                inner + shared + torch.arange(first * self.state, (first + groups) * self.state),
            )
        )
        weight = read.weight("mamba.in_proj.weight")
        bias = read("mamba.in_proj.bias") if self.bias else None
        steps = 2 * inner + 2 * shared + torch.arange(begin, end)

        def project(rows: Tensor) -> ColumnParallelLinear:
            return ColumnParallelLinear(kernels, [weight.chosen(rows)], ALONE, None if bias is None else [bias[rows]])

        rates = read.exact("mamba.A_log").view(-1).tolist()[begin:end]
        gate_scale, *of_rows, step_scale = self.scales
        # The convolution is linear, so that factors on its rows are factors on its weights.
        parts = read.exact("mamba.conv1d.weight").view(-1, self.kernel_size).tensor_split((inner, inner + shared))
        taps = torch.cat([part * scale for part, scale in zip(parts, of_rows, strict=True)])
        return Mamba(
            rows=project(inner + own),
            gate=project(torch.arange(inner)),
            gates=project(steps),
            conv_weight=taps.to(read.dtype)[own].T.contiguous(),
            conv_bias=read("mamba.conv1d.bias")[own].contiguous() if self.conv_bias else None,
            rate=torch.tensor([each if self.rates else -math.exp(each) for each in rates]),
            step_bias=read.exact("mamba.dt_bias")[begin:end].contiguous(),
            skip=read.exact("mamba.D").view(-1)[begin:end].contiguous(),
            groups=groups,
            steps=(self.least_step, self.most_step),
            inner=inner,
            norm=read("mamba.norm.weight").view(-1) if self.normed else None,
            norm_group=inner // self.groups,
            gate_first=self.gate_first,
            scales=(gate_scale, step_scale, self.output_scale),
            eps=eps,
            group=group,
            bounds=tuple(bound * self.width for bound in bounds),
            output=SplitLinear(
                kernels,
                read.weight("mamba.out_proj.weight"),
                group,
                read("mamba.out_proj.bias") if self.bias else None,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """A layer; a rank has some of the heads. Norms are over heads of all ranks, so each rank has all outputs then.

    Attributes:
        rows: projects to x, B and C.
        gate: projects to the output's gates, all of them.
        gates: projects to the steps.
        conv_weight: weights of the convolution, `[taps, channels]`.
        conv_bias: its bias, `[channels]`.
        rate, step_bias, skip, groups: see `Kernels.state_space`.
        steps: bounds of steps.
        inner: columns of x on all ranks.
        norm: weight of the gated norm, `[inner]`; None for no norm.
        norm_group: columns that are normalised together.
        gate_first: whether the norm's input is gated, instead of its output.
        scales: factors on the output's gates, the steps, and the layer's outputs.
        eps: added to that norm's means.
        group, bounds: the ranks, and whose columns are whose.
        output: projects back.
    """

    rows: ColumnParallelLinear
    gate: ColumnParallelLinear
    gates: ColumnParallelLinear
    conv_weight: Tensor
    conv_bias: Tensor | None
    rate: Tensor
    step_bias: Tensor
    skip: Tensor
    groups: int
    steps: tuple[float, float]
    inner: int
    norm: Tensor | None
    norm_group: int
    gate_first: bool
    scales: tuple[float, float, float]
    eps: float
    group: Group
    bounds: tuple[int, ...]
    output: SplitLinear

    def __call__(self, x: Tensor, context: ForwardContext, cache: StateCache) -> Tensor:
        """Return `[rows, hidden]` for normalised rows `[rows, hidden]`."""
        kernels, buffers, states = context.kernels, context.buffers, context.states
        assert states is not None
        inner, hidden, (gate_scale, step_scale, output_scale) = self.inner, x.shape[1], self.scales
        begin, end = self.group.share(self.bounds)
        own = buffers("own state space", end - begin)
        if self.groups:
            rows = self.rows(x, buffers, "state space rows")
            gates = self.gates(x, buffers, "state space steps")
            if step_scale != 1:
                kernels.scale(gates, step_scale)
            mixed = buffers("convolved", rows.shape[1])
            kernels.causal_conv(
                rows, self.conv_weight, self.conv_bias, True, states, cache.tails, cache.kept_rows, mixed
            )
            rules = self.rate, self.step_bias, self.skip, self.groups, *self.steps
            kernels.state_space(mixed, gates, *rules, states, cache.stored, cache.kept, cache.kept_gates, own)
        whole = own
        if self.group.size > 1:
            whole = buffers("state space", inner)
            self.group.gather(own, whole, self.bounds)
        gate = self.gate(x, buffers, "state space gate")
        if gate_scale != 1:
            kernels.scale(gate, gate_scale)
        if self.norm is not None:
            kernels.gated_norm(whole, gate, self.norm, self.norm_group, self.eps, self.gate_first, whole)
        else:
            kernels.activate(gate, "silu")
            kernels.multiply(whole, gate)
        out = buffers("attention", hidden)
        self.output(whole, out, buffers("own attention", self.output.width) if self.group.size > 1 else None)
        if output_scale != 1:
            kernels.scale(out, output_scale)
        return out
