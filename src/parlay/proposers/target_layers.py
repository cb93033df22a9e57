"""A model's output layer and embedding, as heads borrow them."""

from collections.abc import Callable

import torch
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.models.config import ModelConfig
from parlay.models.decoder import Decoder
from parlay.models.layers import Embedding, OutputLayer
from parlay.models.select import CausalModel
from parlay.models.stored import open_weights
from parlay.parallel.group import Group


def output_layer(model: CausalModel, rows: int) -> Callable[[Tensor], Tensor]:
    """Return a function for the logits of at most `rows` states; parlay's own models can be recorded."""
    tokens = model.config.tokens
    if not isinstance(model, Decoder):
        whole = model.config.vocab_size == tokens
        return model.logits if whole else lambda states: model.logits(states)[:, :tokens].contiguous()
    memory = torch.zeros((rows, tokens))
    return lambda states: model.logits(states, memory[: len(states)])


def rescaled_output(model: CausalModel, divisor: float, cap: float) -> Callable[[Tensor], Tensor]:
    """Return a function for logits of a decoder's output layer, whose own divisor and cap do not count."""
    assert isinstance(model, Decoder)
    return lambda states: model.head.rescaled(divisor, cap)(states)


def reduced_output(config: ModelConfig, dtype: torch.dtype, kernels: Kernels, ids: Tensor) -> OutputLayer:
    """Return a target's output layer with the rows of some tokens alone, int64 `[D]`, read from its files.

    Raises:
        ModelError: they cannot be read.
    """
    name = "model.embed_tokens.weight" if config.tie_embeddings else "lm_head.weight"
    with open_weights(config) as weights:
        rows = weights.read_weight(name, dtype).chosen(ids)
    return OutputLayer(kernels, rows, config.style.logit_divisor, config.style.logit_cap)


class TargetEmbedding:
    """The target's embedding, which rank 0 has whole: it hands the rows that a shared pass needs to the others."""

    def __init__(self, target: CausalModel, group: Group) -> None:
        """Take it from the target, on rank 0 of the group that shares the head's layers."""
        self._group = group
        self._embedding: Embedding | None = None
        if group.rank == 0:
            assert isinstance(target, Decoder)
            self._embedding = target.embedding

    def __call__(self, tokens: Tensor, out: Tensor) -> None:
        """Write the rows of `tokens` `[rows]` to `out` `[rows, hidden]`."""
        rows, width = out.shape
        own = out if self._group.size == 1 else out.new_empty((rows, 0 if self._embedding is None else width))
        if self._embedding is not None:
            self._embedding(tokens, own)
        if self._group.size > 1:
            self._group.gather(own, out, (0, *(width for _ in range(self._group.size))))
