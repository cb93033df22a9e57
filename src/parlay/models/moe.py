"""A mixture of experts: each row goes through the few feed-forward networks that a router chooses for it.

Source: Shazeer et al. 2017 (arXiv 1701.06538); as used in Jiang et al. 2024 (arXiv 2401.04088). The router's scores
are float32 and ties go to the lowest id; a row's experts are summed best first, and each of them multiplies its rows
with `linear`'s bits, however many rows chose it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from parlay.kernels.base import Activation, Kernels
from parlay.models.context import ForwardContext
from parlay.weights.weight import Weight


class MixtureOfExperts:
    """`sum over the chosen e of weight_e * down_e(activation(gate_e(x)) * up_e(x))`."""

    def __init__(
        self,
        kernels: Kernels,
        router: Weight,
        gate_up: Sequence[Weight],
        down: Sequence[Weight],
        chosen: int,
        normalise: bool,
        activation: Activation = "silu",
    ) -> None:
        """Pack the weights.

        Args:
            kernels: the operations to run with.
            router: `[experts, hidden]`.
            gate_up: of each expert, `[2 width, hidden]`, gate, then up.
            down: of each expert, `[hidden, width]`.
            chosen: experts that a row goes to.
            normalise: whether their weights add up to 1.
            activation: of the gate.
        """
        self._router = kernels.pack_head(router)
        self._gate_up = [kernels.pack_linear(w) for w in gate_up]
        self._down = [kernels.pack_linear(w) for w in down]
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
        width = self._down[0].inputs
        gate_up = buffers("gate_up", chosen * 2 * width).view(rows * chosen, 2 * width)
        product = buffers("product", chosen * width).view(rows * chosen, width)
        answers = buffers("answers", chosen * hidden).view(rows, chosen, hidden)
        kernels.expert_linear(x, experts.view(-1), self._gate_up, gate_up)
        kernels.act_mul(gate_up, self._activation, product)
        kernels.expert_linear(product, experts.view(-1), self._down, answers.view(rows * chosen, hidden))
        out = buffers("mlp", hidden)
        kernels.mix_experts(answers, weights, out)
        return out
