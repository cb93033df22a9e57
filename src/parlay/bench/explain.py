"""Where speculation pays on this machine: the cost of passes, their arithmetic, and what follows.

With a chain of k nodes, each accepted with probability a if the one before it was, a step emits

    l(a, k) = (1 - a^(k+1)) / (1 - a)

tokens for each request. It pays where that outweighs the cost of the step's further rows. The best k is the one that
a controller that knew a would choose; rows beyond the largest pass that was timed are not considered.

Sources: Leviathan, Kalman, Matias 2023 (arXiv 2211.17192) for l; `parlay.drafting.goodput` for the choice.
"""

from dataclasses import dataclass
from typing import Any

import torch

from parlay.bench.costs import Costs
from parlay.bench.work import Work, widths, work_of
from parlay.drafting.goodput import best_draft
from parlay.errors import ConfigError
from parlay.models.config import ModelConfig
from parlay.types.draft import Draft
from parlay.types.params import SamplingParams
from parlay.types.plan import Span

BATCHES = (1, 2, 4, 8, 16, 32)
ACCEPTANCES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LONGEST = 16  # nodes of a chain
_FINE = [i / 100 for i in range(1, 100)]  # acceptances among which the least that pays is searched


@dataclass(frozen=True, slots=True)
class Best:
    """The best chain of every request of a batch.

    Attributes:
        length: nodes; 0 where plain decoding is best.
        speed_up: tokens per second, to plain decoding's.
    """

    length: int
    speed_up: float


def emitted(acceptance: float, length: int) -> float:
    """Return how many tokens a request emits in a step with a chain of so many nodes, on average."""
    if acceptance == 1:
        return length + 1.0
    return (1 - acceptance ** (length + 1)) / (1 - acceptance)


def best(costs: Costs, batch: int, acceptance: float, draft_cost: float = 0.0) -> Best:
    """Return the best chain length and what it gains.

    Args:
        costs: of passes.
        batch: requests at once.
        acceptance: of a node, given that its parent was accepted.
        draft_cost: of a node for each of them, as a share of the target's plain step.
    """
    table = [costs.seconds(rows) for rows in range(costs.passes[-1][0] + 1)]
    if batch >= len(table):
        return Best(0, 1.0)
    plain = table[batch]
    drafting = [draft_cost * plain * length for length in range(LONGEST + 1)]
    length, _ = best_draft([acceptance] * LONGEST, batch, batch, table, drafting)
    return Best(length, emitted(acceptance, length) * plain / (table[batch * (1 + length)] + drafting[length]))


def pays_from(costs: Costs, batch: int, draft_cost: float = 0.0) -> float | None:
    """Return the least acceptance, in hundredths, from which speculation pays for a batch; None if none is enough."""
    return next((a for a in _FINE if best(costs, batch, a, draft_cost).length), None)


def free_rows(costs: Costs) -> float:
    """Return the ridge: the rows whose arithmetic takes as long as the least time of a pass.

    Below, further rows are nearly free; above, each costs its arithmetic. A row's arithmetic is the time per row of
    the larger half of the passes that were timed.
    """
    (few, less), (many, more) = costs.passes[len(costs.passes) // 2 - 1], costs.passes[-1]
    each = (more - less) / (many - few)
    return costs.seconds(1) / each if each > 0 else float(many)


def intensity(config: ModelConfig, dtype: torch.dtype, rows: int, context: int) -> Work:
    """Return what a pass of one request's root and `rows` - 1 nodes reads and computes, after `context` tokens."""
    draft = Draft.chain([0] * (rows - 1), "guess")
    span = Span(0, (0,), context, (), 0, SamplingParams().draw, draft=draft, sample=True)
    return sum(work_of(config, dtype, [span], widths(config, dtype)).values(), Work())


def explain(costs: Costs, config: ModelConfig, dtype: torch.dtype, draft_cost: float, context: int) -> dict[str, Any]:
    """Return `passes`, the `ridge`, the `grid` of best lengths and speed-ups, and a sentence for each batch size.

    Args:
        costs: of passes that were timed.
        config: of the model.
        dtype: of its weights.
        draft_cost: as in `best`.
        context: tokens before a step, for the arithmetic intensity.

    Raises:
        ConfigError: an invalid draft cost, or a context beyond the model's.
    """
    if not 0 <= draft_cost < 100:
        raise ConfigError(f"the draft cost is a share of a step of the target, 0 or more, not {draft_cost:g}")
    if not 1 <= context < config.max_position:
        raise ConfigError(f"the context must be within the model's {config.max_position} positions, not {context}")
    first = costs.passes[0][1]
    passes = []
    for rows, seconds in costs.passes:
        work = intensity(config, dtype, rows, context)
        passes.append(
            {
                "rows": rows,
                "ms": 1e3 * seconds,
                "ms_per_row": 1e3 * seconds / rows,
                "to_one_row": seconds / first,
                "flop_per_byte": work.flops / work.size,
                "gb_per_s": work.size / seconds / 1e9,
                "gflop_per_s": work.flops / seconds / 1e9,
            }
        )
    grid = [
        {"batch": batch, "acceptance": a, "length": found.length, "speed_up": found.speed_up}
        for batch in BATCHES
        if batch < costs.passes[-1][0]
        for a in ACCEPTANCES
        for found in [best(costs, batch, a, draft_cost)]
    ]
    ridge = free_rows(costs)
    at = intensity(config, dtype, max(round(ridge), 1), context)
    batches = dict.fromkeys(cell["batch"] for cell in grid)
    return {
        "passes": passes,
        "ridge": {"rows": ridge, "flop_per_byte": at.flops / at.size},
        "grid": grid,
        "conclusions": [sentence(costs, int(batch), draft_cost) for batch in batches],
    }


def sentence(costs: Costs, batch: int, draft_cost: float) -> str:
    """Return in words from which acceptance on speculation pays for a batch."""
    least = pays_from(costs, batch, draft_cost)
    if least is None:
        return f"batch {batch}: does not pay, whatever the acceptance"
    return f"batch {batch}: pays from an acceptance of {least:.2f} on"
