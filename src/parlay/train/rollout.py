"""What the training of EAGLE-type heads shares: the head continues from its own states, as in drafting.

Source: EAGLE-3 (Li et al. 2025, arXiv 2503.01840, section 3.2, "training-time test"). First every row pairs the
target's state with the token after it; then, repeatedly, the state that the head itself predicted with the next
token. Keys and values of the first pass are seen by all later rows, of the others only by rows that follow from them.
The tokens are the text's: those that the head would have drafted, as long as its draft is still accepted.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, pad

from parlay.errors import ConfigError, ModelError
from parlay.models.config import ModelConfig
from parlay.models.select import exposes_hidden_states
from parlay.train.data import Text
from parlay.train.teacher import TargetOutput, Teacher, TeacherBatch
from parlay.train.trainee import DraftStep, Trainee


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """Training options of a head that continues from its own states.

    Attributes:
        rollout: nodes that are learnt in a row, each from the one before.
    """

    rollout: int = 5

    def __post_init__(self) -> None:
        if not 1 <= self.rollout <= 64:
            raise ConfigError(f"rollout must be between 1 and 64, not {self.rollout}")


@dataclass(slots=True)
class Rollout:
    """How far the head has continued from the rows it starts from.

    Attributes:
        starts: `[texts, n]`, the rows that it starts from; of the first node's pairs they see those up to there.
        keys, values: keys and values of every node, `[texts, groups, rows, head_dim]` of the first and n rows of
            later ones.
    """

    starts: Tensor
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def chosen(self, rows: Tensor) -> Tensor:
        """Return those rows of `[texts, rows, width]` that it starts from."""
        return rows.gather(1, self.starts[..., None].expand(-1, -1, rows.shape[-1]))

    def append(self, key: Tensor, value: Tensor) -> None:
        """Store keys and values of the next node, turned by their positions."""
        self.keys.append(key)
        self.values.append(value.float())

    def attend(
        self,
        query: Tensor,
        rows: Tensor,
        scale: float,
        window: int = 0,
        cap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Return attention's output `[texts, heads, n, head_dim]`: over the first node's keys, then their own.

        Args:
            query: `[texts, heads, n, head_dim]`, of the node that was kept last.
            rows: `[texts, n]`, the first node's rows that they start from.
            scale: factor on scores.
            window: keys that a row sees at most, the last ones; 0 is all.
            cap: bound that scores approach; 0 is none.
            sinks: `[heads]`, scores of a key without a value that each head sees too.
        """
        texts, heads, n, size = query.shape
        grouped = query.view(texts, self.keys[0].shape[1], -1, n, size) * scale
        first, *own = (k.unsqueeze(2) for k in self.keys)
        count, node, origins = first.shape[3], len(own), rows[:, None, None, :, None]
        each = torch.arange(count, device=query.device)
        hidden = each > origins
        if window:
            hidden = hidden | (each <= origins + node - window)
            own = [k for m, k in enumerate(own, start=1) if m > node - window]
        scores = (grouped @ first.transpose(-1, -2)).float()
        scores = torch.cat([scores, *((grouped * k).sum(-1, keepdim=True).float() for k in own)], -1)
        if cap:
            scores = cap * torch.tanh(scores / cap)
        scores = scores.masked_fill(pad(hidden, (0, len(own))), -torch.inf)
        if sinks is not None:
            sink = sinks.view(1, scores.shape[1], -1, 1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, sink], -1)
        likeness = scores.softmax(-1)
        seen = (likeness[..., :count] @ self.values[0].unsqueeze(2)).float()
        for i, v in enumerate(self.values[1 + node - len(own) :]):
            seen = seen + likeness[..., count + i, None] * v.unsqueeze(2)
        return seen.reshape(texts, heads, n, -1)


class RolloutTrainee(Trainee):
    """A head of decoder layers that read tokens beside states.

    A subclass says which of the target's states a pair has, and how a node is made from a state.

    Attributes:
        layers: how many it has. The first predicts the first draft token, the next one the second, from the states
            that the layer before it predicts; the last one also predicts all further ones, from its own states.
    """

    layers: int = 1
    decay = 0.8  # a node counts for nothing where the one before it is rejected

    def __init__(self, options: RolloutOptions, teacher: Teacher, texts: Sequence[Text]) -> None:
        super().__init__(options, teacher, texts)
        self.depth, self.config = options.rollout, teacher.config
        self._embedding = teacher.embedding()

    @classmethod
    def check(cls, options: Any, target: ModelConfig) -> None:  # noqa: D102
        check_exposed(target)

    @abstractmethod
    def begin(self, batch: TeacherBatch) -> Tensor:
        """Return `[rows, width]`, a pair's input from the target's states."""

    @abstractmethod
    def next_states(self, embedded: Tensor, state: Tensor, rollout: Rollout) -> Tensor:
        """Return the predicted states `[texts, n, width]` of the rows that the rollout starts from.

        Those of all rows if another layer follows.

        Args:
            embedded: tokens, `[texts, n, width]`; for a layer's first node of all rows of a text.
            state: the states before them, of the same shape.
            rollout: keeps the node's keys and values.
        """

    @abstractmethod
    def score(self, state: Tensor) -> tuple[Tensor, TargetOutput]:
        """Return the output layer's input, and the output layer."""

    def draft(self, batch: TeacherBatch) -> Iterator[DraftStep]:  # noqa: D102
        levels = [batch.starts(2 + i) for i in range(self.depth)]
        active = torch.zeros(len(batch.text), dtype=torch.bool, device=batch.text.device)
        active[torch.cat(levels)] = True
        if not active.any():
            return
        # Texts side by side, shorter ones padded with rows that are never read; of each the rows to start from.
        places, _ = side_by_side(torch.bincount(batch.text))
        counts = torch.bincount(batch.text[active], minlength=len(places))
        chosen, real = side_by_side(counts)
        origins = active.nonzero()[:, 0]
        starts = torch.where(real, origins[chosen] - places[:, :1], 0)
        index = torch.zeros_like(batch.text)
        index[origins] = torch.arange(len(origins), device=origins.device)

        tokens, state = batch.tokens[places], self.begin(batch)[places]
        for i, rows in enumerate(levels):
            next_tokens = tokens.roll(-1 - i, 1)
            if i < self.layers:
                rollout = Rollout(starts)
            else:
                next_tokens = next_tokens.gather(1, starts)
            state = self.next_states(embedding(next_tokens, self._embedding), state, rollout).float()
            learnt = rollout.chosen(state) if i < self.layers - 1 else state
            states, output = self.score(learnt[real][index[rows]])
            yield DraftStep(states, output, rows + 1 + i)


def check_exposed(target: ModelConfig) -> None:
    """Refuse a target of which a head cannot read what is between its layers.

    Raises:
        ModelError: it is one.
    """
    if not exposes_hidden_states(target):
        raise ModelError(
            f"the architecture of {target.path} exposes neither its embedding nor the states between its layers; "
            "train a head of another kind"
        )


def side_by_side(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices of elements of concatenated lists, list by list, and which of these are elements.

    Args:
        lengths: `[lists]` of each list.

    Returns:
        Both `[lists, longest]`; indices beyond a list's end are those of others.
    """
    each = torch.arange(int(lengths.max()), device=lengths.device)
    first = lengths.cumsum(0) - lengths
    return (first[:, None] + each).clamp(max=int(lengths.sum()) - 1), each < lengths[:, None]
