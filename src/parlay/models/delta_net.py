"""Gated delta net: linear attention whose state forgets by a gate and writes what differs from what it would read.

Source: Yang et al. 2024 (arXiv 2412.06464); the block as in Qwen3-Next and Qwen3.5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from parlay.checkpoints.loader import TensorReader
from parlay.errors import ModelError
from parlay.kernels.base import Kernels
from parlay.kernels.metadata import STATE_PIECE
from parlay.models.config import ModelConfig
from parlay.models.context import Buffers, ForwardContext, StateCache
from parlay.models.layers import ColumnParallelLinear, GatheredLinear, ReducedLinear, SplitLinear, whole_linear
from parlay.models.recurrent import check_kernel_size
from parlay.models.tensor_origins import TensorOrigin
from parlay.parallel.group import ALONE, Group
from parlay.types.cache import RecurrentSpec
from parlay.weights.weight import Weight


@dataclass(frozen=True, slots=True)
class DeltaNets:
    """Gated delta nets in the place of some layers' attention; a `RecurrentLayers`.

    Attributes:
        layers: whether each layer is a gated delta net.
        kernel_size: the convolution's taps.
        key_heads, value_heads: numbers of heads; the latter is a multiple of the former.
        key, value: columns of a head.
        fused: queries, keys, values and output gates are stored as one tensor, one key head after another.
        fused_gates: the gates of writing and of decay are stored as one tensor, one key head after another.
        tiled: head h of the values reads key head `h % key_heads`; otherwise neighbours share one.
        separate: queries, keys and values have a projection and a convolution each.
        write_scale: see `Kernels.gated_delta`.
        eps: added to means in the norms of heads, where it is not what the model's norms add; 0 where it is.
        rates: the files have rates of decay instead of the logarithms of their sizes.
    """

    alike_in_mlx: ClassVar[bool] = True

    layers: tuple[bool, ...]
    kernel_size: int
    key_heads: int
    value_heads: int
    key: int
    value: int
    fused: bool = False
    fused_gates: bool = False
    tiled: bool = False
    separate: bool = False
    write_scale: float = 1.0
    eps: float = 0.0
    rates: bool = False

    def check(self, config: ModelConfig) -> None:
        """Refuse sizes that do not fit together or are not supported.

        Raises:
            ModelError: it names them.
        """
        if self.value_heads % self.key_heads:
            raise ModelError(
                f"{config.path}: {self.value_heads} value heads of linear attention do not divide into "
                f"{self.key_heads} groups"
            )
        if self.value % 16 or self.key % 8 or self.value > 512 or self.key > 512:
            raise ModelError(
                f"{config.path}: heads of linear attention of {self.key} and {self.value} columns are not supported; "
                "values of multiples of 16 and keys of multiples of 8 up to 512 are"
            )
        check_kernel_size(config, self.kernel_size)

    @property
    def _ratio(self) -> int:
        return self.value_heads // self.key_heads

    def shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Return the name and shape of every tensor of a layer."""
        keys, values = self.key_heads * self.key, self.value_heads * self.value
        whole = 2 * keys + values
        apart = {"in_proj_z.weight": (values, hidden)}
        taps = {"conv1d.weight": (whole, 1, self.kernel_size)}
        if self.separate:
            widths = {"q": keys, "k": keys, "v": values}
            apart |= {f"{x}_proj.weight": (width, hidden) for x, width in widths.items()}
            taps = {f"{x}_conv1d.weight": (width, 1, self.kernel_size) for x, width in widths.items()}
        else:
            apart["in_proj_qkv.weight"] = whole, hidden
        gates = {f"in_proj_{name}.weight": (self.value_heads, hidden) for name in "ba"}
        shapes: dict[str, tuple[int, ...]] = {
            **({"in_proj_qkvz.weight": (whole + values, hidden)} if self.fused else apart),
            **({"in_proj_ba.weight": (2 * self.value_heads, hidden)} if self.fused_gates else gates),
            **taps,
            "A_log": (self.value_heads,),
            "dt_bias": (self.value_heads,),
            "norm.weight": (self.value,),
            "out_proj.weight": (hidden, values),
        }
        return {f"linear_attn.{name}": shape for name, shape in shapes.items()}

    def gguf_layers(self, layout: Mapping[str, Any]) -> DeltaNets:
        """Return the layers as a GGUF file has them."""
        return replace(
            self,
            fused=self.fused and not layout.get("linear_rows_apart", False),
            tiled=self.tiled or bool(layout.get("linear_heads_tiled", False)),
            rates=True,
        )

    def gguf_origins(self, layout: Mapping[str, Any]) -> dict[str, TensorOrigin]:
        """Return what the tensors of a layer are made of in a GGUF file."""
        filed, inner = self.gguf_layers(layout), 2 * self.key_heads * self.key
        heads, order = torch.arange(self.value_heads), None
        if filed.tiled and not self.tiled:
            order = heads = heads.view(self.key_heads, -1).T.reshape(-1)
        columns = self._columns(heads)
        values = None if order is None else columns
        mixed = None if order is None else torch.cat((torch.arange(inner), inner + columns))
        found = {
            "in_proj_qkv.weight": TensorOrigin(name="in_proj_qkv.weight", outputs=mixed),
            "in_proj_z.weight": TensorOrigin(name="in_proj_z.weight", outputs=values),
            "conv1d.weight": TensorOrigin(name="conv1d.weight", outputs=mixed, shape=(-1, self.kernel_size)),
            "A_log": TensorOrigin(name="A_log", outputs=order, rates=not self.rates),
            "dt_bias": TensorOrigin(name="dt_bias", outputs=order),
            "out_proj.weight": TensorOrigin(name="out_proj.weight", inputs=values),
            **{f"in_proj_{x}.weight": TensorOrigin(name=f"in_proj_{x}.weight", outputs=order) for x in "ba"},
        }
        if self.fused and not filed.fused:  # into rows of queries, keys and values, and those of gates
            *rows, gates = self._by_head(inner + 2 * self.value_heads * self.value, *self._fused_widths)
            for name, outputs in (("qkv", torch.cat(rows)), ("z", gates)):
                found[f"in_proj_{name}.weight"] = TensorOrigin(name="in_proj_qkvz.weight", outputs=outputs)
        return {f"linear_attn.{name}": origin.within("linear_attn.") for name, origin in found.items()}

    def gguf_sizes(self) -> dict[str, int]:
        """Return the sizes of a layer by the keys of GGUF files."""
        every = self.layers.index(False) + 1 if False in self.layers else 0
        regular = every and all(linear == ((i + 1) % every != 0) for i, linear in enumerate(self.layers))
        return {
            **({"full_attention_interval": every} if regular else {}),
            "ssm.conv_kernel": self.kernel_size,
            "ssm.state_size": self.key,
            "ssm.group_count": self.key_heads,
            "ssm.time_step_rank": self.value_heads,
            "ssm.inner_size": self.value_heads * self.value,
        }

    def gguf_unsupported(self) -> str:
        """Return what of such layers llama.cpp does not read."""
        return "" if self.key == self.value else "linear attention whose values are not as wide as its keys"

    @property
    def _fused_widths(self) -> tuple[int, ...]:
        return self.key, self.key, self._ratio * self.value, self._ratio * self.value

    def _by_head(self, outputs: int, *widths: int) -> list[Tensor]:
        """Return which outputs are of which part, where each key head has so many columns of each."""
        bounds = tuple(accumulate(widths))[:-1]
        parts = torch.arange(outputs).view(self.key_heads, -1).tensor_split(bounds, dim=1)
        return [part.reshape(-1) for part in parts]

    def _heads(self, group: Group) -> tuple[int, int]:
        """Return the first of a rank's key heads and the first of the next rank's."""
        return group.share(group.bounds(self.key_heads))

    def spec(self, hidden: int, group: Group) -> RecurrentSpec:
        """Return what a layer keeps on one of the ranks: of its heads."""
        begin, end = self._heads(group)
        heads = (end - begin) * self._ratio
        channels = (end - begin) * 2 * self.key + heads * self.value
        return RecurrentSpec(
            channels, self.kernel_size, (heads, -(-self.value // STATE_PIECE), self.key, STATE_PIECE), 2 * heads
        )

    def products(self, hidden: int) -> list[tuple[str, tuple[int, int]]]:
        """Return the names and shapes of a layer's linear layers."""
        keys, values = self.key_heads * self.key, self.value_heads * self.value
        return [
            ("linear attention in", (2 * keys + 2 * values + 2 * self.value_heads, hidden)),
            ("linear attention out", (hidden, values)),
        ]

    def make(self, hidden: int, eps: float, read: TensorReader, kernels: Kernels, group: Group) -> DeltaNet:
        """Read a layer."""
        keys, (begin, end) = self.key_heads * self.key, self._heads(group)
        heads = self._value_heads(begin, end)
        own_keys, own_values = torch.arange(begin * self.key, end * self.key), self._columns(heads)
        *mixed, z, b, a = self._projections(read)

        def project(weights: list[Weight], *outputs: Tensor) -> ColumnParallelLinear:
            own = [weight.chosen(each) for weight, each in zip(weights, outputs, strict=True)]
            return ColumnParallelLinear(kernels, weights if group.size == 1 else own, ALONE)

        names = [f"{x}_conv1d" for x in "qkv"] if self.separate else ["conv1d"]
        taps = torch.cat([read(f"linear_attn.{name}.weight").view(-1, self.kernel_size) for name in names])
        q, k, v = taps.tensor_split((keys, 2 * keys))
        rates = read.exact("linear_attn.A_log").tolist()
        return DeltaNet(
            rows=project(mixed, own_keys, own_keys, own_values),
            gate=project([z], own_values),
            gates=project([b, a], heads, heads),
            conv_weight=torch.cat((q[own_keys], k[own_keys], v[own_values])).T.contiguous(),
            rate=torch.tensor([rates[i] if self.rates else -math.exp(rates[i]) for i in heads.tolist()]),
            step_bias=read.exact("linear_attn.dt_bias")[heads].contiguous(),
            groups=end - begin,
            tiled=self.tiled,
            norm=read("linear_attn.norm.weight"),
            eps=self.eps or eps,
            write_scale=self.write_scale,
            output=self._output(read.weight("linear_attn.out_proj.weight"), kernels, group),
        )

    def _value_heads(self, begin: int, end: int) -> Tensor:
        """Return the value heads that read some of the key heads."""
        if not self.tiled:
            return torch.arange(begin * self._ratio, end * self._ratio)
        return (torch.arange(self._ratio)[:, None] * self.key_heads + torch.arange(begin, end)).reshape(-1)

    def _columns(self, heads: Tensor) -> Tensor:
        """Return the columns of value heads."""
        return (heads[:, None] * self.value + torch.arange(self.value)).reshape(-1)

    def _output(
        self, weight: Weight, kernels: Kernels, group: Group
    ) -> GatheredLinear | ReducedLinear | ReorderedLinear:
        """Return what projects back, which reads the heads of all ranks."""
        bounds = group.bounds(self.value_heads * self.value, self._ratio * self.value)
        if group.size == 1 or not self.tiled or self._ratio == 1:
            return whole_linear(kernels, weight, group, bounds)
        shares = pairwise(group.bounds(self.key_heads))
        order = torch.cat([self._value_heads(begin, end) for begin, end in shares])
        linear = SplitLinear(kernels, weight, group)
        return ReorderedLinear(kernels, linear, group, bounds, order.argsort())

    def _projections(self, read: TensorReader) -> list[Weight]:
        """Return what projects to queries, keys, values, output gates, and the gates of writing and of decay."""
        keys, values = self.key_heads * self.key, self.value_heads * self.value

        def by_head(name: str, *widths: int) -> list[Weight]:
            weight = read.weight(f"linear_attn.in_proj_{name}.weight")
            return [weight.chosen(rows) for rows in self._by_head(weight.shape[0], *widths)]

        z = "linear_attn.in_proj_z.weight"
        if self.separate:
            found = [*(read.weight(f"linear_attn.{x}_proj.weight") for x in "qkv"), read.weight(z)]
        elif self.fused:
            found = by_head("qkvz", *self._fused_widths)
        else:
            whole = read.weight("linear_attn.in_proj_qkv.weight")
            bounds = (0, keys), (keys, 2 * keys), (2 * keys, 2 * keys + values)
            found = [*(whole.outputs(*each) for each in bounds), read.weight(z)]
        if self.fused_gates:
            return found + by_head("ba", self._ratio, self._ratio)
        return found + [read.weight(f"linear_attn.in_proj_{name}.weight") for name in "ba"]


@dataclass(frozen=True, slots=True)
class ReorderedLinear:
    """A linear layer that needs the heads of all ranks in another order than the ranks have them.

    Attributes:
        kernels: the operations to run with.
        linear: the linear layer over the reordered heads.
        group, bounds: the ranks, and whose columns are whose.
        order: the ranks' heads in the order that `linear` reads them, int64.
    """

    kernels: Kernels
    linear: SplitLinear
    group: Group
    bounds: tuple[int, ...]
    order: Tensor

    def __call__(self, x: Tensor, buffers: Buffers, role: str) -> Tensor:
        """Return `[rows, hidden]` for this rank's heads `x`, in the buffer of `role`."""
        whole, heads = self.bounds[-1], len(self.order)
        gathered, ordered = (buffers(f"{role}, {which} heads", whole) for which in ("gathered", "ordered"))
        self.group.gather(x, gathered, self.bounds)
        each = (torch.arange(len(x))[:, None] * heads + self.order).reshape(-1)
        self.kernels.embed(gathered.view(len(each), -1), each, ordered.view(len(each), -1))
        out = buffers(role, self.linear.outputs)
        self.linear(ordered, out, buffers(f"{role}, own share", self.linear.width))
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """A layer; a rank has some of the key heads, each with the value heads that read it.

    Attributes:
        rows: projects to queries, keys and values.
        gate: projects to the output's gates.
        gates: projects to the gates of writing and of decay.
        conv_weight: weights of the convolution, `[taps, channels]`.
        rate, step_bias: see `Kernels.gated_delta`.
        groups: key heads.
        tiled: order of the key heads, see `Kernels.gated_delta`.
        norm: weight of each head's norm, `[value]`.
        eps: added to that norm's means.
        write_scale: see `Kernels.gated_delta`.
        output: projects back.
    """

    rows: ColumnParallelLinear
    gate: ColumnParallelLinear
    gates: ColumnParallelLinear
    conv_weight: Tensor
    rate: Tensor
    step_bias: Tensor
    groups: int
    tiled: bool
    norm: Tensor
    eps: float
    write_scale: float
    output: GatheredLinear | ReducedLinear | ReorderedLinear

    def __call__(self, x: Tensor, context: ForwardContext, cache: StateCache) -> Tensor:
        """Return `[rows, hidden]` for normalised rows `[rows, hidden]`."""
        kernels, buffers, states = context.kernels, context.buffers, context.states
        assert states is not None
        values = buffers("linear values", len(self.rate) * len(self.norm))
        if self.groups:
            rows = self.rows(x, buffers, "linear rows")
            gate = self.gate(x, buffers, "linear gate")
            gates = self.gates(x, buffers, "linear gates")
            mixed = buffers("convolved", rows.shape[1])
            kernels.causal_conv(rows, self.conv_weight, None, True, states, cache.tails, cache.kept_rows, mixed)
            rules = self.rate, self.step_bias, self.groups, self.tiled
            stored, kept, scale = cache.stored, (cache.kept, cache.kept_gates), self.write_scale
            kernels.gated_delta(mixed, gates, *rules, states, stored, *kept, values, write_scale=scale)
            kernels.gated_norm(values, gate, self.norm, len(self.norm), self.eps, False, values)
        return self.output(values, buffers, "attention")
