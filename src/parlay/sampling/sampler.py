"""Sampling tokens with keyed noise, and reporting their log-probabilities.

Every token of the engine is drawn by `draw`: the target's choices and a draft model's nodes, so that nodes share the
noise of the choices they try to predict (Daliri, Musco, Suresh 2024, arXiv 2408.07978).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from parlay.kernels.base import Filters, Kernels
from parlay.kernels.uploads import sent
from parlay.sampling.seeds import signed
from parlay.sampling.token_order import largest, rank
from parlay.types.params import DrawParams, SamplingParams
from parlay.types.plan import TokenLogprobs


def draw(
    kernels: Kernels,
    scores: Tensor,
    temperatures: Tensor,
    seeds: Tensor,
    positions: Tensor,
    filters: Filters | None = None,
) -> Tensor:
    """Draw one token per row; temperature 0 takes the first in the total order.

    Args:
        kernels: the operations to run with.
        scores: `[rows, vocab]` float32 logits, or processed scores with temperature 1.
        temperatures: `[rows]` float32.
        seeds: `[rows]` int64 holding the bits of unsigned seeds.
        positions: `[rows]` int64, absolute index of the token being drawn.
        filters: min-p, top-k and top-p of each row; None for none.

    Returns:
        Token ids, `[rows]` int64.
    """
    out = torch.empty(scores.shape[0], dtype=torch.int64)
    kernels.draw(scores, temperatures, seeds, positions, out, filters)
    return out


def process(kernels: Kernels, logits: Tensor, params: Sequence[DrawParams | SamplingParams]) -> Tensor:
    """Return the scores whose softmax each row's token is drawn from: `-inf` where a token is removed.

    Order: temperature, min-p, top-k, top-p. At temperature 0 one token is left.

    Args:
        kernels: the operations to run with.
        logits: `[rows, vocab]` float32; NaN counts as `-inf`.
        params: sampling parameters of each row.
    """
    scores = logits.clone()
    kernels.process(scores, temperature_tensor(params), filter_tensors(params))
    return scores


_GREEDY = DrawParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """What the tokens of rows are drawn with; for the tensors see `draw`."""

    temperatures: Tensor
    seeds: Tensor
    positions: Tensor
    filters: Filters | None

    @classmethod
    def of(cls, params: Sequence[DrawParams], seeds: Sequence[int], positions: Sequence[int]) -> "SamplingMetadata":
        """Return them on the host, of each row's parameters, seed and position."""
        keys = torch.from_numpy(np.array(([signed(seed) for seed in seeds], positions), dtype=np.int64))
        return cls(temperature_tensor(params), keys[0], keys[1], filter_tensors(params))

    @classmethod
    def greedy(cls, rows: int) -> "SamplingMetadata":
        """Return those of rows whose likeliest token is taken."""
        return cls.of([_GREEDY] * rows, [0] * rows, [0] * rows)

    @property
    def tensors(self) -> list[Tensor]:
        """All of them."""
        own, filters = [self.temperatures, self.seeds, self.positions], self.filters
        return own if filters is None else [*own, filters.min_p, filters.top_k, filters.top_p]


def draw_at(kernels: Kernels, logits: Tensor, draws: SamplingMetadata) -> list[int]:
    """Return the token of each row of logits `[rows, vocab]`; what they are drawn with goes to a GPU in one copy.

    Args:
        kernels: the operations to run with.
        logits: float32, in memory that the kernels read.
        draws: sampling parameters of each row, in host memory.
    """
    temperatures, seeds, positions, *limits = sent(kernels, draws.tensors)
    with kernels.device_context():
        filters = Filters(*limits) if limits else None
        drawn: list[int] = draw(kernels, logits, temperatures, seeds, positions, filters).tolist()
    return drawn


def seed_tensor(seeds: Sequence[int]) -> Tensor:
    """Return seeds as `draw` takes them, on the host."""
    return torch.tensor([signed(seed) for seed in seeds], dtype=torch.int64, device="cpu")


def temperature_tensor(params: Sequence[DrawParams | SamplingParams]) -> Tensor:
    """Return temperatures as `draw` takes them, on the host."""
    return torch.from_numpy(np.array([p.temperature for p in params], dtype=np.float32))


def filter_tensors(params: Sequence[DrawParams | SamplingParams]) -> Filters | None:
    """Return filters as `draw` takes them, on the host; None where no row filters."""
    if not any(p.filters for p in params):
        return None
    return Filters(
        torch.tensor([p.min_p for p in params], dtype=torch.float64, device="cpu"),
        torch.tensor([p.top_k for p in params], device="cpu"),
        torch.tensor([p.top_p for p in params], dtype=torch.float64, device="cpu"),
    )


def token_logprobs(kernels: Kernels, logits: Tensor, token: int, top: int) -> TokenLogprobs:
    """Return log-probabilities of one row.

    Args:
        kernels: the operations to run with.
        logits: `[vocab]` float32.
        token: the token to report.
        top: number of the most likely tokens to report.
    """
    out = torch.empty((1, len(logits)))
    kernels.log_softmax(logits.view(1, -1), out)
    row = out[0].numpy()
    best = tuple((int(t), float(row[t])) for t in largest(row, top)) if top else ()
    return TokenLogprobs(float(row[token]), rank(row, token), best)
