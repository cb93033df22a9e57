"""How draft heads draw their guesses: with the noise of the very choices that they try to foresee.

A guess is right if the target draws the same token. So a head draws as the target does, from its own idea of the
distribution, at the request's temperature and under its filters, with the noise of the request and place (Daliri,
Musco, Suresh 2024, arXiv 2408.07978). Taking its likeliest token instead would be right only as often as the target
takes its own likeliest; at temperature 0 the two are the same.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from parlay.kernels.base import Filters, Kernels
from parlay.sampling.sampler import filter_tensors, seed_tensor, temperature_tensor
from parlay.types.plan import Span


class Draws:
    """What the requests that draft at once draw with, in memory that recordings may keep.

    Attributes:
        filtered: whether any of them filters. Passes are recorded once with filters and once without.
    """

    def __init__(self, steps: int, rows: int) -> None:
        """Allocate for drafts of so many tokens and so many requests."""
        self.filtered = False
        self._rows = rows
        self._temperatures, self._seeds = torch.zeros(rows), torch.zeros(rows, dtype=torch.int64)
        self._positions = torch.zeros((steps, rows), dtype=torch.int64)
        self._ahead = np.arange(steps)[:, None]
        self._filters = Filters(
            torch.zeros(rows, dtype=torch.float64),
            torch.zeros(rows, dtype=torch.int64),
            torch.ones(rows, dtype=torch.float64),
        )

    def prepare(self, spans: Sequence[Span], positions: Sequence[int]) -> None:
        """Take note of who drafts, and of the position of each one's first guess."""
        params, rows = [span.params for span in spans], len(spans)
        self._temperatures[:rows] = temperature_tensor(params)
        self._seeds[:rows] = seed_tensor([span.seed for span in spans])
        self._positions[:, :rows] = torch.from_numpy(np.array(positions)[None] + self._ahead)
        filters = filter_tensors(params)
        self.filtered = filters is not None
        if filters is not None:
            self._filters.min_p[:rows] = filters.min_p
            self._filters.top_k[:rows] = filters.top_k
            self._filters.top_p[:rows] = filters.top_p

    def draw(
        self, kernels: Kernels, step: int, logits: Tensor, tokens: Tensor, probs: Tensor, ids: Tensor | None = None
    ) -> None:
        """Draw guess `step` of the leading requests, by kernels alone.

        Args:
            kernels: to run with.
            step: which of the draft's tokens, counted from 0.
            logits: float32 `[rows, D]`.
            tokens: int64 `[rows]`, written: ids of the target's.
            probs: float32 `[rows]`, written: how likely they are to the head.
            ids: int64 `[D]`, of the tokens that the head can guess; None where these are the target's.
        """
        rows = len(logits)
        filters = self._filters.first(rows) if self.filtered else None
        noise = self._temperatures[:rows], self._seeds[:rows], self._positions[step, :rows]
        kernels.draw(logits, *noise, tokens, filters, ids, probs)

    def branch(
        self, kernels: Kernels, step: int, logits: Tensor, tokens: Tensor, probs: Tensor, ids: Tensor | None = None
    ) -> None:
        """Choose several guesses a row where `draw` takes one; `tokens` and `probs` are `[rows, children]`."""
        rows = len(logits)
        filters = self._filters.first(rows) if self.filtered else None
        noise = self._temperatures[:rows], self._seeds[:rows], self._positions[step, :rows]
        kernels.branch(logits, *noise, tokens, probs, filters, ids)

    def branch_at(self, kernels: Kernels, places: Tensor, logits: Tensor, children: int) -> tuple[Tensor, Tensor]:
        """Choose several guesses a row where `draw_at` takes one; returns both `[n, children]`."""
        tokens, probs = torch.empty((len(places), children), dtype=torch.int64), torch.empty((len(places), children))
        kernels.branch(logits, *self._noise_at(places), tokens, probs, self._filters_at(places))
        return tokens, probs

    def draw_at(self, kernels: Kernels, places: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Draw guesses of several steps at once.

        Args:
            kernels: to run with.
            places: int64 `[n]`, of each guess its step times the `rows` there is room for, plus its request's row.
            logits: float32 `[n, V]`.

        Returns:
            Tokens int64 `[n]`, and how likely they are to the head, float32 `[n]`.
        """
        tokens, probs = torch.empty(len(places), dtype=torch.int64), torch.empty(len(places))
        kernels.draw(logits, *self._noise_at(places), tokens, self._filters_at(places), None, probs)
        return tokens, probs

    def _noise_at(self, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = places % self._rows
        return self._temperatures[rows], self._seeds[rows], self._positions.view(-1)[places]

    def _filters_at(self, places: Tensor) -> Filters | None:
        if not self.filtered:
            return None
        rows, filters = places % self._rows, self._filters
        return Filters(filters.min_p[rows], filters.top_k[rows], filters.top_p[rows])
