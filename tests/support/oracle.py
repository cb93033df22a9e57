"""The oracle: plain decoding, one token at a time, in the simplest form.

Verification must emit what this emits, for any draft.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from parlay.kernels.reference_noise import gumbel_noise
from parlay.kernels.reference_sampling import process_row
from parlay.types.params import SamplingParams

Logits = Callable[[tuple[int, ...]], NDArray[np.float32]]


def decode(
    logits: Logits,
    prompt: Sequence[int],
    params: SamplingParams,
    seed: int,
    count: int,
    stop_ids: frozenset[int] = frozenset(),
    bad_words: Sequence[Sequence[int]] = (),
    eos: frozenset[int] = frozenset(),
) -> list[int]:
    """Return up to `count` tokens that follow `prompt`, the one that stops included.

    Args:
        logits: the target: from known tokens to `[vocab]`.
        prompt: token ids.
        params: how tokens are chosen.
        seed: 64-bit, already mixed.
        count: most tokens to emit.
        stop_ids: tokens that end the output.
        bad_words: tokens of `params.bad_words`.
        eos: end-of-sequence tokens, which `min_tokens` forbids as it does `params.stop_token_ids`.
    """
    known = list(prompt)
    while len(known) < len(prompt) + count:
        row = edit(logits(tuple(known)), params, prompt, known[len(prompt) :], bad_words, eos)
        known.append(choose(row, params, seed, position=len(known)))
        if known[-1] in stop_ids:
            break
    return known[len(prompt) :]


def edit(
    logits: NDArray[np.float32],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    bad_words: Sequence[Sequence[int]] = (),
    eos: frozenset[int] = frozenset(),
) -> NDArray[np.float32]:
    """Return what penalties, bias, the user's processors and masks make of logits `[vocab]`, token by token."""
    row = logits.copy()
    for token in range(len(row)):
        occurrences = np.float32(list(output).count(token))
        if token in prompt or occurrences:
            repetition = np.float32(params.repetition_penalty)
            row[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
        if occurrences:
            row[token] -= np.float32(params.frequency_penalty) * occurrences
            row[token] -= np.float32(params.presence_penalty)
        if params.logit_bias and token in params.logit_bias:
            row[token] += np.float32(params.logit_bias[token])
    for function in params.logits_processors:
        row = function(list(output), torch.from_numpy(row)).numpy()
    for token in range(len(row)):
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            row[token] = -np.inf
        if len(output) < params.min_tokens and (token in eos or token in params.stop_token_ids):
            row[token] = -np.inf
    without = row.copy()
    for word in bad_words:
        if list(output)[len(output) - (len(word) - 1) :] == list(word[:-1]) and len(output) >= len(word) - 1:
            without[word[-1]] = -np.inf
    return without if without.max() > -np.inf else row


def choose(logits: NDArray[np.float32], params: SamplingParams, seed: int, position: int) -> int:
    """Return the target's own token at `position`; the lowest id wins a tie."""
    if params.temperature == 0:
        return int(np.argmax(logits))
    scores = process_row(logits, params.temperature, params.min_p, params.top_k, params.top_p)
    return int(np.argmax(scores + gumbel_noise(seed, position, len(logits))))
