"""Training of a model's MTP layers: see the proposer of the same name.

They begin as the model's own. Where the model has none, one begins as the last of the model's layers that it is like,
behind a projection that takes the mean of what it reads. Models come with a layer trained one token ahead; here it
learns along its own drafts too, as it is used. Of several, each learns the token that it drafts, from what the layer
before it predicts, and the last one also goes on with its own states.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from parlay.errors import ConfigError
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
    """The layers as they draft, by kernels that have gradients."""

    def __init__(self, options: Options, teacher: Teacher, texts: Sequence[Text]) -> None:
        super().__init__(options, teacher, texts)
        found, self._output = mtp_layers(self.config), teacher.output()
        self._layers = [possible_mtp_layer(self.config, place) for place in range(max(1, len(found)))]
        self.layers = len(self._layers)
        if self._layers[0].names.unnormed:
            teacher.tap((self.config.num_layers,))
        self._tables = layer_tables(self._layers[0].config, teacher.longest)[0]
        first = _stored(found, self._layers) if found else _made(self.config, self._layers[0])
        self._names = tuple(first)
        self.weights = nn.ParameterList(first.values())

    @classmethod
    def check(cls, options: Any, target: ModelConfig) -> None:  # noqa: D102
        super().check(options, target)
        possible_mtp_layer(target)
        count = len(mtp_layers(target))
        if options.rollout < count:
            raise ConfigError(
                f"rollout={options.rollout} leaves MTP layers of {target.path} untrained; give at least {count}, one "
                "for each layer"
            )

    def begin(self, batch: TeacherBatch) -> Tensor:  # noqa: D102
        return batch.tapped[0] if self._layers[0].names.unnormed else batch.hidden

    def draft(self, batch: TeacherBatch) -> Iterator[DraftStep]:  # noqa: D102
        self._tensors = Parameters(dict(zip(self._names, self.weights, strict=True)))
        self._further: list[MTPDraftLayer] = []
        yield from super().draft(batch)
        del self._tensors, self._further  # with their gradients

    def next_states(self, embedded: Tensor, state: Tensor, rollout: Rollout) -> Tensor:  # noqa: D102
        texts, count, width = state.shape
        begins = not rollout.keys
        context = rollout_context(self._layers[0].config, rollout, texts * count)
        if begins:
            layer = self._layers[len(self._further)]
            made = MTPDraftLayer(layer, self._tensors, torch.float32, self._tables, context.kernels)
            self._further.append(made)
        pair = context.buffers("pair", 2 * width).view(2, texts * count, width)
        pair[0] = embedded.reshape(-1, width)
        rows = state.reshape(-1, width).clone()
        self._further[-1](pair, rows, context)
        after = rows.view(texts, count, width)
        return rollout.chosen(after) if begins and len(self._further) == self.layers else after

    def score(self, state: Tensor) -> tuple[Tensor, TargetOutput]:  # noqa: D102
        return state, self._output

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the layers as their model's files have them, without the rest; the config is the model's."""
        config = {key: value for key, value in self.config.raw.items() if key not in _NOT_ITS}
        renamed = {name: known for layer in self._layers for name, known in layer.renamed.items()}
        own = {name: known if isinstance(known, str) else known.alone for name, known in renamed.items()}
        found = zip(self._names, self.weights, strict=True)
        return config, {own.get(name) or name: parameter for name, parameter in found}


def _stored(found: Sequence[MTPLayer], layers: Sequence[MTPLayer]) -> dict[str, Tensor]:
    """Return the tensors of the model's own layers, in float32, by the names of layers that it might have."""
    with found[0].open("plain") as weights:
        for layer in found:
            weights.expect(layer.shapes(), further=("",))
        pairs = zip(found, layers, strict=True)
        named = [pair for own, layer in pairs for pair in zip(layer.shapes(), own.shapes(), strict=True)]
        return {name: weights.read(own, torch.float32) for name, own in named}


def _made(config: ModelConfig, layer: MTPLayer) -> dict[str, Tensor]:
    """Return the tensors that training begins with where the model has no such layer, in float32."""
    names = layer.names
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
