"""What passes of a few rows cost on this machine, timed at start in a moment."""

from time import perf_counter

from parlay.drafting.controller import Controller
from parlay.drafting.cost import StepCost
from parlay.runner.batch import Stretch, flatten
from parlay.runner.runner import ModelRunner

_ROWS = (1, 2, 4, 8, 16, 32)
_REPEATS = 4  # the first records the pass


def timed_passes(runner: ModelRunner, num_blocks: int, seconds: float = 1.0) -> list[tuple[int, float]]:
    """Return rows and seconds of the target's passes, of as many sizes as `seconds` have room for.

    What they leave in the cache has no name, and is overwritten before it is read.
    """
    found: list[tuple[int, float]] = []
    began = perf_counter()
    for rows in _ROWS:
        blocks = -(-rows // runner.block_size)
        spent = perf_counter() - began
        # One that has yet to come takes about as long as all those before it.
        if blocks > num_blocks or (found and spent + _REPEATS * found[-1][1] > seconds):
            break
        batch = flatten([Stretch((0,) * rows, 0, tuple(range(blocks)))], runner.block_size)
        times = []
        for _ in range(_REPEATS):
            start = perf_counter()
            runner.logits(runner.forward(batch), range(rows))
            times.append(perf_counter() - start)
        found.append((rows, min(times[1:])))
    return found


def measuring_controller(
    runner: ModelRunner, num_blocks: int, rows: int, key_share: float, length: int
) -> Controller:
    """Return a controller that begins with what passes cost here.

    Args:
        runner: the target's.
        num_blocks: of the cache.
        rows: most rows of a step.
        key_share: see `StepCost`.
        length: most nodes of a draft.
    """
    cost = StepCost(rows, key_share)
    cost.learn(timed_passes(runner, num_blocks))
    return Controller(cost, length)
