"""Layers that families share.

Where values are rounded to the model's dtype (nowhere else; every kernel keeps to this list):
    the residual stream after each addition; a norm's output, before and after its weight (after it alone where the
    weight is stored less one); the outputs of linear layers, before and after their bias; products with a family's
    multipliers; queries and keys after rotation; cached keys and values; attention's output; an activation's output
    and its product with `up`; the weighted sum of experts. Attention's scores and probabilities, a router's scores
    and weights, and logits stay float32.
"""

from collections.abc import Sequence
from copy import copy
from math import frexp

import torch
from torch import Tensor

from parlay.errors import ConfigError
from parlay.kernels.base import Kernels
from parlay.kernels.linear import LinearWeight
from parlay.models.context import Buffers
from parlay.parallel.group import ALONE, Group
from parlay.weights.weight import Weight


class Linear:
    """`y = x W^T + b`, the weight `[out, in]` packed once for the kernels. Row-invariant by the kernels' contract."""

    def __init__(self, kernels: Kernels, weight: Weight, bias: Tensor | None = None) -> None:
        self._kernels = kernels
        self._weight = kernels.pack_linear(weight)
        self._bias = bias

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Write `[rows, out]` for `x` of `[rows, in]`."""
        self._kernels.linear(x, self._weight, out)
        if self._bias is not None:
            self._kernels.add_bias(out, self._bias)


class SplitLinear:
    """A linear layer whose whole input every rank has, and whose outputs all ranks need.

    Each rank computes its share of the outputs, with the bits of one rank.

    Attributes:
        outputs: outputs of all ranks.
        width: outputs of this rank.
    """

    def __init__(self, kernels: Kernels, weight: Weight, group: Group, bias: Tensor | None = None) -> None:
        """Create this rank's share of a weight `[out, in]` and of its bias `[out]`."""
        self._group, self.outputs, self._bounds = group, weight.shape[0], group.output_bounds(weight.shape[0])
        begin, end = group.share(self._bounds)
        self.width = end - begin
        self._linear: Linear | None = None
        if self.width:
            self._linear = Linear(kernels, weight.outputs(begin, end), None if bias is None else bias[begin:end])

    def __call__(self, x: Tensor, out: Tensor, own: Tensor | None = None) -> None:
        """Write `[rows, out]` for `x` of `[rows, in]`.

        Args:
            x: the whole input.
            out: the whole output.
            own: memory for this rank's share of it, `[rows, width]`; None makes some, if there are other ranks.

        Raises:
            RankError: another rank is lost.
        """
        if self._group.size == 1:
            own = out
        elif own is None:
            own = torch.empty((len(x), self.width), dtype=out.dtype)
        if self._linear is not None:
            self._linear(x, own)
        if own is not out:
            self._group.gather(own, out, self._bounds)


class ColumnParallelLinear:
    """A linear layer of which each rank computes, and keeps, its own share of the outputs."""

    def __init__(
        self,
        kernels: Kernels,
        weights: list[Weight],
        group: Group,
        biases: list[Tensor] | None = None,
        units: Sequence[int] | None = None,
    ) -> None:
        """Fuse several weights `[out_i, in]` that read the same input, each split among the ranks on its own.

        Args:
            kernels: the operations to run with.
            weights: weights in the order of the outputs.
            group: the ranks.
            biases: each weight's bias `[out_i]`.
            units: how many neighbouring outputs of each weight stay together, such as a head's; None for any.
        """
        sizes = [w.shape[0] for w in weights]
        bounds = [
            group.output_bounds(size) if units is None else group.bounds(size, units[i])
            for i, size in enumerate(sizes)
        ]
        shares = [group.share(each) for each in bounds]
        self._width = sum(end - begin for begin, end in shares)
        self._linear: Linear | None = None
        if self._width:
            kept = [w.outputs(*share) for w, share in zip(weights, shares, strict=True)]
            bias = torch.cat([b[slice(*share)] for b, share in zip(biases, shares, strict=True)]) if biases else None
            self._linear = Linear(kernels, Weight.stack(kept), bias)

    def __call__(self, x: Tensor, buffers: Buffers, role: str) -> Tensor:
        """Return this rank's share `[rows, own]` for `x` of `[rows, in]`, in the buffer of `role`."""
        out = buffers(role, self._width)
        if self._linear is not None:
            self._linear(x, out)
        return out


class GatheredLinear:
    """A linear layer that needs the shares of all ranks, and whose outputs all ranks need.

    Each rank computes its share of the outputs over the whole input, so the bits are those of one rank.
    """

    def __init__(
        self, kernels: Kernels, weight: Weight, group: Group, inputs: tuple[int, ...], bias: Tensor | None = None
    ) -> None:
        """Create this rank's share of a weight.

        Args:
            kernels: the operations to run with.
            weight: `[out, in]`.
            group: the ranks.
            inputs: the bounds of each rank's share of the input.
            bias: `[out]`.
        """
        self._group, self._inputs, self._outputs = group, inputs, weight.shape[0]
        self._linear = SplitLinear(kernels, weight, group, bias)

    def __call__(self, x: Tensor, buffers: Buffers, role: str) -> Tensor:
        """Return `[rows, out]` for this rank's share `x` of the input."""
        out, own = buffers(role, self._outputs), None
        if self._group.size > 1:
            whole = buffers(f"{role}, whole input", self._inputs[-1])
            own = buffers(f"{role}, own share", self._linear.width)
            self._group.gather(x, whole, self._inputs)
            x = whole
        self._linear(x, out, own)
        return out


class ReducedLinear:
    """A linear layer of which each rank has its share of the inputs; the ranks' sums are added (Shoeybi et al. 2019).

    Sums travel as float32 and are added in the order of the ranks, so that all ranks go on with the same numbers,
    which do not depend on other rows; but they are not those of one rank.
    """

    def __init__(
        self, kernels: Kernels, weight: Weight, group: Group, inputs: tuple[int, ...], bias: Tensor | None = None
    ) -> None:
        """Create this rank's share of a weight `[out, in]`; see `GatheredLinear`.

        Raises:
            ConfigError: a share would begin within a block of a quantised weight.
        """
        self._kernels, self._group, self._bias, self._outputs = kernels, group, bias, weight.shape[0]
        self._bounds = tuple(rank * self._outputs for rank in range(group.size + 1))
        begin, end = group.share(inputs)
        self._weight: LinearWeight | None = None
        if end > begin:
            try:
                self._weight = kernels.pack_head(weight.inputs(begin, end))
            except ValueError as error:
                raise ConfigError(
                    f"tensor_parallel_mode='fast' cannot split this model among {group.size} ranks: {error}; leave "
                    "it at 'exact'"
                ) from None

    def __call__(self, x: Tensor, buffers: Buffers, role: str) -> Tensor:
        """Return `[rows, out]` for this rank's share `x` of the input."""
        rows, outputs = x.shape[0], self._outputs
        own = torch.zeros((rows, outputs))
        if self._weight is not None:
            self._kernels.logits(x, self._weight, own)
        sums = torch.empty((rows, self._bounds[-1]))
        self._group.gather(own, sums, self._bounds)
        whole = sums[:, :outputs].clone()
        for begin in self._bounds[1:-1]:
            whole += sums[:, begin : begin + outputs]
        out = buffers(role, outputs)
        out.copy_(whole)
        if self._bias is not None:
            self._kernels.add_bias(out, self._bias)
        return out


def whole_linear(
    kernels: Kernels, weight: Weight, group: Group, inputs: tuple[int, ...], bias: Tensor | None = None
) -> GatheredLinear | ReducedLinear:
    """Return a linear layer that needs the shares of all ranks, and whose outputs all ranks need."""
    if group.fast:
        return ReducedLinear(kernels, weight, group, inputs, bias)
    return GatheredLinear(kernels, weight, group, inputs, bias)


class Embedding:
    """A row of numbers for each token; blocks and float16 are read as they lie packed, which a tied head shares.

    Each rank keeps its own columns of all rows.
    """

    def __init__(self, kernels: Kernels, weight: Weight, group: Group = ALONE) -> None:
        """Create this rank's share of a weight `[vocab, hidden]`."""
        self._kernels, self._group = kernels, group
        self._shape = weight.shape
        self._columns = group.bounds(weight.shape[1], weight.block)
        own = weight if group.size == 1 else weight.inputs(*group.share(self._columns))
        self._own = own.shape[1]
        self._stored: Tensor | LinearWeight = torch.empty((weight.shape[0], 0))
        if self._own:
            self._stored = kernels.pack_head(own) if weight.compact else kernels.to_device(own.numbers())

    def __call__(self, tokens: Tensor, out: Tensor) -> None:
        """Write the rows of `tokens` `[rows]` to `out` `[rows, hidden]`."""
        if self._group.size == 1:
            self._look_up(tokens, out)
            return
        own = torch.empty((len(tokens), self._own), dtype=out.dtype)
        if self._own:
            self._look_up(tokens, own)
        self._group.gather(own, out, self._columns)

    def _look_up(self, tokens: Tensor, out: Tensor) -> None:
        if isinstance(self._stored, Tensor):
            self._kernels.embed(self._stored, tokens, out)
        else:
            self._kernels.embed_packed(self._stored, tokens, out)

    def numbers(self, dtype: torch.dtype) -> Tensor:
        """Return the whole of it as plain numbers, on every rank."""
        if self._group.size == 1 and isinstance(self._stored, Tensor):
            return self._stored.to(dtype)
        out = torch.empty(self._shape, dtype=dtype)
        self(torch.arange(self._shape[0]), out)
        return out

    def head(self) -> LinearWeight:
        """Return the weight as `logits` reads it; of a group of one."""
        return self._kernels.pack_head(self._stored) if isinstance(self._stored, Tensor) else self._stored


class OutputLayer:
    """The language model head: float32 logits for any dtype of the model.

    Logits in bfloat16 would tie exactly at the top too often for a total order to be worth anything. Each rank keeps
    its own part of the vocabulary.
    """

    def __init__(
        self,
        kernels: Kernels,
        weight: Weight | Embedding,
        divisor: float = 1.0,
        cap: float = 0.0,
        group: Group = ALONE,
    ) -> None:
        """Pack a weight `[vocab, hidden]`, or take the embedding's, to which the head is tied.

        Logits are divided by `divisor`, then soft-capped unless `cap` is 0. Only a group of one takes an embedding.
        """
        self._kernels, self._group = kernels, group
        self._bounds: tuple[int, ...] = ()
        self._weight: LinearWeight | None = None
        if isinstance(weight, Embedding):
            self._weight = weight.head()
            self._vocab_size = self._weight.outputs
        else:
            self._vocab_size = weight.shape[0]
            self._bounds = group.output_bounds(self._vocab_size)
            begin, end = group.share(self._bounds)
            if end > begin:
                self._weight = kernels.pack_head(weight if group.size == 1 else weight.outputs(begin, end))
        self._divisor = divisor
        self._cap = cap

    def __call__(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Return `[rows, vocab]` float32 for normalised hidden states `[rows, hidden]`; in `out`, if it is given."""
        if out is None:
            out = torch.empty((hidden.shape[0], self._vocab_size), dtype=torch.float32)
        self._multiply(hidden, out)
        if not is_power_of_two(self._divisor):
            out.div_(self._divisor)
        elif self._divisor != 1:
            self._kernels.scale(out, 1 / self._divisor)
        if self._cap > 0:
            self._kernels.soft_cap(out, self._cap)
        return out

    def rescaled(self, divisor: float, cap: float) -> "OutputLayer":
        """Return the same layer with another divisor and cap."""
        other = copy(self)
        other._divisor, other._cap = divisor, cap
        return other

    def _multiply(self, hidden: Tensor, out: Tensor) -> None:
        group, weight = self._group, self._weight
        if group.size == 1:
            assert weight is not None
            self._kernels.logits(hidden, weight, out)
            return
        own = torch.empty((hidden.shape[0], weight.outputs if weight else 0), dtype=torch.float32)
        if weight:
            self._kernels.logits(hidden, weight, own)
        group.gather(own, out, self._bounds)


def is_power_of_two(number: float) -> bool:
    """Whether a number is one: then multiplying by its reciprocal gives the same bits as dividing by it."""
    return frexp(number)[0] == 0.5
