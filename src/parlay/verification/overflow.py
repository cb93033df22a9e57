"""Logits that decide nothing: all equal, infinite or NaN, as overflowed activations leave them."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import torch
from torch import Tensor

from parlay.errors import EngineFaultError
from parlay.types.draft import ROOT
from parlay.types.plan import Span, Verdict


def refuse_overflow(spans: Sequence[Span], logits: Tensor, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts, with an error in place of tokens that were drawn from logits that decide nothing.

    Looking at every row would cost time in every step. A greedy choice among equals is token 0, as is every choice
    among no numbers, so the rows of this token are looked at, and the first row of a request.

    Args:
        spans: the step's spans.
        logits: `[rows, vocab]` float32, as for `coupled.verify`.
        verdicts: one verdict per span.
    """
    suspects: list[tuple[int, int]] = []  # spans, and rows of their logits
    root = 0
    for i, (span, verdict) in enumerate(zip(spans, verdicts, strict=True)):
        begins = span.start == 0 or len(span.tokens) > 1
        if verdict.tokens and (begins or 0 in verdict.tokens):
            nodes = zip((ROOT, *verdict.path), verdict.tokens, strict=False)  # whose rows the tokens were drawn from
            own = {node for node, token in nodes if token == 0} | ({ROOT} if begins else set())
            suspects += ((i, root + 1 + node) for node in own)
        root += 1 + len(span.draft) if span.sample else 0
    result = list(verdicts)
    if not suspects:
        return result
    bounds = torch.stack([_bounds(logits[row]) for _, row in suspects]).tolist()  # one copy, from a GPU
    for (i, _), (low, high) in zip(suspects, bounds, strict=True):
        if not low < high < inf:
            none = None if verdicts[i].logprobs is None else ()
            result[i] = replace(verdicts[i], tokens=(), path=(), logprobs=none, error=_overflow())
    return result


def _bounds(row: Tensor) -> Tensor:
    """Return the lowest and the highest of logits `[vocab]`, of which NaN counts as minus infinity."""
    return torch.stack(row.nan_to_num(-inf, inf, -inf).aminmax())


def _overflow() -> EngineFaultError:
    return EngineFaultError(
        "the model's logits are all equal or NaN: its activations overflow, or its weights are damaged; "
        "try dtype='float32', or another copy of the model"
    )
