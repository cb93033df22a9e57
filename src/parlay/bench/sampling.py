"""Choosing one token from a big vocabulary: the kernels' `draw` on one row, one thread at work."""

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.kernels.select import select_kernels
from parlay.sampling.sampler import draw, filter_tensors, seed_tensor, temperature_tensor
from parlay.types.params import SamplingParams

_CASES = {
    "greedy": SamplingParams(temperature=0),
    "temperature 0.8": SamplingParams(temperature=0.8),
    "top-p 0.9": SamplingParams(temperature=0.8, top_p=0.9),
    "top-p 0.99": SamplingParams(temperature=0.8, top_p=0.99),
    "top-k 50, top-p 0.9": SamplingParams(temperature=0.8, top_k=50, top_p=0.9),
    "min-p 0.05": SamplingParams(temperature=0.8, min_p=0.05),
}


def measure(vocab_size: int, rounds: int, tick: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return one row a kind of logits and a way of choosing, with the median milliseconds of a draw.

    Args:
        vocab_size: tokens to choose from.
        rounds: turns of every way on every kind of logits.
        tick: called with a label before the measurement.
    """
    kernels = select_kernels()
    random = torch.Generator().manual_seed(0)
    logits = {
        "normal": torch.randn(1, vocab_size, generator=random) * 3,
        "zipf": -1.2 * torch.log1p(torch.randperm(vocab_size, generator=random).float())[None],
        "flat": torch.randn(1, vocab_size, generator=random) * 0.01,
    }
    tick(f"{rounds} rounds")
    seconds: dict[tuple[str, str], list[float]] = {(kind, way): [] for kind in logits for way in _CASES}
    for i in range(rounds + 1):
        for kind, way in seconds:
            elapsed = _draw(kernels, logits[kind], _CASES[way], i)
            if i:  # the first round is a warm-up
                seconds[kind, way].append(elapsed)
    return [
        {"logits": kind, "way": way, "vocab_size": vocab_size, "ms": 1e3 * median(own)}
        for (kind, way), own in seconds.items()
    ]


def _draw(kernels: Kernels, scores: Tensor, params: SamplingParams, position: int) -> float:
    temperatures, filters = temperature_tensor([params]), filter_tensors([params])
    seeds, positions = seed_tensor([0]), torch.tensor([position])
    began = perf_counter()
    draw(kernels, scores, temperatures, seeds, positions, filters)
    return perf_counter() - began
