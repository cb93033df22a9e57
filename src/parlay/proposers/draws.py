"""How draft heads draw their nodes: with the noise of the target's choices that they try to predict.

A node is accepted if the target draws the same token. So a head samples as the target does, from its own
distribution, at the request's temperature and with its filters, with the noise of the request and position (Daliri,
Musco, Suresh 2024, arXiv 2408.07978). Its likeliest token would be accepted only as often as the target samples that
token; at temperature 0 the two are the same.

Classical verification needs the opposite: private noise, and the distribution that each node was drawn from.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from parlay.kernels.base import Filters, Kernels
from parlay.kernels.uploads import Uploads
from parlay.sampling.distribution import Distribution, Purpose, noise_key
from parlay.sampling.sampler import filter_tensors, seed_tensor, temperature_tensor
from parlay.types.plan import Span


class Draws:
    """The noise and filters of the requests that draft together, in memory that recordings may keep.

    Attributes:
        filtered: whether any of them filters. Passes are recorded once with filters and once without.
        private: whether they draw with private noise, and distributions are kept. Recorded separately too.
    """

    def __init__(self, steps: int, rows: int, uploads: Uploads) -> None:
        """Allocate for drafts of so many tokens and so many requests, which are written by `uploads`."""
        self._uploads = uploads
        self.filtered = self.private = False
        self._steps, self._distributions = steps, torch.empty(0)
        self._rows = rows
        self._temperatures, self._seeds = torch.zeros(rows), torch.zeros(rows, dtype=torch.int64)
        self._positions = torch.zeros((steps, rows), dtype=torch.int64)
        self._ahead = np.arange(steps)[:, None]
        self._streams = np.array([noise_key(0, Purpose.DRAFT, step + 1) for step in range(steps)])[:, None]
        self._filters = Filters(
            torch.zeros(rows, dtype=torch.float64),
            torch.zeros(rows, dtype=torch.int64),
            torch.ones(rows, dtype=torch.float64),
        )

    def prepare(self, spans: Sequence[Span], positions: Sequence[int], *, private: bool = False) -> None:
        """Set which requests draft, the position of each one's first node, and whether distributions are kept."""
        self.private = private
        params, rows = [span.params for span in spans], len(spans)
        write = self._uploads.write
        write(self._temperatures[:rows], temperature_tensor(params))
        write(self._seeds[:rows], seed_tensor([span.seed for span in spans]))
        filters = filter_tensors(params)
        keys = np.array(positions)[None] + self._ahead
        write(self._positions[:, :rows], keys + self._streams if private else keys)
        self.filtered = filters is not None
        if filters is not None:
            write(self._filters.min_p[:rows], filters.min_p)
            write(self._filters.top_k[:rows], filters.top_k)
            write(self._filters.top_p[:rows], filters.top_p)

    def shift(self, ahead: Tensor) -> None:
        """Have the requests that were prepared start later, by so many tokens each, int64 `[rows]`."""
        self._positions[:, : len(ahead)] += ahead

    def draw(
        self, kernels: Kernels, step: int, logits: Tensor, tokens: Tensor, probs: Tensor, ids: Tensor | None = None
    ) -> None:
        """Draw node `step` of the leading requests, or several children of each, by kernels alone.

        Args:
            kernels: the operations to run with.
            step: index of the draft's token, counted from 0.
            logits: float32 `[rows, D]`.
            tokens: int64 `[rows]` or `[rows, children]`, written: ids of the target's vocabulary.
            probs: float32 of the same shape, written: their probabilities to the head.
            ids: int64 `[D]`, the target's ids of the head's vocabulary; None where they are the same.
        """
        rows = len(logits)
        filters = self._filters.first(rows) if self.filtered else None
        noise = self._temperatures[:rows], self._seeds[:rows], self._positions[step, :rows]
        if self.private:
            kernels.log_probs(logits, noise[0], self._kept(logits.shape[1])[step, :rows], filters)
        _choose(kernels, logits, noise, tokens, probs, filters, ids)

    def draw_at(
        self, kernels: Kernels, places: Tensor, logits: Tensor, ids: Tensor | None = None, *children: int
    ) -> tuple[Tensor, Tensor]:
        """Draw nodes of several steps at once.

        Args:
            kernels: the operations to run with.
            places: int64 `[n]`, of each node its step times the `rows` there is room for, plus its request's row.
            logits: float32 `[n, D]`.
            ids: int64 `[D]`, the target's ids of the head's vocabulary; None where they are the same.
            children: number of nodes of each row; one if left out.

        Returns:
            Tokens int64 `[n]` or `[n, children]`, and their probabilities to the head, float32.
        """
        rows, filters = places % self._rows, None
        noise = self._temperatures[rows], self._seeds[rows], self._positions.view(-1)[places]
        if self.filtered:
            own = self._filters
            filters = Filters(own.min_p[rows], own.top_k[rows], own.top_p[rows])
        if self.private:
            distributions = torch.empty_like(logits)
            kernels.log_probs(logits, noise[0], distributions, filters)
            self._kept(logits.shape[1])[places // self._rows, rows] = distributions
        shape = len(places), *children
        tokens, probs = torch.empty(shape, dtype=torch.int64), torch.empty(shape)
        _choose(kernels, logits, noise, tokens, probs, filters, ids)
        return tokens, probs

    def distribution(self, step: int, row: int, ids: Tensor | None = None) -> Distribution:
        """Return the distribution that a row's nodes were drawn from at a step; `ids` as in `draw`."""
        return Distribution(self._distributions[step, row].clone(), ids)

    def _kept(self, vocab: int) -> Tensor:
        """Return the memory of distributions, `[steps, rows, D]`; only written pages take memory."""
        if not len(self._distributions):
            self._distributions = torch.empty((self._steps, self._rows, vocab))
        return self._distributions


def _choose(
    kernels: Kernels,
    logits: Tensor,
    noise: tuple[Tensor, Tensor, Tensor],
    tokens: Tensor,
    probs: Tensor,
    filters: Filters | None,
    ids: Tensor | None = None,
) -> None:
    """Write the token of each row, or where `tokens` has a second dimension the best of each."""
    if tokens.ndim == 1:
        kernels.draw(logits, *noise, tokens, filters, ids, probs)
    else:
        kernels.branch(logits, *noise, tokens, probs, filters, ids)
