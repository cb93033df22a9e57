"""Choosing one token from a big vocabulary: the kernels' `draw` on one row, one thread at work."""

import argparse
import sys
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import start
from parlay.cli.report import count, progress, report
from parlay.kernels.base import Kernels
from parlay.kernels.select import select_kernels
from parlay.sampling.sampler import draw, filter_tensors, seed_tensor, temperature_tensor
from parlay.types.params import SamplingParams

CASES = {
    "greedy": SamplingParams(temperature=0),
    "temperature 0.8": SamplingParams(temperature=0.8),
    "top-p 0.9": SamplingParams(temperature=0.8, top_p=0.9),
    "top-p 0.99": SamplingParams(temperature=0.8, top_p=0.99),
    "top-k 50, top-p 0.9": SamplingParams(temperature=0.8, top_k=50, top_p=0.9),
    "min-p 0.05": SamplingParams(temperature=0.8, min_p=0.05),
}


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vocab-size", type=count, default=131072, help="tokens to choose from (default: 131072)")
    parser.add_argument("--rounds", type=count, default=100, help="draws of each kind (default: 100)")


def _run(options: argparse.Namespace) -> int:
    with progress() as tick:
        tick(f"{options.rounds} rounds")
        rows = measure(options.vocab_size, options.rounds)
    report(options, rows, {"logits": ("logits", "{}"), "way": ("way", "{}"), "ms": ("ms", "{:.3f}")})
    return 0


def measure(vocab_size: int, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each kind of logits and way of choosing, with the median milliseconds of a draw."""
    kernels = select_kernels()
    random = torch.Generator().manual_seed(0)
    logits = {
        "normal": torch.randn(1, vocab_size, generator=random) * 3,
        "zipf": -1.2 * torch.log1p(torch.randperm(vocab_size, generator=random).float())[None],
        "flat": torch.randn(1, vocab_size, generator=random) * 0.01,
    }
    seconds: dict[tuple[str, str], list[float]] = {(kind, way): [] for kind in logits for way in CASES}
    for i in range(rounds + 1):
        for (kind, way), own in seconds.items():
            elapsed = _draw(kernels, logits[kind], CASES[way], i)
            if i:  # the first round is a warm-up
                own.append(elapsed)
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


main = partial(start, "sampling", __doc__, _add_flags, _run)

if __name__ == "__main__":
    sys.exit(main())
