"""A mixture of experts: each row goes through the few feed-forward networks that a router chooses for it.

Source: Shazeer et al. 2017 (arXiv 1701.06538); as used in Jiang et al. 2024 (arXiv 2401.04088). The router's scores
are float32 and ties go to the lowest id; a row's experts are summed best first, and each of them multiplies its rows
with `linear`'s bits, however many rows chose it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from parlay.kernels.base import Activation, Kernels
from parlay.models.context import Buffers, ForwardContext
from parlay.parallel.group import ALONE, Group
from parlay.weights.weight import Weight


class MixtureOfExperts:
    """`sum over the chosen e of weight_e * down_e(activation(gate_e(x)) * up_e(x))`."""

    def __init__(
        self,
        kernels: Kernels,
        router: Weight,
        gate: Sequence[Weight],
        up: Sequence[Weight],
        down: Sequence[Weight],
        chosen: int,
        normalise: bool,
        activation: Activation = "silu",
        group: Group = ALONE,
    ) -> None:
        """Pack this rank's share of every expert: a step of few rows would leave ranks with whole ones idle.

        Args:
            kernels: the operations to run with.
            router: `[experts, hidden]`.
            gate, up: of each expert, `[width, hidden]`.
            down: of each expert, `[hidden, width]`.
            chosen: experts that a row goes to.
            normalise: whether their weights add up to 1.
            activation: of the gate.
            group: the ranks.
        """
        hidden, width = down[0].shape
        self._group, self._widths, self._outputs = group, group.output_bounds(width), group.output_bounds(hidden)
        inner, outer = group.share(self._widths), group.share(self._outputs)
        self._inner, self._outer = inner[1] - inner[0], outer[1] - outer[0]
        self._router = kernels.pack_head(router)
        self._gate_up = [
            kernels.pack_linear(Weight.stack([w.outputs(*inner) for w in pair]))
            for pair in zip(gate, up, strict=True)
            if self._inner
        ]
        self._down = [kernels.pack_linear(w.outputs(*outer)) for w in down if self._outer]
        self._chosen = chosen
        self._normalise = normalise
        self._activation = activation

    def __call__(self, x: Tensor, context: ForwardContext) -> Tensor:
        """Return `[rows, hidden]` for `x` of `[rows, hidden]`."""
        kernels, buffers, chosen = context.kernels, context.buffers, self._chosen
        rows, hidden = x.shape
        scores = buffers("router", self._router.outputs, torch.float32)
        experts = buffers("experts", chosen, torch.int32)
        weights = buffers("weights", chosen, torch.float32)
        kernels.logits(x, self._router, scores)
        kernels.route(scores, experts, weights, self._normalise)
        product = self._inside(x, experts.view(-1), context)
        answers = buffers("own answers", chosen * self._outer).view(rows * chosen, self._outer)
        if self._outer:
            kernels.expert_linear(product, experts.view(-1), self._down, answers)
        answers = self._whole(answers, self._outputs, "answers", buffers)
        out = buffers("mlp", hidden)
        kernels.mix_experts(answers.view(rows, chosen, hidden), weights, out)
        return out

    def _inside(self, x: Tensor, experts: Tensor, context: ForwardContext) -> Tensor:
        """Return `activation(gate(x)) * up(x)` of each row's experts, `[rows * chosen, width]`."""
        kernels, buffers, own, chosen = context.kernels, context.buffers, self._inner, self._chosen
        gate_up = buffers("gate_up", chosen * 2 * own).view(len(experts), 2 * own)
        product = buffers("own product", chosen * own).view(len(experts), own)
        if own:
            kernels.expert_linear(x, experts, self._gate_up, gate_up)
            kernels.act_mul(gate_up, self._activation, product)
        return self._whole(product, self._widths, "product", buffers)

    def _whole(self, own: Tensor, bounds: tuple[int, ...], role: str, buffers: Buffers) -> Tensor:
        """Return the columns of all ranks."""
        if self._group.size == 1:
            return own
        out = buffers(role, self._chosen * bounds[-1]).view(len(own), bounds[-1])
        self._group.gather(own, out, bounds)
        return out
