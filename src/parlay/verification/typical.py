"""Typical acceptance: nodes are accepted if the target finds them likely enough. Lossy: it changes the distribution.

A node is accepted if its probability is above min(threshold, alpha e^-entropy) of the target's distribution there;
the longest path of such nodes is emitted, and after it one token from the target's own distribution. At temperature 0
it is the coupled walk, which is lossless.

Source: Cai et al. 2024 (Medusa, arXiv 2401.10774), section 2.3.1, with its posterior threshold and alpha.
"""

from math import log

import numpy as np
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.kernels.reference_sampling import decay
from parlay.types.draft import ROOT
from parlay.types.draft_tree import children
from parlay.types.plan import Span, Verdict
from parlay.verification.walk import Walk

THRESHOLD, ALPHA = 0.09, 0.3


def typical(
    kernels: Kernels, span: Span, walk: Walk, *, threshold: float = THRESHOLD, alpha: float = ALPHA
) -> Verdict:
    """Verify a span's draft; see above.

    A request with a processor takes the first likely child of each node: it may only be called with what is emitted.
    """
    below = children(span.draft)

    def likely(node: int, distribution: Tensor) -> list[int]:
        least = min(log(threshold), log(alpha) - entropy(distribution))
        return [child for token, child in below[node].items() if float(distribution[token]) > least]

    def longest(node: int) -> list[int]:
        paths = [[child, *longest(child)] for child in likely(node, walk.after(node))]
        return max(paths, key=len, default=[])

    ahead = [] if walk.by_path else longest(ROOT)
    while (distribution := walk.next_distribution()) is not None:
        found = likely(walk.node, distribution) if walk.by_path else ahead[len(walk.tokens) :]
        if not found:
            walk.draw(distribution, span.end + len(walk.tokens))
            break
        if walk.accept(found[0]):
            break
    return walk.verdict


def entropy(distribution: Tensor) -> float:
    """Return the entropy of log-probabilities `[V]`, the same bits on every machine.

    Each token's share is counted in units, as in the kernels: shares below e^-29 count as nothing, and the sum is
    one of integers, which does not depend on order.
    """
    logs = distribution.numpy()
    logs = np.minimum(logs[logs > np.float32(-29)], np.float32(0))
    shares = decay(logs).astype(np.float64) * -logs.astype(np.float64)
    return float(np.rint(shares * 2.0**42).astype(np.int64).sum()) / 2.0**42
