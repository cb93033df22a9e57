"""Training of a model's MTP layer: see the proposer of the same name.

It begins as the model's own. Where the model has none it begins as the last of the model's layers that it is like,
behind a projection that takes the mean of what it reads. Models come with it trained one token ahead; here it learns
along its own drafts too, as it is used. Of several layers it is the first.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from parlay.models.config import ModelConfig
from parlay.models.mtp import MTPLayer
from parlay.models.rotary import layer_tables
from parlay.models.select import mtp_layers, possible_mtp_layer
from parlay.models.stored import open_weights
from parlay.proposers.methods.mtp.layer import MTPDraftLayer
from parlay.train.data import Text
from parlay.train.differentiable import Parameters, rollout_context
from parlay.train.layers import random
from parlay.train.rollout import Rollout, RolloutTrainee
from parlay.train.rollout import RolloutOptions as Options
from parlay.train.teacher import TargetOutput, Teacher, TeacherBatch
from parlay.train.trainee import DraftStep

__all__ = ["Options", "Trainee"]

_NOT_ITS = ("quantization", "quantization_config", "compression_config", "dtype")  # keys of the model's config


class Trainee(RolloutTrainee):
    """The layer as it drafts, by kernels that have gradients."""

    def __init__(self, options: Options, teacher: Teacher, texts: Sequence[Text]) -> None:
        super().__init__(options, teacher, texts)
        self._layer, self._output = possible_mtp_layer(self.config), teacher.output()
        if self._layer.names.unnormed:
            teacher.tap((self.config.num_layers,))
        self._tables = layer_tables(self._layer.config, teacher.longest)[0]
        first = _first_weights(self.config, self._layer)
        self._names = tuple(first)
        self.weights = nn.ParameterList(first.values())

    @classmethod
    def check(cls, options: Any, target: ModelConfig) -> None:  # noqa: D102
        super().check(options, target)
        possible_mtp_layer(target)

    def begin(self, batch: TeacherBatch) -> Tensor:  # noqa: D102
        return batch.tapped[0] if self._layer.names.unnormed else batch.hidden

    def draft(self, batch: TeacherBatch) -> Iterator[DraftStep]:  # noqa: D102
        yield from super().draft(batch)
        self._further: MTPDraftLayer | None = None  # and its gradients

    def next_states(self, embedded: Tensor, state: Tensor, rollout: Rollout) -> Tensor:  # noqa: D102
        texts, count, width = state.shape
        begins = not rollout.keys
        context = rollout_context(self._layer.config, rollout, texts * count)
        if begins:
            parameters = Parameters(dict(zip(self._names, self.weights, strict=True)))
            further = MTPDraftLayer(self._layer, parameters, torch.float32, self._tables, context.kernels)
            self._further = further
        assert self._further is not None
        pair = context.buffers("pair", 2 * width).view(2, texts * count, width)
        pair[0] = embedded.reshape(-1, width)
        rows = state.reshape(-1, width).clone()
        self._further(pair, rows, context)
        after = rows.view(texts, count, width)
        return rollout.chosen(after) if begins else after

    def score(self, state: Tensor) -> tuple[Tensor, TargetOutput]:  # noqa: D102
        return state, self._output

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the layer as its model's files have it, without the rest; the config is the model's."""
        config = {key: value for key, value in self.config.raw.items() if key not in _NOT_ITS}
        renamed = self._layer.renamed
        own = {name: known if isinstance(known, str) else known.alone for name, known in renamed.items()}
        found = zip(self._names, self.weights, strict=True)
        return config, {own.get(name) or name: parameter for name, parameter in found}


def _first_weights(config: ModelConfig, layer: MTPLayer) -> dict[str, Tensor]:
    """Return the tensors that training begins with, in float32, by the names of a layer that may not be there."""
    found, names = mtp_layers(config), layer.names
    if found:
        with found[0].open("plain") as weights:
            shapes = found[0].shapes()
            weights.expect(shapes, further=("",))
            own = zip(layer.shapes(), shapes, strict=True)
            return {name: weights.read(stored, torch.float32) for name, stored in own}
    tensors: dict[str, Tensor] = {}
    with open_weights(config, storage="plain") as weights:
        known = set(weights.names)
        for name, shape in layer.shapes().items():
            alike = f"model.layers.{layer.like}.{name.removeprefix(names.layer)}"
            if name == names.join:
                tensors[name] = torch.eye(config.hidden_size).repeat(1, 2) / 2
            elif name == names.norm or (name.startswith(names.layer) and alike in known):
                stored = "model.norm.weight" if name == names.norm else alike
                tensors[name] = weights.read(stored, torch.float32)
            elif len(shape) > 1:
                tensors[name] = random(shape[0], shape[1]).detach()
            else:
                tensors[name] = torch.zeros(shape) if config.style.plus_one else torch.ones(shape)
    return tensors
