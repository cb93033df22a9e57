"""Training of an EAGLE head: see the proposer of the same name.

Its authors train it to predict the target's next state, by regression, one step ahead. Here it learns the target's
distributions alone, along its own drafts: its states then hold what its next nodes need.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from parlay.proposers.methods.eagle.format import ARCHITECTURE, JOIN, layer
from parlay.train.data import Text
from parlay.train.eagle_layer import EagleTrainee
from parlay.train.eagle_layer import LayerOptions as Options
from parlay.train.layers import random
from parlay.train.rollout import Rollout
from parlay.train.teacher import TargetOutput, Teacher, TeacherBatch

__all__ = ["Options", "Trainee"]


class Trainee(EagleTrainee):
    """A layer that continues from the target's last state, with the target's output layer."""

    def __init__(self, options: Options, teacher: Teacher, texts: Sequence[Text]) -> None:
        super().__init__(options, teacher, texts)
        width = teacher.config.hidden_size
        self._output = teacher.output()
        self.fc = random(width, 2 * width)
        self.layer = self.make_layer(width)

    def begin(self, batch: TeacherBatch) -> Tensor:  # noqa: D102
        return batch.hidden

    def next_states(self, embedded: Tensor, state: Tensor, rollout: Rollout) -> Tensor:  # noqa: D102
        joined = linear(torch.cat([embedded, state], -1), self.fc)
        after: Tensor = self.layer(joined, joined, rollout)
        return after

    def score(self, state: Tensor) -> tuple[Tensor, TargetOutput]:  # noqa: D102
        return state, self._output

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the head in its authors' layout; the embedding is the target's."""
        config = {"architectures": [ARCHITECTURE], **self.layer_config()}
        return config, {JOIN: self.fc, **self.layer.tensors(layer(0))}
