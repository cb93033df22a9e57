"""Ordered embeddings: logits of few tokens, those of the centroids that are nearest to a state.

The vocabulary is divided into groups of one size, each of which has a centroid. All tokens beyond the groups of the
best centroids get the same logit, below the others'. A large vocabulary is read in part only, which is most of what a
small assistant reads.

Source: transformers' `Gemma4AssistantMaskedEmbedder`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.models.layers import Embedding, Linear
from parlay.runner.graphs import MOST_ROWS
from parlay.weights.weight import Weight


@dataclass(frozen=True, slots=True)
class Centroids:
    """What a config says of centroids.

    Attributes:
        count: number of centroids.
        chosen: number of centroids whose tokens are scored.
    """

    count: int
    chosen: int


class OrderedOutput:
    """Computes such logits."""

    def __init__(
        self,
        kernels: Kernels,
        sizes: Centroids,
        centroids: Weight,
        output: Weight,
        order: Tensor,
        most: int,
        cap: float,
    ) -> None:
        """Arrange the output layer by centroids.

        Args:
            kernels: the operations to run with.
            sizes: number of centroids, and of those that are chosen.
            centroids: `[count, d]`.
            output: `[V, d]`.
            order: int64 `[V]`, the tokens of the first centroid, of the second one, ...
            most: number of tokens that have logits; those behind stand for nothing.
            cap: bound that logits approach; 0 is none.
        """
        self._kernels, self._chosen, self._most, self._cap = kernels, sizes.chosen, most, cap
        self._centroids = Linear(kernels, centroids)
        self._rows = Embedding(kernels, output.chosen(order))
        self._groups = torch.arange(len(order)).view(sizes.count, -1)  # rows of each centroid's tokens
        self._order = order
        self._logits = torch.zeros((MOST_ROWS, len(order)))

    def __call__(self, states: Tensor) -> Tensor:
        """Return float32 logits `[rows, most]` of states `[rows, d]`, valid until the next call."""
        rows, width = states.shape
        scores = states.new_empty((rows, len(self._groups)))
        self._centroids(states, scores)
        best = scores.topk(self._chosen, dim=1).indices
        embedded = states.new_empty((self._chosen * self._groups.shape[1], width))
        for state, groups, out in zip(states, best, self._logits, strict=False):
            places = self._groups[groups].view(-1)
            self._rows(places, embedded)
            logits = embedded.float() @ state.float()
            if self._cap > 0:
                self._kernels.soft_cap(logits[None], self._cap)
            out.fill_(float(logits.min()) - 1)
            out[self._order[places]] = logits
        return self._logits[:rows, : self._most].contiguous()
