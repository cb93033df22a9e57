"""Gated short convolution: `out(C * conv(B * x))`, with B, C and x projected from the row.

Source: Liquid AI 2025 (arXiv 2511.23404), section 2.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from parlay.checkpoints.loader import TensorReader
from parlay.kernels.base import Kernels
from parlay.models.context import ForwardContext, StateCache
from parlay.models.layers import ColumnParallelLinear, GatheredLinear, ReducedLinear, whole_linear
from parlay.models.tensor_origins import TensorOrigin
from parlay.parallel.group import Group
from parlay.types.cache import RecurrentSpec


@dataclass(frozen=True, slots=True)
class ShortConvs:
    """Gated short convolutions in the place of some layers' attention; a `RecurrentLayers`.

    Attributes:
        layers: whether each layer is a short convolution.
        kernel_size: rows that an output is made of.
        bias: whether the projections and the convolution have biases.
    """

    alike_in_mlx: ClassVar[bool] = True

    layers: tuple[bool, ...]
    kernel_size: int
    bias: bool = False

    def shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Return the name and shape of every tensor of a layer."""
        shapes: dict[str, tuple[int, ...]] = {
            "conv.in_proj.weight": (3 * hidden, hidden),
            "conv.conv.weight": (hidden, 1, self.kernel_size),
            "conv.out_proj.weight": (hidden, hidden),
        }
        biases = {"conv.in_proj.bias": (3 * hidden,), "conv.conv.bias": (hidden,), "conv.out_proj.bias": (hidden,)}
        return shapes | (biases if self.bias else {})

    def gguf_layers(self, layout: Mapping[str, Any]) -> ShortConvs:
        """Return the layers as a GGUF file has them."""
        return self

    def gguf_origins(self, layout: Mapping[str, Any]) -> dict[str, TensorOrigin]:
        """Return what the tensors of a layer are made of in a GGUF file."""
        name = "conv.conv.weight"
        return {name: TensorOrigin(name=name, shape=(-1, self.kernel_size))}

    def gguf_sizes(self) -> dict[str, int]:
        """Return the sizes of a layer by the keys of GGUF files."""
        return {"shortconv.l_cache": self.kernel_size}

    def gguf_unsupported(self) -> str:
        """Return what of such layers llama.cpp does not read."""
        return "biases of convolutions" if self.bias else ""

    def spec(self, hidden: int, group: Group) -> RecurrentSpec:
        """Return what a layer keeps on one of the ranks: of its channels."""
        begin, end = group.share(group.output_bounds(hidden))
        return RecurrentSpec(end - begin, self.kernel_size)

    def products(self, hidden: int) -> list[tuple[str, tuple[int, int]]]:
        """Return the names and shapes of a layer's linear layers."""
        return [("convolution in", (3 * hidden, hidden)), ("convolution out", (hidden, hidden))]

    def make(self, hidden: int, eps: float, read: TensorReader, kernels: Kernels, group: Group) -> ShortConv:
        """Read a layer, which has no norm."""
        whole = read.weight("conv.in_proj.weight")
        biases = list(read("conv.in_proj.bias").chunk(3)) if self.bias else [None] * 3
        bounds = group.output_bounds(hidden)
        own = slice(*group.share(bounds))
        return ShortConv(
            projections=tuple(
                ColumnParallelLinear(
                    kernels, [whole.outputs(i * hidden, (i + 1) * hidden)], group, None if bias is None else [bias]
                )
                for i, bias in enumerate(biases)
            ),
            conv_weight=read("conv.conv.weight").view(hidden, self.kernel_size)[own].T.contiguous(),
            bias=read("conv.conv.bias")[own].contiguous() if self.bias else None,
            output=whole_linear(
                kernels,
                read.weight("conv.out_proj.weight"),
                group,
                bounds,
                read("conv.out_proj.bias") if self.bias else None,
            ),
        )


@dataclass(frozen=True, slots=True)
class ShortConv:
    """A layer; a rank has some of the channels.

    Attributes:
        projections: the projections to B, C and x.
        conv_weight: weights `[taps, channels]`.
        bias: the convolution's bias, `[channels]`.
        output: projects back.
    """

    projections: tuple[ColumnParallelLinear, ...]
    conv_weight: Tensor
    bias: Tensor | None
    output: GatheredLinear | ReducedLinear

    def __call__(self, x: Tensor, context: ForwardContext, cache: StateCache) -> Tensor:
        """Return `[rows, hidden]` for normalised rows `[rows, hidden]`."""
        kernels, buffers, states = context.kernels, context.buffers, context.states
        assert states is not None
        roles = "before convolution", "behind convolution", "convolution input"
        before, behind, rows = (
            linear(x, buffers, role) for linear, role in zip(self.projections, roles, strict=True)
        )
        mixed = buffers("convolved", self.conv_weight.shape[1])
        if self.conv_weight.shape[1]:
            kernels.multiply(rows, before)
            kernels.causal_conv(rows, self.conv_weight, self.bias, False, states, cache.tails, cache.kept_rows, mixed)
            kernels.multiply(mixed, behind)
        return self.output(mixed, buffers, "attention")
