"""What the training of EAGLE-type heads shares: the head goes on from its own states, as it does when it drafts.

Source: EAGLE-3 (Li et al. 2025, arXiv 2503.01840, section 3.2, "training-time test"). First every row pairs the
target's state with the token after it; then, over and over, the state that the head itself foresaw with the next
token. Keys and values of the first kind are seen by all later rows, of the others only by those that come of them.
The tokens are the text's: those that the head would have guessed, as long as its draft is still accepted.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, rms_norm, silu

from parlay.errors import ConfigError, ModelError
from parlay.models.select import lends
from parlay.train.data import Text
from parlay.train.layers import frequencies, public_name, random, turn
from parlay.train.teacher import Lesson, Output, Teacher
from parlay.train.trainee import Guess, Trainee

EPS = 1e-5
THETA = 10000.0


@dataclass(frozen=True, slots=True)
class Options:
    """What training of an EAGLE-type head is asked.

    Attributes:
        rollout: guesses that are learnt in a row, each from the one before.
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


class _Asked(Protocol):
    """The options that every such method has."""

    @property
    def rollout(self) -> int: ...

    @property
    def intermediate_size(self) -> int: ...


@dataclass(slots=True)
class Rollout:
    """How far the head has gone from every row.

    Attributes:
        cos, sin: `[rows + guesses, head_dim]` of all positions.
        keys, values: `[texts, groups, rows, head_dim]`, of every guess so far.
    """

    cos: Tensor
    sin: Tensor
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return what rows see `[texts, heads, rows, head_dim]`: the first guess's keys up to them, then their own.

        Args:
            query: `[texts, heads, rows, head_dim]`.
            key, value: `[texts, groups, rows, head_dim]`, of this guess.
        """
        step, rows = len(self.keys), query.shape[2]
        at = slice(step, step + rows)
        query, key = turn(query, self.cos[at], self.sin[at]), turn(key, self.cos[at], self.sin[at])
        self.keys.append(key)
        self.values.append(value.float())
        texts, heads, _, size = query.shape
        grouped = query.view(texts, key.shape[1], -1, rows, size) * size**-0.5
        later = torch.ones((rows, rows), dtype=torch.bool, device=query.device).triu(1)
        first, *own = (k.unsqueeze(2) for k in self.keys)
        scores = (grouped @ first.transpose(-1, -2)).float().masked_fill(later, -torch.inf)
        likeness = torch.cat([scores, *((grouped * k).sum(-1, keepdim=True) for k in own)], -1).softmax(-1)
        first, *own = (v.unsqueeze(2) for v in self.values)
        seen = (likeness[..., :rows] @ first).float()
        for i, v in enumerate(own):
            seen = seen + likeness[..., rows + i, None] * v
        return seen.view(texts, heads, rows, size)


class Layer(nn.Module):
    """A Llama layer without the norm before its attention."""

    def __init__(self, teacher: Teacher, columns: int, inner: int) -> None:
        """Make a layer of the target's width and heads, whose attention reads `columns` numbers a row."""
        super().__init__()
        config = teacher.config
        width, self._size = config.hidden_size, config.head_dim
        self.q_proj = random(config.num_heads * self._size, columns)
        self.k_proj = random(config.num_kv_heads * self._size, columns)
        self.v_proj = random(config.num_kv_heads * self._size, columns)
        self.o_proj = random(width, config.num_heads * self._size, 0.5)
        self.post_attention_layernorm = nn.Parameter(torch.ones(width))
        self.gate_proj, self.up_proj = random(inner, width), random(inner, width)
        self.down_proj = random(width, inner, 0.5)

    def forward(self, x: Tensor, state: Tensor, rollout: Rollout) -> Tensor:
        """Return `state` `[texts, rows, width]` with what the layer adds, of which attention reads `x`."""
        texts, rows = x.shape[:2]
        query, key, value = (
            linear(x, weight).view(texts, rows, -1, self._size).transpose(1, 2)
            for weight in (self.q_proj, self.k_proj, self.v_proj)
        )
        seen = rollout.attend(query, key, value).transpose(1, 2).reshape(texts, rows, -1)
        state = state + linear(seen, self.o_proj)
        normed = norm(state, self.post_attention_layernorm)
        return state + linear(silu(linear(normed, self.gate_proj)) * linear(normed, self.up_proj), self.down_proj)


class RolloutTrainee(Trainee):
    """A head of one decoder layer that reads tokens beside states.

    A subclass says what of the target's states a pair has, and how a guess is made of a state.

    Attributes:
        layer: its layer; set by the subclass.
    """

    decay: ClassVar[float] = 0.8  # a guess counts for nothing where the one before it is refused
    layer: Layer

    def __init__(self, options: _Asked, teacher: Teacher, texts: Sequence[Text]) -> None:
        super().__init__(options, teacher, texts)
        if not lends(teacher.config):
            raise ModelError(
                f"{teacher.config.path} has no embedding to lend, for no family of parlay's computes that model; "
                "train a head of another kind"
            )
        self.guesses, self.config = options.rollout, teacher.config
        self.inner = options.intermediate_size or teacher.config.intermediate_size
        self._embedding = teacher.embedding()
        self._turns = frequencies(teacher.config.head_dim, THETA)

    @abstractmethod
    def begin(self, lesson: Lesson) -> Tensor:
        """Return `[rows, width]`, what a pair has of the target's states."""

    @abstractmethod
    def foresee(self, embedded: Tensor, state: Tensor, rollout: Rollout) -> Tensor:
        """Return the states to go on with, of embedded tokens beside states, all `[texts, rows, width]`."""

    @abstractmethod
    def score(self, state: Tensor) -> tuple[Tensor, Output]:
        """Return what the output layer multiplies, and the output layer."""

    def guess(self, lesson: Lesson) -> Iterator[Guess]:  # noqa: D102
        lengths = torch.bincount(lesson.text)
        longest = int(lengths.max())
        device = lengths.device
        each = torch.arange(longest, device=device)
        real = (
            each < lengths[:, None]
        )  # texts side by side, the shorter ones filled up with rows that nobody looks at
        places = ((lengths.cumsum(0) - lengths)[:, None] + each).clamp(max=len(lesson.text) - 1)
        tokens, state = lesson.tokens[places], self.begin(lesson)[places]
        angles = torch.arange(longest + self.guesses, device=device)[:, None] * self._turns.to(device)
        rollout = Rollout(angles.cos(), angles.sin())
        for i in range(self.guesses):
            state = self.foresee(embedding(tokens.roll(-1 - i, 1), self._embedding), state, rollout).float()
            starts = lesson.starts(2 + i)
            states, output = self.score(state[real][starts])
            yield Guess(states, output, starts + 1 + i)

    def layer_tensors(self, prefix: str) -> dict[str, Tensor]:
        """Return the layer's tensors by their public names."""
        return {prefix + public_name(name): parameter for name, parameter in self.layer.named_parameters()}

    def layer_config(self) -> dict[str, Any]:
        """Return what the public format says about the layer."""
        target = self.config
        return {
            "model_type": "llama",
            "vocab_size": target.vocab_size,
            "hidden_size": target.hidden_size,
            "intermediate_size": self.inner,
            "num_hidden_layers": 1,
            "num_attention_heads": target.num_heads,
            "num_key_value_heads": target.num_kv_heads,
            "head_dim": target.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": EPS,
            "rope_theta": THETA,
            "max_position_embeddings": target.max_position,
            "attention_bias": False,
            "bias": False,
            "tie_word_embeddings": False,
        }


def norm(state: Tensor, weight: Tensor) -> Tensor:
    """Return states normed over their last axis, in float32."""
    return rms_norm(state.float(), state.shape[-1:], weight, EPS)
