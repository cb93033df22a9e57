"""Coupled verification: walk the tree along the target's own choices.

At each node the target's token is drawn with noise keyed by (seed, position, token id), exactly as plain decoding
would draw it there. If a child carries that token the walk steps into it, else it stops. What is emitted is
therefore what plain decoding emits, for any tree from any proposer.

Source: Daliri, Musco, Suresh 2024 (arXiv 2408.07978), "Coupling without Communication and Drafter-Invariant
Speculative Decoding", extended from chains to trees.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.sampling.sampler import draw, filter_rows, seed_tensor, token_logprobs
from parlay.types.draft import ROOT
from parlay.types.plan import Span, TokenLogprobs, Verdict
from parlay.verify.tree import children, depths


def verify(kernels: Kernels, spans: Sequence[Span], logits: Tensor) -> list[Verdict]:
    """Decide every span of a step.

    Args:
        kernels: the operations to run with.
        spans: the plan's spans in order.
        logits: `[rows, vocab]` float32: for each span that samples, the root's row and one row a node.

    Returns:
        One verdict a span; empty for spans that do not sample.
    """
    choices = _Choices(kernels, spans, logits)
    verdicts = []
    first_row = 0
    for span in spans:
        if span.sample:
            verdicts.append(_walk(span, first_row, choices, logits))
            first_row += 1 + len(span.draft)
        else:
            verdicts.append(Verdict())
    return verdicts


def _walk(span: Span, first_row: int, choices: "_Choices", logits: Tensor) -> Verdict:
    below = children(span.draft)
    asked = span.params.logprobs
    tokens: list[int] = []
    path: list[int] = []
    logprobs: list[TokenLogprobs] = []
    node: int | None = ROOT
    while node is not None:
        row = first_row + 1 + node  # the root's row comes first, and ROOT is -1
        token = choices.at(row, span, len(path))
        tokens.append(token)
        if asked is not None:
            logprobs.append(token_logprobs(logits[row], token, asked))
        node = below[node].get(token)
        if node is not None:
            path.append(node)
        if token in span.stop_ids or len(tokens) == span.remaining:
            break
    return Verdict(tuple(tokens), tuple(path), None if asked is None else tuple(logprobs))


class _Choices:
    """The target's choice at any row of a step.

    Rows whose distribution is unfiltered are drawn in one call. Filtered rows are drawn when the walk reaches them:
    most nodes of a tree are never reached, and processing a row costs more than drawing from it.
    """

    def __init__(self, kernels: Kernels, spans: Sequence[Span], logits: Tensor) -> None:
        self._kernels = kernels
        self._logits = logits
        self._drawn: list[int] = []
        rows = [(span, depth) for span in spans if span.sample for depth in (0, *depths(span.draft))]
        if all(span.params.filters for span, _ in rows):
            return
        drawn = draw(
            kernels,
            logits,
            # A filtered row's draw is thrown away here; at temperature 0 it is the cheapest.
            torch.tensor([0.0 if s.params.filters else s.params.temperature for s, _ in rows], dtype=torch.float32),
            seed_tensor([span.seed for span, _ in rows]),
            torch.tensor([span.end + depth for span, depth in rows]),
        )
        self._drawn = drawn.tolist()

    def at(self, row: int, span: Span, depth: int) -> int:
        if not span.params.filters:
            return self._drawn[row]
        scores = filter_rows(self._logits[row : row + 1].clone(), [span.params])
        position = torch.tensor([span.end + depth])
        return int(draw(self._kernels, scores, torch.ones(1), seed_tensor([span.seed]), position))
