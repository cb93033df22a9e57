"""Classical verification (speculative sampling): accepts or rejects sampled draft tokens.

The output has the target's distribution, like plain decoding's, but its tokens are not plain decoding's: they depend
on the draft, and so on draft lengths, which depend on measured times. Log-probabilities are the target's, as always.

A node may be dropped before it is verified only for reasons known before it was drawn. What decides that (the
controller, grammars, the rows available) sees distributions and ancestors, never the node's token; see `Draft.q`.

Drafts that were not drawn (a user's prediction), and requests at temperature 0, are verified by the coupled walk:
such a node has no distribution to correct for, and the walk accepts as much as any exact rule can.

Sources: rejection sampling Leviathan, Kalman, Matias 2023 (arXiv 2211.17192) and Chen et al. 2023 (2302.01318);
several children without replacement Miao et al. 2023 (SpecInfer, 2305.09781) and Chen et al. 2024 (Sequoia,
2402.12374); block verification Sun et al. 2024 (2403.10444).
"""

from math import exp, inf

import torch
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.sampling.distribution import Distribution, Purpose, noise_key, uniforms
from parlay.types.plan import Span, Verdict
from parlay.verification.walk import Walk


def rejection(kernels: Kernels, span: Span, walk: Walk) -> Verdict:
    """Verify a span's draft node by node, in multiple rounds where a node has several children.

    Children of a node are drawn one after another without replacement, in the order of their indices. Each is
    accepted with probability p / q, where p is what is left of the target's distribution and q is the one that it
    was drawn from. If it is rejected, q is subtracted from p, and its token is removed from q.
    """
    below: list[list[int]] = [[] for _ in range(len(span.draft) + 1)]
    for node, parent in enumerate(span.draft.parents):
        below[parent].append(node)
    while (distribution := walk.next_distribution()) is not None:
        children, position, index = below[walk.node], span.end + len(walk.tokens), len(walk.tokens) + 1
        key = noise_key(position, Purpose.ACCEPT, index)
        accepted, left = _round(kernels, span, walk, children, distribution, key)
        if accepted is None:
            walk.draw(left, noise_key(position, Purpose.RESIDUAL, index) if children else position)
            break
        if walk.accept(accepted):
            break
    return walk.verdict


def block(kernels: Kernels, span: Span, walk: Walk) -> Verdict:
    """Verify a chain as a whole, which accepts at least as much of it on average as token by token.

    Requests with a processor are verified token by token: it may only be called with what is emitted.
    """
    if walk.by_path:
        return rejection(kernels, span, walk)
    tokens = span.draft.tokens
    distributions = [own for node in range(len(tokens)) if (own := walk.drawn(node)) is not None]
    # A node that ends the request ends the block: nothing after it can be emitted.
    count = next((i + 1 for i, token in enumerate(tokens) if token in span.stop_ids), len(tokens))
    kept = [1.0]  # the probability that the first i nodes are accepted as far as their own distributions say
    for node in range(count):
        ratio = exp(_log_ratio(walk.after(node - 1), distributions[node], tokens[node]))
        kept.append(min(1.0, kept[-1] * ratio))
    length = 0
    for i in range(1, count + 1):
        wanted = kept[i]
        if i < count:
            more, _ = _excess(kernels, walk.after(i - 1), distributions[i], kept[i])
            wanted = more / (more + 1 - kept[i]) if more + 1 - kept[i] > 0 else 1.0
        key = noise_key(span.end + i - 1, Purpose.ACCEPT, i)
        if uniforms(kernels, span.seed, key, 1)[0] < wanted:  # all are tried, also after rejected ones
            length = i
    for node in range(length):
        if walk.accept(node):
            return walk.verdict
    distribution = walk.after(walk.node)
    if length < count:
        mass, left = _excess(kernels, distribution, distributions[length], kept[length])
        distribution = left if mass > 0 else distribution
    walk.draw(distribution, noise_key(span.end + length, Purpose.RESIDUAL, length + 1))
    return walk.verdict


def _round(
    kernels: Kernels, span: Span, walk: Walk, children: list[int], left: Tensor, key: int
) -> tuple[int | None, Tensor]:
    """Return which of a node's children is accepted, None for none, and the rest of the target's `[V]`."""
    coins = uniforms(kernels, span.seed, key, len(children)) if children else []
    distribution: Distribution | None = None  # of the next child, without its earlier siblings
    for child, coin in zip(children, coins, strict=True):
        token, own = span.draft.tokens[child], walk.drawn(child)
        if own is None:  # not drawn: certain
            if coin < exp(float(left[token])):
                return child, left
            left = _without(kernels, left, token)
            continue
        distribution = distribution or own
        assert distribution is not None
        place = distribution.index_of(token)
        if place is None or float(distribution.logs[place]) == -inf:
            break  # the distribution had no further token, and what stands here was not drawn
        if coin < exp(min(_log_ratio(left, distribution, token), 0.0)):
            return child, left
        mass, rest = _excess(kernels, left, distribution, 1.0)
        if not mass > 0:  # the distributions are the same
            return child, left
        left = _normalised(kernels, rest)
        distribution = Distribution(_without(kernels, distribution.logs, place), distribution.ids)
        if float(distribution.logs.max()) == -inf:
            break
    return None, left


def _log_ratio(target: Tensor, distribution: Distribution, token: int) -> float:
    """Return the log of how much likelier a drawn token is to the target; -inf where it is impossible."""
    place = distribution.index_of(token)
    own = -inf if place is None else float(distribution.logs[place])
    wanted = float(target[token])
    return wanted - own if wanted > -inf and own > -inf else -inf


def _excess(kernels: Kernels, target: Tensor, distribution: Distribution, scale: float) -> tuple[float, Tensor]:
    """Return what is left of the target's distribution `[V]` times `scale` after a rejection: its sum and logs."""
    out, mass = torch.empty((1, len(target))), torch.empty(1, dtype=torch.float64)
    scales = torch.tensor([scale], dtype=torch.float64)
    kernels.excess(target[None], distribution.logs[None], scales, mass, out, distribution.ids)
    return float(mass[0]), out[0]


def _without(kernels: Kernels, logs: Tensor, place: int) -> Tensor:
    """Return a distribution that never gives the token at `place`; all -inf where it gives no other."""
    rest = logs.clone()
    rest[place] = -inf
    return _normalised(kernels, rest) if float(rest.max()) > -inf else rest


def _normalised(kernels: Kernels, logs: Tensor) -> Tensor:
    out = torch.empty((1, len(logs)))
    kernels.log_softmax(logs[None], out)
    return out[0]
