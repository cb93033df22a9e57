"""Training of an MLP speculator: see the proposer of the same name.

In training, every node is made from the tokens that the text has before it; in drafting, from the draft's own nodes.
These are the same as long as the draft is still accepted, which is when they matter.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, gelu, linear

from parlay.errors import ConfigError
from parlay.proposers.methods.mlp_speculator.format import ARCHITECTURE, MODEL_TYPE, PREFIX, tensor
from parlay.train.data import Text
from parlay.train.teacher import TargetOutput, Teacher, TeacherBatch
from parlay.train.trainee import DraftStep
from parlay.train.trainee import Trainee as Base

_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Options:
    """Training options of an MLP speculator.

    Attributes:
        n_predict: tokens drafted in a row.
        inner_dim: width of its states; 0 takes the target's.
        tie_weights: one embedding, norm and output layer for all nodes.
        scale_input: norm the target's state first.
    """

    n_predict: int = 3
    inner_dim: int = 0
    tie_weights: bool = False
    scale_input: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.n_predict <= 64:
            raise ConfigError(f"n_predict must be between 1 and 64, not {self.n_predict}")
        if not 0 <= self.inner_dim <= 1 << 20:
            raise ConfigError(f"inner_dim must be at least 0 and at most {1 << 20}, not {self.inner_dim}")


class Trainee(Base):
    """A recurrent state that every node joins."""

    def __init__(self, options: Options, teacher: Teacher, texts: Sequence[Text]) -> None:
        super().__init__(options, teacher, texts)
        self._options = options
        self.depth = options.n_predict
        self._vocab, self._width = teacher.config.vocab_size, teacher.config.hidden_size
        inner = self._inner = options.inner_dim or self._width
        fade = 0.5 ** (0.5 / options.n_predict)
        self._share = math.sqrt((1 - fade * fade) * inner / 2) / fade
        stages = 1 if options.tie_weights else options.n_predict
        projections = min(2, options.n_predict) if options.tie_weights else options.n_predict

        def random(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.randn((rows, columns)) * inner**-0.5)

        self.emb = nn.ParameterList(random(self._vocab, inner) for _ in range(stages))
        self.head = nn.ParameterList(random(self._vocab, inner) for _ in range(stages))
        self.proj = nn.ParameterList(random(inner, inner if i else self._width) for i in range(projections))
        self.ln = nn.ParameterList(nn.Parameter(torch.ones(inner)) for _ in range(stages))
        self.ln_bias = nn.ParameterList(nn.Parameter(torch.zeros(inner)) for _ in range(stages))

    def draft(self, batch: TeacherBatch) -> Iterator[DraftStep]:  # noqa: D102
        state = batch.hidden
        if self._options.scale_input:
            state = _norm(state) * 0.5**0.5
        for i in range(self.depth):
            stage = 0 if self._options.tie_weights else i
            # Beyond a text's end come another's tokens; such rows are left out for this node and all later ones.
            before = batch.tokens.roll(-1 - i)
            state = linear(state, self.proj[min(i, len(self.proj) - 1)]).float()
            state = _norm(state + self._share * embedding(before, self.emb[stage]))
            state = gelu(state * self.ln[stage] + self.ln_bias[stage])
            starts = batch.starts(2 + i)
            yield DraftStep(state[starts], TargetOutput(self.head[stage]), starts + 1 + i)

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the weights under IBM's names; of tied ones the first."""
        tensors: dict[str, Tensor] = {}
        for part, parameters in (("emb", self.emb), ("head", self.head), ("proj", self.proj), ("ln", self.ln)):
            for i, parameter in enumerate(parameters):
                tensors[PREFIX + tensor(part, i)] = parameter
        for i, parameter in enumerate(self.ln_bias):
            tensors[PREFIX + tensor("ln", i, "bias")] = parameter
        options = self._options
        config = {
            "architectures": [ARCHITECTURE],
            "model_type": MODEL_TYPE,
            "vocab_size": self._vocab,
            "emb_dim": self._width,
            "inner_dim": self._inner,
            "n_predict": options.n_predict,
            "tie_weights": options.tie_weights,
            "scale_input": options.scale_input,
            "n_candidates": 5,
            "top_k_tokens_per_head": [5, 4, 3, *[1] * options.n_predict][: options.n_predict],
        }
        return config, tensors


def _norm(state: Tensor) -> Tensor:
    return state * torch.rsqrt(state.pow(2).mean(-1, keepdim=True) + _EPS)
