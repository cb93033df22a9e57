"""A model's output layer, as heads borrow it."""

from collections.abc import Callable

import torch
from torch import Tensor

from parlay.models.decoder import Decoder
from parlay.models.select import Model


def records_logits(model: Model) -> bool:
    """Whether a model's logits are computed by kernels alone, so that they can be recorded."""
    return isinstance(model, Decoder) and model.config.style.logit_divisor == 1


def lent_logits(model: Model, rows: int) -> Callable[[Tensor], Tensor]:
    """Return a function for the logits of at most `rows` states; parlay's own models can be recorded."""
    if not isinstance(model, Decoder):
        return model.logits
    memory = torch.zeros((rows, model.config.vocab_size))
    return lambda states: model.logits(states, memory[: len(states)])
