"""The layer of EAGLE heads with gradients: a Llama's, without the norm before its attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parlay.errors import ConfigError
from parlay.train.data import Text
from parlay.train.layers import LayerWeights, apply_rotary, frequencies, layer_config
from parlay.train.rollout import Rollout, RolloutOptions, RolloutTrainee
from parlay.train.teacher import Teacher


@dataclass(frozen=True, slots=True)
class LayerOptions(RolloutOptions):
    """Training options of an EAGLE head.

    Attributes:
        intermediate_size: width within the layer's feed-forward network; 0 takes the target's.
    """

    intermediate_size: int = 0

    def __post_init__(self) -> None:
        RolloutOptions.__post_init__(self)
        if not 0 <= self.intermediate_size <= 1 << 20:
            raise ConfigError(
                f"intermediate_size must be at least 0 and at most {1 << 20}, not {self.intermediate_size}"
            )


class Layer(LayerWeights):
    """A layer of the target's width and heads, without the norm before its attention."""

    def forward(self, x: Tensor, state: Tensor, rollout: Rollout) -> Tensor:
        """Return `state` `[texts, n, width]` with what the layer adds, of which attention reads `x`.

        For the first node both have all rows of a text; only those that the rollout starts from are continued.
        """
        key, value = (self.heads(x, weight) for weight in (self.k_proj, self.v_proj))
        at = (rollout.starts + len(rollout.keys))[:, None]
        places = at
        if not rollout.keys:
            places = torch.arange(x.shape[1], device=x.device)
            x, state = rollout.chosen(x), rollout.chosen(state)
        query = self._rotated(self.heads(x, self.q_proj), at)
        rollout.append(self._rotated(key, places), value)
        return self.after(state, rollout.attend(query, rollout.starts, self._size**-0.5))

    def _rotated(self, heads: Tensor, places: Tensor) -> Tensor:
        angles = places[..., None] * frequencies(self._size).to(heads.device)
        return apply_rotary(heads, angles.cos(), angles.sin())


class EagleTrainee(RolloutTrainee):
    """A head with such a layer.

    Attributes:
        layer: set by the subclass.
    """

    layer: Layer

    def __init__(self, options: LayerOptions, teacher: Teacher, texts: Sequence[Text]) -> None:
        super().__init__(options, teacher, texts)
        config = teacher.config
        self.inner = options.intermediate_size or config.intermediate_size
        self._heads = config.num_heads, config.num_kv_heads, config.head_dim

    def make_layer(self, columns: int) -> Layer:
        """Return a layer whose attention reads `columns` numbers per row."""
        return Layer(self.config.hidden_size, columns, self.inner, self._heads, 0.5)

    def layer_config(self) -> dict[str, Any]:
        """Return the layer's part of the public format's config."""
        made = layer_config(self.config, layers=1, width=self.config.hidden_size, inner=self.inner, heads=self._heads)
        return {**made, "bias": False, "tie_word_embeddings": False}
