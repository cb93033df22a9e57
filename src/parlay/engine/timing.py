"""What passes of a few rows cost on this machine, timed at start in a moment."""

from collections.abc import Sequence
from time import perf_counter

from parlay.runner.batch import Stretch, flatten
from parlay.runner.runner import ModelRunner

_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_ROUNDS = 12


def timed_passes(
    runner: ModelRunner, num_blocks: int, seconds: float = 1.0, sizes: Sequence[int] = _ROWS
) -> list[tuple[int, float]]:
    """Return rows and seconds of the target's passes, of as many of the `sizes` as `seconds` have room for.

    Sizes take turns, and of each the quickest counts, so that a neighbour's burst hits none alone. What they leave in
    the cache has no name, and is overwritten before it is read.
    """
    quickest: dict[int, float] = {}
    end = perf_counter() + seconds
    for turn in range(_ROUNDS):
        for rows in sizes:
            blocks = -(-rows // runner.block_size)
            # A larger pass takes at most so much longer than the one before it.
            if blocks > num_blocks or perf_counter() + 2 * quickest.get(rows // 2, 0.0) > end:
                break
            batch = flatten([Stretch((0,) * rows, 0, tuple(range(blocks)))], runner.block_size)
            began = perf_counter()
            runner.logits(runner.forward(batch), range(rows))
            took = perf_counter() - began
            # The first records the pass, and counts only where there is no time for another.
            quickest[rows] = min(took, quickest[rows]) if turn > 1 else took
    return sorted(quickest.items())
