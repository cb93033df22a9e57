"""The oracle: plain decoding, one token at a time, as slow and obvious as it gets. For tests.

What verification emits must be what this emits, whatever was drafted.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from parlay.kernels.reference import gumbel_noise, process_row
from parlay.types.params import SamplingParams

Logits = Callable[[tuple[int, ...]], NDArray[np.float32]]


def decode(
    logits: Logits,
    prompt: Sequence[int],
    params: SamplingParams,
    seed: int,
    count: int,
    stop_ids: frozenset[int] = frozenset(),
) -> list[int]:
    """Return up to `count` tokens that follow `prompt`, the one that stops included.

    Args:
        logits: the target: from known tokens to `[vocab]`.
        prompt: token ids.
        params: how tokens are chosen.
        seed: 64-bit, already mixed.
        count: most tokens to emit.
        stop_ids: tokens that end the output.
    """
    known = list(prompt)
    while len(known) < len(prompt) + count:
        known.append(choose(logits(tuple(known)), params, seed, position=len(known)))
        if known[-1] in stop_ids:
            break
    return known[len(prompt) :]


def choose(logits: NDArray[np.float32], params: SamplingParams, seed: int, position: int) -> int:
    """Return the target's own token at `position`; the lowest id wins a tie."""
    if params.temperature == 0:
        return int(np.argmax(logits))
    scores = process_row(logits, params.temperature, params.min_p, params.top_k, params.top_p)
    return int(np.argmax(scores + gumbel_noise(seed, position, len(logits))))
