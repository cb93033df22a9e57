"""Training of a draft model: a small Llama with the target's vocabulary, distilled from the target.

It reads tokens and none of the target's states. Embedding and output layer are one matrix.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from parlay.errors import ConfigError, ModelError
from parlay.models.config import ModelConfig
from parlay.train.data import Text
from parlay.train.layers import frequencies, public_name, random, turn
from parlay.train.teacher import Lesson, TargetOutput, Teacher
from parlay.train.trainee import DraftStep
from parlay.train.trainee import Trainee as Base

_EPS = 1e-5
_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class Options:
    """Training options of a draft model.

    Attributes:
        num_layers: of the draft model.
        hidden_size: width of its states.
        intermediate_size: width within its feed-forward networks; 0 takes three times `hidden_size`.
        num_heads: attention heads, each with its own keys and values.
    """

    num_layers: int = 1
    hidden_size: int = 128
    intermediate_size: int = 0
    num_heads: int = 4

    def __post_init__(self) -> None:
        for name, most in (("num_layers", 256), ("hidden_size", 1 << 16), ("num_heads", 1 << 10)):
            if not 1 <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must be between 1 and {most}, not {getattr(self, name)}")
        if not 0 <= self.intermediate_size <= 1 << 18:
            raise ConfigError(
                f"intermediate_size must be at least 0 and at most {1 << 18}, not {self.intermediate_size}"
            )
        if self.hidden_size % (8 * self.num_heads) or self.hidden_size > 256 * self.num_heads:
            raise ConfigError(
                f"hidden_size={self.hidden_size} over num_heads={self.num_heads} must be a multiple of 8 up to 256"
            )


class _Layer(nn.Module):
    """A pre-norm layer; parameters have the names of the public format, less `.weight`."""

    def __init__(self, width: int, inner: int, layers: int) -> None:
        super().__init__()

        self.input_layernorm = nn.Parameter(torch.ones(width))
        self.q_proj, self.k_proj, self.v_proj = (random(width, width) for _ in range(3))
        quiet = (2 * layers) ** -0.5  # keeps the scale of the residual stream the same for any number of layers
        self.o_proj = random(width, width, quiet)
        self.post_attention_layernorm = nn.Parameter(torch.ones(width))
        self.gate_proj, self.up_proj = random(inner, width), random(inner, width)
        self.down_proj = random(width, inner, quiet)

    def forward(self, state: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the state `[rows, width]` after this layer.

        Args:
            state: before it.
            mask: `[rows, rows]`, which rows each row sees.
            cos, sin: `[rows, head_dim]` of the rows' positions.
        """
        rows, size = state.shape[0], cos.shape[1]
        normed = rms_norm(state, state.shape[-1:], self.input_layernorm, _EPS)
        query, key, value = (
            linear(normed, weight).view(rows, -1, size).transpose(0, 1)
            for weight in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = turn(query, cos, sin), turn(key, cos, sin)
        seen = scaled_dot_product_attention(query, key, value.float(), attn_mask=mask)
        state = state + linear(seen.transpose(0, 1).reshape(rows, -1), self.o_proj)
        normed = rms_norm(state, state.shape[-1:], self.post_attention_layernorm, _EPS)
        inner = silu(linear(normed, self.gate_proj)) * linear(normed, self.up_proj)
        return state + linear(inner, self.down_proj)


class Trainee(Base):
    """A small Llama."""

    tokenized = True

    def __init__(self, options: Options, teacher: Teacher, texts: Sequence[Text]) -> None:
        super().__init__(options, teacher, texts)
        self.depth = 1
        self._options, self._config = options, teacher.config
        width = options.hidden_size
        self._inner = options.intermediate_size or 3 * width
        self.embed_tokens = nn.Parameter(torch.randn((teacher.config.vocab_size, width)) * width**-0.5)
        self.layers = nn.ModuleList(_Layer(width, self._inner, options.num_layers) for _ in range(options.num_layers))
        self.norm = nn.Parameter(torch.ones(width))
        size = width // options.num_heads
        self._turns = frequencies(size, _THETA)

    @classmethod
    def check(cls, options: Options, target: ModelConfig) -> None:  # noqa: D102
        if target.path.is_file():
            raise ModelError(
                f"{target.path} has its tokenizer within, but a draft model needs one in a file of its own; give the "
                "target as a directory"
            )

    def draft(self, lesson: Lesson) -> Iterator[DraftStep]:  # noqa: D102
        rows = torch.arange(len(lesson.text), device=lesson.text.device)
        same = lesson.text[:, None] == lesson.text[None, :]
        angles = (rows - same.int().argmax(1))[:, None] * self._turns.to(rows.device)
        mask = same & (rows[:, None] >= rows[None, :])
        state = embedding(lesson.tokens, self.embed_tokens)
        for layer in self.layers:
            state = layer(state, mask, angles.cos(), angles.sin())
        starts = lesson.starts(1)
        state = rms_norm(state.float()[starts], state.shape[-1:], self.norm, _EPS)
        yield DraftStep(state, TargetOutput(self.embed_tokens), starts)

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return a Llama in Hugging Face format."""
        tensors: dict[str, Tensor] = {"model.embed_tokens.weight": self.embed_tokens, "model.norm.weight": self.norm}
        for i, layer in enumerate(self.layers):
            for name, parameter in layer.named_parameters():
                tensors[f"model.layers.{i}.{public_name(name)}"] = parameter
        options, raw = self._options, self._config.raw
        config: dict[str, Any] = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self._config.vocab_size,
            "hidden_size": options.hidden_size,
            "intermediate_size": self._inner,
            "num_hidden_layers": options.num_layers,
            "num_attention_heads": options.num_heads,
            "num_key_value_heads": options.num_heads,
            "head_dim": options.hidden_size // options.num_heads,
            "hidden_act": "silu",
            "rms_norm_eps": _EPS,
            "rope_theta": _THETA,
            "max_position_embeddings": self._config.max_position,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            **{key: raw[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in raw},
        }
        return config, tensors
