"""Training of a draft model: a small Llama with the target's vocabulary, distilled from the target.

It reads tokens and none of the target's states. Embedding and output layer are one matrix.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, scaled_dot_product_attention

from parlay.errors import ConfigError, ModelError
from parlay.models.config import ModelConfig
from parlay.train.data import Text
from parlay.train.layers import LayerWeights, apply_rotary, frequencies, layer_config, norm
from parlay.train.teacher import TargetOutput, Teacher, TeacherBatch
from parlay.train.trainee import DraftStep
from parlay.train.trainee import Trainee as Base


@dataclass(frozen=True, slots=True)
class Options:
    """Training options of a draft model.

    Attributes:
        num_layers: number of layers of the draft model.
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


class _Layer(LayerWeights):
    """A pre-norm layer."""

    def __init__(self, width: int, inner: int, heads: tuple[int, int, int], layers: int) -> None:
        # Keeps the scale of the residual stream the same for any number of layers.
        super().__init__(width, width, inner, heads, (2 * layers) ** -0.5)
        self.input_layernorm = nn.Parameter(torch.ones(width))

    def forward(self, state: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the state `[rows, width]` after this layer.

        Args:
            state: state before this layer.
            mask: `[rows, rows]`, which rows each row sees.
            cos, sin: `[rows, head_dim]` of the rows' positions.
        """
        normed = norm(state, self.input_layernorm)
        query, key, value = (self.heads(normed, weight) for weight in (self.q_proj, self.k_proj, self.v_proj))
        query, key = apply_rotary(query, cos, sin), apply_rotary(key, cos, sin)
        return self.after(state, scaled_dot_product_attention(query, key, value.float(), attn_mask=mask))


class Trainee(Base):
    """A small Llama."""

    tokenized = True

    def __init__(self, options: Options, teacher: Teacher, texts: Sequence[Text]) -> None:
        super().__init__(options, teacher, texts)
        self.depth = 1
        self._options, self._config = options, teacher.config
        width, layers, heads = options.hidden_size, options.num_layers, options.num_heads
        self._inner = options.intermediate_size or 3 * width
        self._heads = heads, heads, width // heads
        self.embed_tokens = nn.Parameter(torch.randn((teacher.config.vocab_size, width)) * width**-0.5)
        self.layers = nn.ModuleList(_Layer(width, self._inner, self._heads, layers) for _ in range(layers))
        self.norm = nn.Parameter(torch.ones(width))
        self._turns = frequencies(width // heads)

    @classmethod
    def check(cls, options: Options, target: ModelConfig) -> None:  # noqa: D102
        if target.path.is_file():
            raise ModelError(
                f"{target.path} has its tokenizer within, but a draft model needs one in a file of its own; give the "
                "target as a directory"
            )

    def draft(self, batch: TeacherBatch) -> Iterator[DraftStep]:  # noqa: D102
        rows = torch.arange(len(batch.text), device=batch.text.device)
        same = batch.text[:, None] == batch.text[None, :]
        angles = (rows - same.int().argmax(1))[:, None] * self._turns.to(rows.device)
        mask = same & (rows[:, None] >= rows[None, :])
        state = embedding(batch.tokens, self.embed_tokens)
        for layer in self.layers:
            state = layer(state, mask, angles.cos(), angles.sin())
        starts = batch.starts(1)
        yield DraftStep(norm(state[starts], self.norm), TargetOutput(self.embed_tokens), starts)

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return a Llama in Hugging Face format."""
        tensors: dict[str, Tensor] = {"model.embed_tokens.weight": self.embed_tokens, "model.norm.weight": self.norm}
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, _Layer)
            tensors |= layer.tensors(f"model.layers.{i}.")
        options, raw = self._options, self._config.raw
        config: dict[str, Any] = {
            "architectures": ["LlamaForCausalLM"],
            **layer_config(
                self._config,
                layers=options.num_layers,
                width=options.hidden_size,
                inner=self._inner,
                heads=self._heads,
            ),
            "tie_word_embeddings": True,
            "mlp_bias": False,
            **{key: raw[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in raw},
        }
        return config, tensors
