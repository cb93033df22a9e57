"""Whether tokens are sampled with the model's probabilities: chi-square tests of an engine's samples.

The exact distribution comes from log-probabilities that the engine reports for one request alone. Under speculation
the tokens of the second test are accepted draft tokens, where the model finds them likely.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import exp, sqrt
from typing import Any

from parlay.llm import LLM
from parlay.types.params import SamplingParams

_LENGTH = 4  # tokens of each completion, so that there is something to draft
_LEAST = 10.0  # expected draws of a cell; rarer tokens are one cell together
_FEWEST = 100  # draws of a test
_TOP = 20  # tokens whose probability is known
_MOST = 4.0  # standard deviations from what is expected; one test in thirty thousand exceeds it by chance


def check_distribution(llm: LLM, prompt: str | Sequence[int], draws: int) -> Iterator[dict[str, Any]]:
    """Yield a row for the first token after a prompt, and for the second and third after the likeliest before them.

    Args:
        llm: the engine that draws, at temperature 1.
        prompt: text or token ids.
        draws: completions with a seed each.
    """
    tokens = llm.engine.encode(prompt)
    params = [
        SamplingParams(temperature=1.0, seed=seed, max_tokens=_LENGTH, ignore_eos=True) for seed in range(draws)
    ]
    outputs = [output.outputs[0] for output in llm.generate([list(tokens)] * draws, params, use_tqdm=False)]
    found, accepted = [one.token_ids for one in outputs], sum(one.metrics.accepted for one in outputs)
    ((begins, _),) = Counter(drawn[:2] for drawn in found).most_common(1)
    for known in ((), begins[:1], begins):
        counts = Counter(drawn[len(known)] for drawn in found if drawn[: len(known)] == known)
        if counts.total() >= _FEWEST:
            yield {
                "parameters": f"token {len(known) + 1}",
                "accepted": accepted,
                **_test(counts, _likeliest(llm, (*tokens, *known))),
            }


def _likeliest(llm: LLM, context: Sequence[int]) -> dict[int, float]:
    """Return the probabilities of the likeliest next tokens."""
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=_TOP, ignore_eos=True)
    (output,) = llm.generate(list(context), params, use_tqdm=False)
    assert output.outputs[0].logprobs is not None
    return {token: exp(entry.logprob) for token, entry in output.outputs[0].logprobs[0].items()}


def _test(counts: Counter[int], probabilities: dict[int, float]) -> dict[str, Any]:
    """Compare counts with a distribution, of which only some tokens are known."""
    draws = counts.total()
    cells = {token: p for token, p in probabilities.items() if p * draws >= _LEAST}
    expected = [p * draws for p in cells.values()]
    seen = [counts[token] for token in cells]
    others = draws - sum(expected)
    if others >= _LEAST:
        expected.append(others)
        seen.append(draws - sum(seen))
    square = sum((a - b) ** 2 / b for a, b in zip(seen, expected, strict=True))
    free = max(len(expected) - 1, 1)
    # Wilson and Hilferty 1931: the cube root of chi-square over its degrees of freedom is nearly normal.
    deviation = ((square / free) ** (1 / 3) - (1 - 2 / (9 * free))) / sqrt(2 / (9 * free))
    good = deviation < _MOST
    return {
        "draws": draws,
        "cells": len(expected),
        "chi_square": square,
        "deviation": deviation,
        "same": good,
        "difference": None if good else f"chi-square {square:.1f} of {free} degrees of freedom",
    }
