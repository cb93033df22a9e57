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
from parlay.sampling.sampler import (
    draw,
    filter_tensors,
    seed_tensor,
    temperature_tensor,
    token_logprobs,
)
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
    choices = _choices(kernels, [span for span in spans if span.sample], logits)
    verdicts = []
    first_row = 0
    for span in spans:
        if span.sample:
            verdicts.append(_walk(span, first_row, choices, logits))
            first_row += 1 + len(span.draft)
        else:
            verdicts.append(Verdict())
    return verdicts


def _walk(span: Span, first_row: int, choices: Sequence[int], logits: Tensor) -> Verdict:
    below = children(span.draft)
    asked = span.params.logprobs
    tokens: list[int] = []
    path: list[int] = []
    logprobs: list[TokenLogprobs] = []
    node: int | None = ROOT
    while node is not None:
        row = first_row + 1 + node  # the root's row comes first, and ROOT is -1
        token = choices[row]
        tokens.append(token)
        if asked is not None:
            logprobs.append(token_logprobs(logits[row], token, asked))
        node = below[node].get(token)
        if node is not None:
            path.append(node)
        if token in span.stop_ids or len(tokens) == span.remaining:
            break
    return Verdict(tuple(tokens), tuple(path), None if asked is None else tuple(logprobs))


def _choices(kernels: Kernels, spans: Sequence[Span], logits: Tensor) -> list[int]:
    """Return the target's choice at every row of a step.

    In one call that threads share. Nodes that the walk does not reach are drawn for nothing, but a draw is little
    beside the node's logits.
    """
    params = [span.params for span in spans for _ in range(1 + len(span.draft))]
    seeds = [span.seed for span in spans for _ in range(1 + len(span.draft))]
    positions = [span.end + depth for span in spans for depth in (0, *depths(span.draft))]
    drawn = draw(
        kernels,
        logits,
        temperature_tensor(params),
        seed_tensor(seeds),
        torch.tensor(positions, dtype=torch.int64),
        filter_tensors(params),
    )
    return drawn.tolist()
