"""What depends on the machine and changes no bits, measured where it runs: how far ahead to ask for weights.

Some processors prefetch the one stream of weights by themselves, others do not, so a compiled-in choice would fit
only some. Measured once for each processor, instruction set and number of threads, in less than a second, and saved
in a cache file.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from time import perf_counter

import torch

from parlay import system
from parlay.cache_file import CacheFile
from parlay.kernels.base import Kernels
from parlay.kernels.huge_pages import empty_huge
from parlay.kernels.linear import LinearWeight
from parlay.log import logger
from parlay.weights.kinds import BY_NAME, Kind
from parlay.weights.weight import Part, Weight

_BYTES = 96 << 20  # of weights: more than caches hold
_INPUTS, _OUTPUTS = 2048, 1024
_ROUNDS = 6  # of each choice, interleaved
_GAIN = 0.97  # of the usual choice's time, below which another is clearly faster
_FEW_ROWS = (1, 2, 3, 5, 8)
_AHEAD = (2048, 6144, 10240)
_BLOCKS_AHEAD = (0, 4096, 10240)


@dataclass(frozen=True, slots=True)
class Prefetching:
    """What to ask for before it is needed.

    Attributes:
        few_rows: up to which the processor's own prefetching serves best for plain numbers.
        ahead: bytes from the numbers that are read to those that are asked for.
        blocks: the same of blocks; 0 for none.
    """

    few_rows: int = 5
    ahead: int = 6144
    blocks: int = 10240


def tune(kernels: Kernels, threads: int) -> None:
    """Set how far ahead kernels prefetch, from the cache file or by measuring.

    Args:
        kernels: the kernels in use, with their threads set.
        threads: number of these threads.
    """
    if kernels.prefetch is None:
        return
    cache = CacheFile("prefetching", 2)
    setting = " ".join((kernels.name, str(threads), *system.processor()))
    known = cache.read()
    if setting in known:
        found = Prefetching(**known[setting])
    else:
        found = measure(kernels)
        logger.info("kernels: %s", found)
        with cache.changing() as entries:
            entries[setting] = asdict(found)
    kernels.prefetch(found.few_rows, found.ahead, found.blocks)


def measure(kernels: Kernels) -> Prefetching:
    """Return what is best here."""
    ahead, few_rows = _for_numbers(kernels)
    return Prefetching(few_rows, ahead, _for_blocks(kernels))


def _for_numbers(kernels: Kernels) -> tuple[int, int]:
    """Return how far ahead, and up to how many rows it is better left alone."""
    weights, usual = _weights(kernels, torch.bfloat16), Prefetching()

    def choice(rows: int, few_rows: int, ahead: int) -> Callable[[], float]:
        return partial(_seconds, kernels, weights, rows, Prefetching(few_rows, ahead, usual.blocks))

    ahead = _AHEAD[_best([choice(_FEW_ROWS[-1], 0, ahead) for ahead in _AHEAD], _AHEAD.index(usual.ahead))]
    few_rows = 0
    for rows in _FEW_ROWS:
        if _best([choice(rows, rows, ahead), choice(rows, 0, ahead)], 0):
            break
        few_rows = rows
    return ahead, few_rows


def _for_blocks(kernels: Kernels) -> int:
    weights, usual = _weights(kernels, BY_NAME["Q4_1"]), Prefetching()
    choices = [partial(_seconds, kernels, weights, 1, replace(usual, blocks=ahead)) for ahead in _BLOCKS_AHEAD]
    return _BLOCKS_AHEAD[_best(choices, _BLOCKS_AHEAD.index(usual.blocks))]


def _best(choices: Sequence[Callable[[], float]], usual: int) -> int:
    """Return which choice takes the least time; `usual` unless another one is clearly faster in every round.

    The choice is stored for later starts, and other programs may run while it is measured: one round proves nothing.
    """
    rounds = [[run() for run in choices] for _ in range(_ROUNDS)]
    faster = [i for i in range(len(choices)) if all(times[i] < _GAIN * times[usual] for times in rounds)]
    return min(faster, key=lambda i: sum(times[i] for times in rounds), default=usual)


def _weights(kernels: Kernels, form: torch.dtype | Kind) -> list[LinearWeight]:
    """Return packed weights that fill more than the caches; what they hold is no matter."""
    if isinstance(form, Kind):
        row = _INPUTS // form.block * form.size
        one = Weight((Part(form, empty_huge((_OUTPUTS, row), torch.uint8).fill_(7)),))
    else:
        row = _INPUTS * form.itemsize
        one = Weight.of(empty_huge((_OUTPUTS, _INPUTS), form).fill_(0.5))
    return [kernels.pack_linear(one) for _ in range(_BYTES // (_OUTPUTS * row))]


def _seconds(kernels: Kernels, weights: Sequence[LinearWeight], rows: int, how: Prefetching) -> float:
    assert kernels.prefetch is not None
    kernels.prefetch(how.few_rows, how.ahead, how.blocks)
    x = torch.ones((rows, _INPUTS), dtype=torch.bfloat16)
    out = torch.empty((rows, _OUTPUTS), dtype=torch.bfloat16)
    began = perf_counter()
    for weight in weights:
        kernels.linear(x, weight, out)
    return perf_counter() - began
