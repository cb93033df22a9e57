"""A mixture of experts: each row goes through the few feed-forward networks that a router chooses for it.

Source: Shazeer et al. 2017 (arXiv 1701.06538); as used in Jiang et al. 2024 (arXiv 2401.04088). Shared experts: Dai
et al. 2024 (arXiv 2401.06066). The router's scores are float32 and ties go to the lowest id; a row's experts are
summed best first, the shared one last, and each of them multiplies its rows with `linear`'s bits, however many rows
chose it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parlay.kernels.base import Activation, Kernels
from parlay.models.context import Buffers, ForwardContext
from parlay.models.layers import SplitLinear
from parlay.models.networks import Network
from parlay.models.style import Experts
from parlay.parallel.group import ALONE, Group
from parlay.weights.weight import Weight


@dataclass(frozen=True, slots=True)
class ExpertBiases:
    """Biases of a router, float32 `[experts]`, and of the projections of experts with gates, `[experts, outputs]`."""

    router: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


class MixtureOfExperts:
    """`sum over the chosen e of weight_e * down_e(activation(gate_e(x)) * up_e(x))`, and what all rows go to."""

    def __init__(
        self,
        kernels: Kernels,
        experts: Experts,
        router: Weight,
        gate: Sequence[Weight] | None,
        up: Sequence[Weight],
        down: Sequence[Weight],
        activation: Activation = "silu",
        group: Group = ALONE,
        *,
        selection_bias: Tensor | None = None,
        biases: ExpertBiases | None = None,
        shared: Network | None = None,
        shared_gate: Weight | None = None,
        scales: Tensor | None = None,
        latent: tuple[SplitLinear, SplitLinear] | None = None,
        limit: float = 0.0,
    ) -> None:
        """Pack this rank's share of every expert: a step of few rows would leave ranks with whole ones idle.

        Args:
            kernels: the operations to run with.
            experts: how rows are routed.
            router: `[experts, hidden]`.
            gate, up: weights of each expert, `[width, hidden]`; gate is None where experts are
                `down(activation(up(x)))`.
            down: weights of each expert, `[hidden, width]`.
            activation: the gate's activation.
            group: the ranks.
            selection_bias: float32 `[experts]`, see `Kernels.route`.
            biases: biases of the router and the experts.
            shared: what all rows go to.
            shared_gate: `[1, hidden]`, see `Kernels.mix_experts`.
            scales: float32 `[experts]`, see `Kernels.route`.
            latent: what projects to the experts' inputs, and what projects their sum back; `hidden` above is then the
                width between.
            limit: clamp of experts with gates, see `Kernels.act_mul`.
        """
        hidden, width = down[0].shape
        self._group, self._widths, self._outputs = group, group.output_bounds(width), group.output_bounds(hidden)
        inner, outer = group.share(self._widths), group.share(self._outputs)
        self._inner, self._outer = inner[1] - inner[0], outer[1] - outer[0]
        self._router = kernels.pack_head(router)
        self._parts = 1 if gate is None else 2
        firsts = zip(up, strict=True) if gate is None else zip(gate, up, strict=True)
        self._first = [
            kernels.pack_linear(Weight.stack([w.outputs(*inner) for w in both])) for both in firsts if self._inner
        ]
        self._down = [kernels.pack_linear(w.outputs(*outer)) for w in down if self._outer]
        self._biases: tuple[Tensor, Tensor, Tensor] | None = None
        if biases is not None:
            gate_up = torch.cat([each[:, slice(*inner)] for each in (biases.gate, biases.up)], dim=1)
            self._biases = biases.router, gate_up, biases.down[:, slice(*outer)].contiguous()
        self._experts, self._selection_bias, self._activation = experts, selection_bias, activation
        self._scales, self._limit = scales, limit
        self._shared, self._latent, self._width = shared, latent, hidden
        self._shared_gate = None if shared_gate is None else kernels.pack_head(shared_gate)

    def __call__(self, x: Tensor, context: ForwardContext, routed: Tensor | None = None) -> Tensor:
        """Return `[rows, hidden]` for `x` of `[rows, hidden]`; the router reads `routed`, if it is given."""
        kernels, buffers, chosen = context.kernels, context.buffers, self._experts.top_k
        rows, hidden = x.shape
        experts, weights = self._route(x if routed is None else routed, context)
        inputs = self._read(x, buffers)
        if self._experts.scaled_inputs:
            scaled = buffers("scaled inputs", inputs.shape[1])
            kernels.mix_experts(inputs[:, None], weights, scaled)
            inputs, weights = scaled, torch.ones_like(weights)
        product = self._inside(inputs, experts, context)
        answers = buffers("own answers", chosen * self._outer).view(rows * chosen, self._outer)
        if self._outer:
            kernels.expert_linear(product, experts, self._down, answers)
            if self._biases is not None:
                kernels.add_embedding(answers, self._biases[2], experts)
        answers = self._gather(answers, self._outputs, "answers", buffers).view(rows, chosen, self._width)
        shared = gate = None
        if self._shared is not None:
            shared = self._shared(x, context)
            if self._experts.shared_factor != 1:
                kernels.scale(shared, self._experts.shared_factor)
        if self._shared_gate is not None:
            gate = buffers("shared gate", 1, torch.float32)
            kernels.logits(x, self._shared_gate, gate)
        if self._latent is not None:
            return self._back(answers, weights, shared, context)
        out = buffers("mlp", hidden)
        kernels.mix_experts(answers, weights, out, shared, gate)
        return out

    def _back(self, answers: Tensor, weights: Tensor, shared: Tensor | None, context: ForwardContext) -> Tensor:
        """Return `[rows, hidden]` of experts whose answers are latents, `[rows, chosen, latent]`."""
        assert self._latent is not None
        kernels, buffers, back = context.kernels, context.buffers, self._latent[1]
        mixed, out = buffers("mixed latents", self._width), buffers("experts' sum", back.outputs)
        kernels.mix_experts(answers, weights, mixed, None, None)
        back(mixed, out, buffers("own part of experts' sum", back.width))
        if shared is not None:
            kernels.add_embedding(out, shared, torch.arange(len(out), dtype=torch.int32))
        return out

    def _read(self, x: Tensor, buffers: Buffers) -> Tensor:
        """Return what experts read of rows."""
        if self._latent is None:
            return x
        into, latents = self._latent[0], buffers("experts' latents", self._width)
        into(x, latents, buffers("own part of latents", into.width))
        return latents

    def _route(self, x: Tensor, context: ForwardContext) -> tuple[Tensor, Tensor]:
        """Return the experts that rows go to, `[rows * chosen]`, and their weights, `[rows, chosen]`."""
        kernels, buffers, of = context.kernels, context.buffers, self._experts
        scores = buffers("router", self._router.outputs, torch.float32)
        experts = buffers("experts", of.top_k, torch.int32)
        weights = buffers("weights", of.top_k, torch.float32)
        kernels.logits(x, self._router, scores)
        if self._biases is not None:
            kernels.add_bias(scores, self._biases[0])
        bias, groups = self._selection_bias, (of.groups, of.kept_groups)
        kernels.route(scores, experts, weights, of.normalise, of.sigmoid, bias, *groups, of.factor, self._scales)
        return experts.view(-1), weights

    def _inside(self, x: Tensor, experts: Tensor, context: ForwardContext) -> Tensor:
        """Return what each row's experts have inside, `activation` and the product, `[rows * chosen, width]`."""
        kernels, buffers, own, chosen = context.kernels, context.buffers, self._inner, self._experts.top_k
        product = buffers("own product", chosen * own).view(len(experts), own)
        first = product
        if self._parts == 2:
            first = buffers("expert gate_up", chosen * 2 * own).view(len(experts), 2 * own)
        if own:
            kernels.expert_linear(x, experts, self._first, first)
            if self._biases is not None:
                kernels.add_embedding(first, self._biases[1], experts)
            if self._parts == 2:
                kernels.act_mul(first, self._activation, product, self._limit)
            else:
                kernels.activate(product, self._activation)
        return self._gather(product, self._widths, "expert product", buffers)

    def _gather(self, own: Tensor, bounds: tuple[int, ...], role: str, buffers: Buffers) -> Tensor:
        """Return the columns of all ranks."""
        if self._group.size == 1:
            return own
        out = buffers(role, self._experts.top_k * bounds[-1]).view(len(own), bounds[-1])
        self._group.gather(own, out, bounds)
        return out


@dataclass(frozen=True, slots=True)
class ParallelExperts:
    """Experts that are added to what a layer's feed-forward network gives, all of it normalised.

    Source: Gemma 4 (Gemma team 2026).

    Attributes:
        experts: the mixture, whose router has scales for the experts.
        router_norm: weight of the norm of what the router reads, `[hidden]`.
        before: weight of the norm of what the experts read.
        dense, after: weights of the norms of what the network and the experts give.
        eps: added to the means of all of these norms.
    """

    experts: MixtureOfExperts
    router_norm: Tensor
    before: Tensor
    dense: Tensor
    after: Tensor
    eps: float

    def __call__(self, residual: Tensor, network: Tensor, context: ForwardContext) -> Tensor:
        """Add to what the network gives, `[rows, hidden]`, what the experts give for the residual stream."""
        kernels, buffers, hidden = context.kernels, context.buffers, residual.shape[1]
        dense, routed, x = (buffers(role, hidden) for role in ("dense network", "routed", "before experts"))
        kernels.rms_norm(network, self.dense, self.eps, dense)
        kernels.rms_norm(residual, self.router_norm, self.eps, routed)
        kernels.rms_norm(residual, self.before, self.eps, x)
        out = self.experts(x, context, routed)
        kernels.rms_norm(out, self.after, self.eps, out)
        kernels.add_embedding(out, dense, torch.arange(len(out), dtype=torch.int32))
        return out
