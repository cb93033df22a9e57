"""Kimi delta attention (KDA): a gated delta net in which each channel of a key decays by a gate of its own.

Source: Kimi Team 2025 (arXiv 2510.26692), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from parlay.checkpoints.loader import TensorReader
from parlay.errors import ModelError
from parlay.kernels.base import Kernels
from parlay.kernels.metadata import STATE_PIECE
from parlay.models.config import ModelConfig
from parlay.models.context import ForwardContext, StateCache
from parlay.models.layers import ColumnParallelLinear, GatheredLinear, ReducedLinear, whole_linear
from parlay.models.recurrent import check_kernel_size
from parlay.models.tensor_origins import TensorOrigin
from parlay.parallel.group import ALONE, Group
from parlay.types.cache import RecurrentSpec


@dataclass(frozen=True, slots=True)
class KimiDeltaLayers:
    """Kimi delta attention in the place of some layers' attention; a `RecurrentLayers`.

    Attributes:
        layers: whether each layer is Kimi delta attention.
        kernel_size: the convolutions' taps.
        heads: number of heads, the same for queries, keys and values.
        width: columns per head.
        rates: the files have rates of decay instead of the logarithms of their sizes, and all that is no matrix flat.
    """

    alike_in_mlx: ClassVar[bool] = False

    layers: tuple[bool, ...]
    kernel_size: int
    heads: int
    width: int
    rates: bool = False

    def check(self, config: ModelConfig) -> None:
        """Refuse sizes that are not supported.

        Raises:
            ModelError: it names them.
        """
        if self.width % 16 or self.width > 512:
            raise ModelError(
                f"{config.path}: heads of linear attention of {self.width} columns are not supported; multiples of "
                "16 up to 512 are"
            )
        check_kernel_size(config, self.kernel_size)

    @property
    def _inner(self) -> int:
        return self.heads * self.width

    def shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Return the name and shape of every tensor of a layer."""
        inner, width = self._inner, self.width
        shapes: dict[str, tuple[int, ...]] = {
            **{f"{x}_proj.weight": (inner, hidden) for x in "qkv"},
            **{
                f"{x}_conv1d.weight": (inner * self.kernel_size,) if self.rates else (inner, 1, self.kernel_size)
                for x in "qkv"
            },
            **{f"{x}_a_proj.weight": (width, hidden) for x in "fg"},
            **{f"{x}_b_proj.weight": (inner, width) for x in "fg"},
            "A_log": (self.heads,) if self.rates else (1, 1, self.heads, 1),
            "dt_bias": (inner,),
            "b_proj.weight": (self.heads, hidden),
            "o_norm.weight": (width,),
            "o_proj.weight": (hidden, inner),
        }
        return {f"self_attn.{name}": shape for name, shape in shapes.items()}

    def gguf_layers(self, layout: Mapping[str, Any]) -> KimiDeltaLayers:
        """Return the layers as a GGUF file has them."""
        return replace(self, rates=True)

    def gguf_origins(self, layout: Mapping[str, Any]) -> dict[str, TensorOrigin]:
        """Return what the tensors of a layer are made of in a GGUF file."""
        found = {
            "A_log": TensorOrigin(name="A_log", rates=not self.rates, shape=(1, 1, self.heads, 1)),
            **{
                f"{x}_conv1d.weight": TensorOrigin(
                    name=f"{x}_conv1d.weight", shape=(1, self._inner, 1, self.kernel_size)
                )
                for x in "qkv"
            },
        }
        return {f"self_attn.{name}": origin.within("self_attn.") for name, origin in found.items()}

    def gguf_sizes(self) -> dict[str, int]:
        """Return the sizes of a layer by the keys of GGUF files."""
        return {"ssm.conv_kernel": self.kernel_size, "kda.head_dim": self.width, "attention.head_count": self.heads}

    def gguf_unsupported(self) -> str:
        """Return what of such layers llama.cpp does not read."""
        return ""

    def spec(self, hidden: int, group: Group) -> RecurrentSpec:
        """Return what a layer keeps on one of the ranks: of its heads."""
        begin, end = group.share(group.bounds(self.heads))
        heads, width = end - begin, self.width
        state = heads, -(-width // STATE_PIECE), width, STATE_PIECE
        return RecurrentSpec(3 * heads * width, self.kernel_size, state, heads * (1 + width))

    def products(self, hidden: int) -> list[tuple[str, tuple[int, int]]]:
        """Return the names and shapes of a layer's linear layers."""
        return [
            ("linear attention in", (3 * self._inner + self.heads + 2 * self.width, hidden)),
            ("linear attention gates", (2 * self._inner, self.width)),
            ("linear attention out", (hidden, self._inner)),
        ]

    def make(self, hidden: int, eps: float, read: TensorReader, kernels: Kernels, group: Group) -> KimiDelta:
        """Read a layer."""
        begin, end = group.share(group.bounds(self.heads))
        heads, columns = slice(begin, end), slice(begin * self.width, end * self.width)
        taps = [read(f"self_attn.{x}_conv1d.weight").view(-1, self.kernel_size)[columns] for x in "qkv"]
        rates = read.exact("self_attn.A_log").view(-1).tolist()[heads]

        def project(names: str, unit: int, among: Group = group) -> ColumnParallelLinear:
            weights = [read.weight(f"self_attn.{name}_proj.weight") for name in names.split()]
            return ColumnParallelLinear(kernels, weights, among, None, [unit] * len(weights))

        return KimiDelta(
            rows=project("q k v", self.width),
            gate=(project("g_a", 1, ALONE), project("g_b", self.width)),
            writes=project("b", 1),
            decays=(project("f_a", 1, ALONE), project("f_b", self.width)),
            conv_weight=torch.cat(taps).T.contiguous(),
            rate=torch.tensor([each if self.rates else -math.exp(each) for each in rates]),
            step_bias=read.exact("self_attn.dt_bias")[columns].contiguous(),
            norm=read("self_attn.o_norm.weight"),
            eps=eps,
            output=whole_linear(
                kernels, read.weight("self_attn.o_proj.weight"), group, group.bounds(self._inner, self.width)
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDelta:
    """A layer; a rank has some of the heads.

    Attributes:
        rows: projects to queries, keys and values.
        gate: projects to the output's gates, in two steps of which the first is narrow.
        writes: projects to the gates of writing.
        decays: projects to those of decay, like `gate`.
        conv_weight: weights of the convolution, `[taps, channels]`.
        rate, step_bias: see `Kernels.gated_delta`.
        norm: weight of each head's norm, `[width]`.
        eps: added to that norm's means.
        output: projects back.
    """

    rows: ColumnParallelLinear
    gate: tuple[ColumnParallelLinear, ColumnParallelLinear]
    writes: ColumnParallelLinear
    decays: tuple[ColumnParallelLinear, ColumnParallelLinear]
    conv_weight: Tensor
    rate: Tensor
    step_bias: Tensor
    norm: Tensor
    eps: float
    output: GatheredLinear | ReducedLinear

    def __call__(self, x: Tensor, context: ForwardContext, cache: StateCache) -> Tensor:
        """Return `[rows, hidden]` for normalised rows `[rows, hidden]`."""
        kernels, buffers, states = context.kernels, context.buffers, context.states
        assert states is not None
        heads, width = len(self.rate), len(self.norm)
        values = buffers("linear values", heads * width)
        if heads:
            rows = self.rows(x, buffers, "linear rows")
            first, second = self.decays
            decays = second(first(x, buffers, "narrow"), buffers, "linear decays")
            writes = self.writes(x, buffers, "linear gates")
            mixed = buffers("convolved", rows.shape[1])
            kernels.causal_conv(rows, self.conv_weight, None, True, states, cache.tails, cache.kept_rows, mixed)
            where = states, cache.stored, cache.kept, cache.kept_gates, values
            kernels.gated_delta(mixed, writes, self.rate, self.step_bias, heads, False, *where, decays)
            by_head = values.view(-1, width)
            kernels.rms_norm(by_head, self.norm, self.eps, by_head)
            first, second = self.gate
            gate = second(first(x, buffers, "narrow"), buffers, "linear gate")
            kernels.multiply(values, gate, "sigmoid")
        return self.output(values, buffers, "attention")
