"""Logits that decide nothing: all equal, infinite or NaN, as overflowed activations leave them."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

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
    result = list(verdicts)
    for i, (span, verdict) in enumerate(zip(spans, verdicts, strict=True)):
        begins = span.start == 0 or len(span.tokens) > 1
        if not verdict.tokens or not (begins or 0 in verdict.tokens):
            continue
        nodes = (ROOT, *verdict.path)  # nodes whose rows the tokens were drawn from
        suspects = {node for node, token in zip(nodes, verdict.tokens, strict=False) if token == 0}
        suspects |= {ROOT} if begins else set()
        root = sum(1 + len(other.draft) for other in spans[:i] if other.sample)
        if not all(_decides(logits[root + 1 + node]) for node in suspects):
            none = None if verdict.logprobs is None else ()
            result[i] = replace(verdict, tokens=(), path=(), logprobs=none, error=_overflow())
    return result


def _decides(row: Tensor) -> bool:
    low, high = (float(bound) for bound in row.aminmax())
    if not low < high:  # NaN counts as minus infinity
        low, high = (float(bound) for bound in row.nan_to_num(-inf, inf, -inf).aminmax())
    return low < high < inf


def _overflow() -> EngineFaultError:
    return EngineFaultError(
        "the model's logits are all equal or NaN: its activations overflow, or its weights are damaged; "
        "try dtype='float32', or another copy of the model"
    )
