"""The interface of a trainable head.

The folder of a proposer that can be trained has a file `training.py`, with
    Options     a frozen dataclass of the method's training options besides `TrainOptions`;
    Trainee     a subclass of `Trainee`: the head in torch, with gradients. Its tests compare it with the proposer.

It learns the target's distribution, not only the token that follows in the text: where the target wrote the text that
is the same in the mean, with less noise, and where somebody else did, the head still learns what the target would
have written, which is all that counts when drafts are verified.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from parlay.models.config import ModelConfig
from parlay.registry import Registry
from parlay.train.data import Text
from parlay.train.teacher import TargetOutput, Teacher, TeacherBatch

_LOSS_LOGITS = 1 << 21  # at a time on the CPU, whose caches they are to fit
_WIDE = 32  # times as many on an accelerator, which small products leave idle

methods = Registry(
    "parlay.proposers.methods", "method to train", "training", needs=("Options", "Trainee"), files=False
)


@dataclass(frozen=True, slots=True, eq=False)
class DraftStep:
    """One node of many rows, up to the output layer.

    Attributes:
        states: `[n, D]`, and columns for what the output layer has further.
        output: the layer that gives logits of them.
        labels: `[n]`, for each the row of the batch whose distribution is the right answer.
    """

    states: Tensor
    output: TargetOutput
    labels: Tensor


class Trainee(nn.Module, ABC):
    """A head with gradients.

    Attributes:
        file: name of its weights in the public format.
        tokenized: whether it is a model by itself, which has the target's tokenizer beside it.
        depth: number of tokens that it drafts in a row.
        decay: weight of a node, relative to the one before it.
    """

    decay: float = 1.0
    file: ClassVar[str] = "model.safetensors"
    tokenized: ClassVar[bool] = False
    depth: int

    @abstractmethod
    def __init__(self, options: Any, teacher: Teacher, texts: Sequence[Text]) -> None:
        """Make the first weights, from torch's global generator.

        Args:
            options: the method's own options.
            teacher: the target; a trainee may have it add to its batches.
            texts: texts of training, and nothing that is held out.

        Raises:
            ConfigError: options that are out of range.
            ModelError: this method has no head for such a target.
        """
        super().__init__()
        self.check(options, teacher.config)

    @classmethod
    def check(cls, options: Any, target: ModelConfig) -> None:
        """Refuse what the target's config alone shows to be wrong, before weights are read.

        Args:
            options: the method's own options.
            target: the shape of the target.

        Raises:
            ConfigError: options that are out of range.
            ModelError: this method has no head for such a target.
        """

    @abstractmethod
    def draft(self, batch: TeacherBatch) -> Iterator[DraftStep]:
        """Yield every node in turn, for all rows of a batch that have a label for it."""

    def extra_files(self) -> dict[str, dict[str, Any]]:
        """Return further files of the public format: their tensors and numbers, by file name."""
        return {}

    @abstractmethod
    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return config and tensors in the public format."""


def distil(step: DraftStep, batch: TeacherBatch) -> tuple[Tensor, Tensor]:
    """Return the summed cross entropy against the target's distributions, and how often both find the same best.

    Logits exist only for a few rows at a time, for any vocabulary. The best are compared only where no gradient is
    needed.

    Args:
        step: one node, of n rows.
        batch: has the target's distributions, of the tokens of the node's output layer.
    """
    device = step.states.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
    learn = torch.is_grad_enabled()
    output = step.output
    loss, right = _Distil.apply(  # type: ignore[no-untyped-call]
        step.states, output, output.weight, output.further, batch, step.labels, dtype, learn
    )
    return loss, right


class _Distil(torch.autograd.Function):
    """Output layer and loss in one, with the gradient computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        output: TargetOutput,
        weight: Tensor,
        further: Tensor | None,
        batch: TeacherBatch,
        labels: Tensor,
        dtype: torch.dtype,
        learn: bool,
    ) -> tuple[Tensor, Tensor]:
        layers = [weight] if further is None else [weight, further]
        cast, cap, ids = torch.cat(layers, 1).to(dtype), output.cap, output.ids
        loss, right = torch.zeros((), device=states.device), torch.zeros((), device=states.device)
        widths = [layer.shape[1] for layer in layers]
        state_slope = torch.empty_like(states) if learn else None
        slopes = [torch.zeros_like(layer) if learn and layer.requires_grad else None for layer in layers]
        size = max(16, _LOSS_LOGITS * (1 if states.device.type == "cpu" else _WIDE) // len(weight))
        for first in range(0, len(states), size):
            rows = slice(first, first + size)
            own, answer = states[rows].to(dtype), batch.target_probs[labels[rows]]
            logits = (own @ cast.T).float()
            bent = cap * torch.tanh(logits / cap) if cap else logits
            log_probs = bent.log_softmax(-1)
            loss -= (answer * log_probs).sum()
            if state_slope is None:
                best = bent.argmax(-1)
                right += ((best if ids is None else ids[best]) == batch.best[labels[rows]]).sum()
                continue
            slope = log_probs.exp()
            if ids is not None:
                # Tokens that the output layer lacks cannot be learnt: their share of the target's is left out.
                slope *= answer.sum(-1, keepdim=True)
            slope -= answer
            if cap:
                slope *= 1 - (bent / cap) ** 2
            slope = slope.to(dtype)
            state_slope[rows] = (slope @ cast).to(states.dtype)
            for part, layer_slope in zip(torch.split(own, widths, 1), slopes, strict=True):
                if layer_slope is not None:
                    layer_slope += slope.T @ part
        ctx.save_for_backward(state_slope, *slopes, *[None] * (2 - len(slopes)))
        ctx.mark_non_differentiable(right)
        return loss, right

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        state_slope, *layer_slopes = ctx.saved_tensors
        own = [None if slope is None else slope * slopes[0] for slope in layer_slopes]
        return state_slope * slopes[0], None, *own, *(None,) * 4
