"""The time of passes of a few rows on this machine, measured at start."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count, cycle, islice
from time import perf_counter

from parlay.runner.batch import Segment, flatten
from parlay.runner.runner import ModelRunner
from parlay.sampling.sampler import SamplingMetadata
from parlay.types.plan import NO_STATES, StateUse

_ROWS = (1, 8, 2, 16, 4, 32, 12, 6, 24, 3)  # the most informative first: there may be no time for all
MOST_TIMED = max(_ROWS)
_ROUNDS = 12
_FIRST = 5.0  # time of a size's first pass, which is recorded, in multiples of the usual one
_SPREAD = (5**0.5 - 1) / 2  # multiples of the golden ratio lie evenly between 0 and 1, however many there are


def timed_passes(
    runner: ModelRunner,
    num_blocks: int,
    seconds: float = 1.0,
    sizes: Sequence[int] = _ROWS,
    clock: Callable[[], float] = perf_counter,
    of: Callable[[Sequence[float]], float] = min,
) -> list[tuple[int, float]]:
    """Return rows and seconds of the target's passes, of as many of the `sizes` as `seconds` have room for.

    Sizes take turns, and of each the quickest counts, or what `of` returns, so that a short load on the machine does
    not distort one of them. Their tokens are spread over the vocabulary: rows of one token would all choose the same
    experts of a mixture, and those of the pass before, while the rows of a text read many. The first pass of a size
    is recorded, and the next, at other positions, may check that: they take longer, and do not count. The blocks that
    passes write are not in the prefix cache, and are overwritten before they are read.
    """
    times: dict[int, list[float]] = {}
    end = clock() + seconds
    tokens, starts = _spread(runner.model.config.vocab_size), cycle((0, 1))
    # As in a step, a state is read and another one is stored; both are overwritten before a request reads them.
    states = {rows: StateUse(0, stores=((rows, 1),)) if runner.room.slots > 1 else NO_STATES for rows in sizes}

    def blocks_of(rows: int) -> int:
        return -(-(rows + 1) // runner.block_size)

    def run(rows: int) -> float:
        blocks = tuple(range(blocks_of(rows)))
        segment = Segment(tuple(islice(tokens, rows)), next(starts), blocks, states=states[rows])
        batch = flatten([segment], runner.block_size, recurrent=runner.recurrent)
        began = clock()
        hidden = runner.forward(batch, SamplingMetadata.greedy(rows) if runner.draws(rows) else None)
        if runner.drawn(range(rows)) is None:
            runner.logits(hidden, range(rows))[:1, :1].tolist()  # a GPU is done then
        return clock() - began

    def timed(rows: int) -> float:
        recordings = runner.recordings
        took = run(rows)
        return took if runner.recordings == recordings else run(rows)

    for _ in range(_ROUNDS):
        for rows in sizes:
            if blocks_of(rows) > num_blocks:
                continue
            # A larger pass takes at most in proportion longer than a smaller one.
            most = min((min(took) * max(rows / own, 1.0) for own, took in times.items()), default=0.0)
            new = rows not in times
            if clock() + most * (1.0 + _FIRST if new else 1.0) > end:
                continue
            if new:
                run(rows)
            times.setdefault(rows, []).append(timed(rows))
    return sorted((rows, of(took)) for rows, took in times.items())


def _spread(vocab_size: int) -> Iterator[int]:
    """Yield tokens of all the vocabulary, the same in every run."""
    return (int(i * _SPREAD % 1.0 * vocab_size) for i in count(1))
