"""The contract of the kernels of mixtures of experts; the rules of `base` hold."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from parlay.kernels.linear import LinearWeight


class ExpertKernels(Protocol):
    """What a device offers for experts: each row chooses a few, and their results are added."""

    def route(
        self,
        scores: Tensor,
        experts: Tensor,
        weights: Tensor,
        normalise: bool,
        sigmoid: bool = False,
        bias: Tensor | None = None,
        groups: int = 1,
        kept_groups: int = 1,
        factor: float = 1.0,
        scales: Tensor | None = None,
    ) -> None:
        """Choose each row's experts: the highest scores, best first, ties to the lowest id.

        An expert's share is its e^score over the sum of all of them, or the sigmoid of its score.

        Source of sigmoids, bias and groups: DeepSeek-AI 2024 (arXiv 2412.19437), section 2.1.2.

        Args:
            scores: float32 `[rows, E]`.
            experts: int32 `[rows, chosen]`, written.
            weights: float32 `[rows, chosen]`, written: the shares of the chosen ones.
            normalise: whether the weights are divided by their sum.
            sigmoid: whether shares are sigmoids instead of a softmax.
            bias: float32 `[E]`, added to shares where experts are chosen, but not in `weights`.
            groups: neighbouring experts form so many groups, each worth the sum of its best two.
            kept_groups: a row chooses among so many of them, which have at least `chosen` experts.
            factor: factor on the weights.
            scales: float32 `[E]`, further factors on the weights of the chosen ones.
        """
        ...

    def expert_linear(self, x: Tensor, experts: Tensor, weights: Sequence[LinearWeight], out: Tensor) -> None:
        """`out[i] = rounded(x[i // copies] weights[experts[i]]^T)` with `linear`'s bits; copies is `n / rows`.

        Args:
            x: T `[rows, K]`.
            experts: int32 `[n]`, each an index of `weights`; n is a multiple of `rows`.
            weights: weights from `pack_linear`, all of one shape and with parts of the same kinds.
            out: T `[n, N]`.
        """
        ...

    def mix_experts(
        self, x: Tensor, weights: Tensor, out: Tensor, shared: Tensor | None = None, gate: Tensor | None = None
    ) -> None:
        """`out[i] = rounded(sum of weights[i, j] * x[i, j] over j + sigmoid(gate[i]) * shared[i])`, in this order.

        Args:
            x: T `[rows, chosen, H]`.
            weights: float32 `[rows, chosen]`.
            out: T `[rows, H]`; it may be `shared`.
            shared: T `[rows, H]`; None is nothing.
            gate: float32 `[rows, 1]`; with None `shared` is added as it is.
        """
        ...
