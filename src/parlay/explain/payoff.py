"""Where speculation pays on this machine: the time of passes, their arithmetic, and what follows.

With a chain of k draft tokens, each accepted with probability a if the one before it was, a step emits

    l(a, k) = (1 - a^(k+1)) / (1 - a)

tokens for each request. It pays where that outweighs the cost of the step's further rows. The best k is the one that
a policy that knew a would choose; rows beyond the largest pass that was timed are not considered.

Source: Leviathan, Kalman, Matias 2023 (arXiv 2211.17192) for l.
"""

from dataclasses import dataclass
from typing import Any

import torch

from parlay.errors import ConfigError
from parlay.explain.passes import PassTimes
from parlay.explain.work import Work, widths, work_of
from parlay.models.config import ModelConfig
from parlay.types.draft import Draft
from parlay.types.params import SamplingParams
from parlay.types.plan import Span

BATCHES = (1, 2, 4, 8, 16, 32)
RATES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # acceptance rates
LONGEST = 16  # draft tokens of a chain
_FINE = [i / 100 for i in range(1, 100)]  # acceptance rates among which the least that pays is searched


@dataclass(frozen=True, slots=True)
class Best:
    """The best chain of every request of a batch.

    Attributes:
        length: draft tokens; 0 where plain decoding is best.
        speed_up: tokens per second, to plain decoding's.
    """

    length: int
    speed_up: float


def emitted(rate: float, length: int) -> float:
    """Return how many tokens a request emits per step with a chain of so many draft tokens, on average."""
    if rate == 1:
        return length + 1.0
    return (1 - rate ** (length + 1)) / (1 - rate)


def best(times: PassTimes, batch: int, rate: float, draft_cost: float = 0.0) -> Best:
    """Return the best chain length and its speed-up; of equals the shorter.

    Args:
        times: measured times of passes.
        batch: requests at once.
        rate: acceptance rate of a draft token whose parent was accepted.
        draft_cost: cost of a draft token for each request, as a share of the target's plain step.
    """
    plain = times.seconds(batch)
    lengths = [k for k in range(1, LONGEST + 1) if batch * (1 + k) <= times.most_rows]
    speed_ups = [
        Best(k, emitted(rate, k) * plain / (times.seconds(batch * (1 + k)) + draft_cost * plain * k)) for k in lengths
    ]
    return max([Best(0, 1.0), *speed_ups], key=lambda one: one.speed_up)


def pays_from(times: PassTimes, batch: int, draft_cost: float = 0.0) -> float | None:
    """Return the least acceptance rate, in hundredths, at which speculation pays; None if none is enough."""
    return next((rate for rate in _FINE if best(times, batch, rate, draft_cost).length), None)


def free_rows(times: PassTimes) -> float:
    """Return the ridge: the rows whose arithmetic takes as long as the least time of a pass.

    Below, further rows are nearly free; above, each costs its arithmetic. A row's arithmetic is the time per row of
    the larger half of the passes that were timed.
    """
    (few, less), (many, more) = times.timed[len(times.timed) // 2 - 1], times.timed[-1]
    each = (more - less) / (many - few)
    return times.seconds(1) / each if each > 0 else float(many)


def intensity(config: ModelConfig, dtype: torch.dtype, rows: int, context: int) -> Work:
    """Return what a pass of a root and `rows` - 1 draft tokens reads and computes, after `context` tokens."""
    draft = Draft.chain([0] * (rows - 1), "draft")
    span = Span(0, (0,), context, (), 0, SamplingParams().draw, draft=draft, sample=True)
    return sum(work_of(config, dtype, [span], widths(config, dtype)).values(), Work())


def explain(
    times: PassTimes, config: ModelConfig, dtype: torch.dtype, draft_cost: float, context: int
) -> dict[str, Any]:
    """Return `passes`, the `ridge`, the `grid` of best lengths and speed-ups, and a sentence for each batch size.

    Args:
        times: measured times of passes.
        config: the model's config.
        dtype: dtype of its weights.
        draft_cost: cost of a draft token, see `best`.
        context: tokens before a step, for the arithmetic intensity.

    Raises:
        ConfigError: an invalid draft cost, or a context beyond the model's.
    """
    if not 0 <= draft_cost < 100:
        raise ConfigError(f"--draft-cost must be 0 or more and below 100 plain steps, not {draft_cost:g}")
    if not 1 <= context < config.max_position:
        raise ConfigError(f"--context must be within the model's {config.max_position} positions, not {context}")
    passes = []
    for rows, seconds in times.timed:
        work = intensity(config, dtype, rows, context)
        passes.append(
            {
                "rows": rows,
                "ms": 1e3 * seconds,
                "ms_per_row": 1e3 * seconds / rows,
                "to_one_row": seconds / times.timed[0][1],
                "flop_per_byte": work.flops / work.size,
                "gb_per_s": work.size / seconds / 1e9,
                "gflop_per_s": work.flops / seconds / 1e9,
            }
        )
    batches = [batch for batch in BATCHES if batch < times.most_rows]
    ridge = free_rows(times)
    at = intensity(config, dtype, max(round(ridge), 1), context)
    return {
        "passes": passes,
        "ridge": {"rows": ridge, "flop_per_byte": at.flops / at.size},
        "grid": [
            {"batch": batch, "acceptance": rate, "length": found.length, "speed_up": found.speed_up}
            for batch in batches
            for rate in RATES
            for found in [best(times, batch, rate, draft_cost)]
        ],
        "conclusions": [sentence(times, batch, draft_cost) for batch in batches],
    }


def sentence(times: PassTimes, batch: int, draft_cost: float) -> str:
    """Return in words from which acceptance rate on speculation pays for a batch."""
    least = pays_from(times, batch, draft_cost)
    if least is None:
        return f"batch {batch}: does not pay, whatever the acceptance rate"
    return f"batch {batch}: pays from an acceptance rate of {least:.2f} on"
