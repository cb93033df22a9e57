"""Training of an EAGLE-3 head: see the proposer of the same name."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from parlay.errors import ConfigError
from parlay.models.config import ModelConfig
from parlay.proposers.methods.eagle3 import format as form
from parlay.train.data import Text, commonest
from parlay.train.eagle_layer import EagleTrainee, LayerOptions
from parlay.train.layers import norm, random
from parlay.train.rollout import Rollout
from parlay.train.teacher import TargetOutput, Teacher, TeacherBatch


@dataclass(frozen=True, slots=True)
class Options(LayerOptions):
    """Training options of an EAGLE-3 head.

    Attributes:
        draft_vocab_size: size of the head's vocabulary, the commonest tokens of the training text; 0 is all.
        layers: after how many of the target's layers the head reads its states, three numbers; none takes what its
            authors do, or the last three of a target with fewer than 7.
    """

    draft_vocab_size: int = 0
    layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        LayerOptions.__post_init__(self)
        if self.draft_vocab_size < 0:
            raise ConfigError(f"draft_vocab_size must be at least 0, not {self.draft_vocab_size}")
        if self.layers and (len(self.layers) != 3 or sorted(set(self.layers)) != list(self.layers)):
            raise ConfigError(f"layers must be three numbers, each above the one before, not {list(self.layers)}")


class Trainee(EagleTrainee):
    """A layer that reads three of the target's states, with its own output layer."""

    def __init__(self, options: Options, teacher: Teacher, texts: Sequence[Text]) -> None:
        super().__init__(options, teacher, texts)
        width, vocab, depth = teacher.config.hidden_size, teacher.config.vocab_size, teacher.config.num_layers
        self.taps = options.layers or _usual(depth)
        teacher.tap(self.taps)
        self._ids = commonest(texts, vocab, options.draft_vocab_size) if options.draft_vocab_size else None
        if self._ids is not None:
            teacher.restrict_vocabulary(self._ids)
        self.fc = random(width, 3 * width)
        self.hidden_norm, self.input_norm, self.norm = (nn.Parameter(torch.ones(width)) for _ in range(3))
        self.layer = self.make_layer(2 * width)
        first = teacher.output().weight.float().cpu()
        self.head = nn.Parameter((first if self._ids is None else first[self._ids]).clone())

    @classmethod
    def check(cls, options: Options, target: ModelConfig) -> None:  # noqa: D102
        super().check(options, target)
        if options.draft_vocab_size > target.vocab_size:
            raise ConfigError(
                f"draft_vocab_size={options.draft_vocab_size} is beyond the target's {target.vocab_size} tokens; "
                "lower it"
            )
        layers = options.layers or _usual(target.num_layers)
        if not 0 <= layers[0] <= layers[-1] <= target.num_layers:
            raise ConfigError(f"layers={list(layers)}, but the target has {target.num_layers} layers; give others")

    def begin(self, batch: TeacherBatch) -> Tensor:  # noqa: D102
        return linear(torch.cat(batch.tapped, -1), self.fc)

    def next_states(self, embedded: Tensor, state: Tensor, rollout: Rollout) -> Tensor:  # noqa: D102
        pair = torch.cat([norm(embedded, self.input_norm), norm(state, self.hidden_norm)], -1)
        after: Tensor = self.layer(pair, state, rollout)
        return after

    def score(self, state: Tensor) -> tuple[Tensor, TargetOutput]:  # noqa: D102
        return norm(state, self.norm), TargetOutput(
            self.head, ids=None if self._ids is None else self._ids.to(state.device)
        )

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the head in its authors' layout; the embedding is the target's."""
        vocab = self.config.vocab_size
        tensors = {
            form.FUSE: self.fc,
            form.FIRST[0] + form.STATE: self.hidden_norm,
            form.FIRST[0] + form.TOKEN: self.input_norm,
            form.NORM: self.norm,
            form.OUTPUT: self.head,
            **self.layer.tensors(form.FIRST[0]),
        }
        if self._ids is not None:
            tensors[form.OFFSETS] = self._ids - torch.arange(len(self._ids))
            tensors[form.KNOWN] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, self._ids, True)
        config = {
            "architectures": [form.ARCHITECTURE],
            **self.layer_config(),
            form.VOCAB: len(self.head),
            form.TAPS: list(self.taps),
        }
        return config, tensors


def _usual(depth: int) -> tuple[int, ...]:
    """Return what the authors' heads read, early, middle and late, or the last three of a target with few layers."""
    return (2, depth // 2, depth - 3) if depth > 6 else (depth - 2, depth - 1, depth)
