"""What the training of EAGLE-type heads shares: the head continues from its own states, as in drafting.

Source: EAGLE-3 (Li et al. 2025, arXiv 2503.01840, section 3.2, "training-time test"). First every row pairs the
target's state with the token after it; then, repeatedly, the state that the head itself predicted with the next
token. Keys and values of the first pass are seen by all later rows, of the others only by rows that follow from them.
The tokens are the text's: those that the head would have drafted, as long as its draft is still accepted.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import embedding

from parlay.errors import ConfigError, ModelError
from parlay.models.config import ModelConfig
from parlay.models.select import exposes_hidden_states
from parlay.train.data import Text
from parlay.train.layers import LayerWeights, frequencies, layer_config, turn
from parlay.train.teacher import Lesson, TargetOutput, Teacher
from parlay.train.trainee import DraftStep, Trainee


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """Training options of an EAGLE-type head.

    Attributes:
        rollout: nodes that are learnt in a row, each from the one before.
        intermediate_size: width within the layer's feed-forward network; 0 takes the target's.
    """

    rollout: int = 5
    intermediate_size: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.rollout <= 64:
            raise ConfigError(f"rollout must be between 1 and 64, not {self.rollout}")
        if not 0 <= self.intermediate_size <= 1 << 20:
            raise ConfigError(
                f"intermediate_size must be at least 0 and at most {1 << 20}, not {self.intermediate_size}"
            )


@dataclass(slots=True)
class Rollout:
    """How far the head has continued from the rows it starts from.

    Attributes:
        cos, sin: `[rows + depth, head_dim]` of all positions.
        starts: `[texts, n]`, the rows that it starts from; of the first node's pairs they see those up to there.
        keys, values: of every node, `[texts, groups, rows, head_dim]` of the first and n rows of later ones.
    """

    cos: Tensor
    sin: Tensor
    starts: Tensor
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def chosen(self, rows: Tensor) -> Tensor:
        """Return those rows of `[texts, rows, width]` that it starts from, unless these are given already."""
        if self.keys:
            return rows
        return rows.gather(1, self.starts[..., None].expand(-1, -1, rows.shape[-1]))

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return attention's output `[texts, heads, n, head_dim]`: over the first node's keys, then their own.

        Args:
            query: `[texts, heads, n, head_dim]`.
            key, value: of this node.
        """
        at = (self.starts + len(self.keys))[:, None]
        query = turn(query, self.cos[at], self.sin[at])
        if self.keys:
            key = turn(key, self.cos[at], self.sin[at])
        else:
            key = turn(key, self.cos[: key.shape[2]], self.sin[: key.shape[2]])
        self.keys.append(key)
        self.values.append(value.float())
        texts, heads, n, size = query.shape
        grouped = query.view(texts, key.shape[1], -1, n, size) * size**-0.5
        first, *own = (k.unsqueeze(2) for k in self.keys)
        rows = first.shape[3]
        later = torch.arange(rows, device=query.device) > self.starts[:, None, None, :, None]
        scores = (grouped @ first.transpose(-1, -2)).float().masked_fill(later, -torch.inf)
        likeness = torch.cat([scores, *((grouped * k).sum(-1, keepdim=True) for k in own)], -1).softmax(-1)
        first, *own = (v.unsqueeze(2) for v in self.values)
        seen = (likeness[..., :rows] @ first).float()
        for i, v in enumerate(own):
            seen = seen + likeness[..., rows + i, None] * v
        return seen.view(texts, heads, n, size)


class Layer(LayerWeights):
    """A layer of the target's width and heads, without the norm before its attention."""

    def forward(self, x: Tensor, state: Tensor, rollout: Rollout) -> Tensor:
        """Return `state` `[texts, n, width]` with what the layer adds, of which attention reads `x`.

        For the first node both have all rows of a text; only those that the rollout starts from are continued.
        """
        key, value = (self.heads(x, weight) for weight in (self.k_proj, self.v_proj))
        x, state = rollout.chosen(x), rollout.chosen(state)
        return self.after(state, rollout.attend(self.heads(x, self.q_proj), key, value))


class RolloutTrainee(Trainee):
    """A head of one decoder layer that reads tokens beside states.

    A subclass says which of the target's states a pair has, and how a node is made from a state.

    Attributes:
        layer: its layer; set by the subclass.
    """

    decay: ClassVar[float] = 0.8  # a node counts for nothing where the one before it is rejected
    layer: Layer

    def __init__(self, options: RolloutOptions, teacher: Teacher, texts: Sequence[Text]) -> None:
        super().__init__(options, teacher, texts)
        self.depth, self.config = options.rollout, teacher.config
        config = teacher.config
        self.inner = options.intermediate_size or config.intermediate_size
        self._heads = config.num_heads, config.num_kv_heads, config.head_dim
        self._embedding = teacher.embedding()
        self._turns = frequencies(config.head_dim)

    @classmethod
    def check(cls, options: Any, target: ModelConfig) -> None:  # noqa: D102
        if not exposes_hidden_states(target):
            raise ModelError(
                f"the architecture of {target.path} lends neither its embedding nor the states between its layers; "
                "train a head of another kind"
            )

    @abstractmethod
    def begin(self, lesson: Lesson) -> Tensor:
        """Return `[rows, width]`, a pair's input from the target's states."""

    @abstractmethod
    def next_states(self, embedded: Tensor, state: Tensor, rollout: Rollout) -> Tensor:
        """Return the predicted states, from embedded tokens beside states, as `Layer` does."""

    @abstractmethod
    def score(self, state: Tensor) -> tuple[Tensor, TargetOutput]:
        """Return the output layer's input, and the output layer."""

    def draft(self, lesson: Lesson) -> Iterator[DraftStep]:  # noqa: D102
        levels = [lesson.starts(2 + i) for i in range(self.depth)]
        active = torch.zeros(len(lesson.text), dtype=torch.bool, device=lesson.text.device)
        active[torch.cat(levels)] = True
        if not active.any():
            return
        # Texts side by side, shorter ones padded with rows that are never read; of each the rows to start from.
        places, _ = _grid(torch.bincount(lesson.text))
        counts = torch.bincount(lesson.text[active], minlength=len(places))
        chosen, real = _grid(counts)
        origins = active.nonzero()[:, 0]
        starts = torch.where(real, origins[chosen] - places[:, :1], 0)
        index = torch.zeros_like(lesson.text)
        index[origins] = torch.arange(len(origins), device=origins.device)

        angles = torch.arange(places.shape[1] + self.depth, device=places.device)[:, None]
        angles = angles * self._turns.to(places.device)
        rollout = Rollout(angles.cos(), angles.sin(), starts)
        tokens, state = lesson.tokens[places], self.begin(lesson)[places]
        for i, rows in enumerate(levels):
            next_tokens = tokens.roll(-1 - i, 1)
            if i:
                next_tokens = next_tokens.gather(1, starts)
            state = self.next_states(embedding(next_tokens, self._embedding), state, rollout).float()
            states, output = self.score(state[real][index[rows]])
            yield DraftStep(states, output, rows + 1 + i)

    def make_layer(self, columns: int) -> Layer:
        """Return a layer whose attention reads `columns` numbers a row."""
        return Layer(self.config.hidden_size, columns, self.inner, self._heads, 0.5)

    def layer_config(self) -> dict[str, Any]:
        """Return the layer's part of the public format's config."""
        made = layer_config(self.config, layers=1, width=self.config.hidden_size, inner=self.inner, heads=self._heads)
        return {**made, "bias": False, "tie_word_embeddings": False}


def _grid(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices of elements of concatenated lists, list by list, and which of these are elements.

    Args:
        lengths: `[lists]` of each list.

    Returns:
        Both `[lists, longest]`; indices beyond a list's end are those of others.
    """
    each = torch.arange(int(lengths.max()), device=lengths.device)
    first = lengths.cumsum(0) - lengths
    return (first[:, None] + each).clamp(max=int(lengths.sum()) - 1), each < lengths[:, None]
