"""Forward passes of few rows, recorded once and replayed.

A pass of a small model is dozens of calls of a few microseconds each, and as much time again in the Python around
them. With few rows a pass is therefore recorded: the same operations on the same memory, into which each batch is
copied. There is one recording for every number of rows and every power of two of blocks a request. It is made once
such passes have come a few times: recording takes as long as several passes, and chosen lengths lead to many numbers
of rows, most of them seldom.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from parlay.kernels.base import AttentionView, Kernels
from parlay.log import logger
from parlay.models.context import Buffers, ForwardContext, LayerCache, tap_role
from parlay.models.select import Model
from parlay.runner.batch import Batch

MOST_ROWS = 64  # of a recorded pass; beyond, arithmetic outweighs calls
_LEAST_BLOCKS = 16
OFTEN = 4  # passes of a kind before it is recorded


@dataclass(frozen=True, slots=True)
class _Graph:
    inputs: Batch
    hidden: Tensor
    tapped: tuple[Tensor, ...]
    run: Callable[[], None]


class Graphs:
    """The forward passes of one model on one cache.

    Attributes:
        taps: after how many layers the residual stream is wanted; to be set before the first pass.
        recordings: how many were made.
        unsettled: how many passes took longer than such passes will: those that were recorded, and those before.
        usable: whether passes are recorded: as long as none has shown that it cannot be.
        tapped: these of the last pass, `[rows, hidden]` each; they stand until the next one.
    """

    def __init__(self, model: Model, kernels: Kernels, cache: tuple[LayerCache, ...]) -> None:
        self._model = model
        self._kernels = kernels
        self._cache = cache
        self._graphs: dict[tuple[int, int], _Graph] = {}
        self._passes: Counter[tuple[int, int]] = Counter()  # of kinds that are not recorded yet
        self._buffers = Buffers(MOST_ROWS, model.dtype)  # of all recordings, for one runs at a time
        self.usable = model.config.foreign is None  # what another library computes cannot be recorded
        self.recordings = self.unsettled = 0
        self.taps: tuple[int, ...] = ()
        self.tapped: tuple[Tensor, ...] = ()

    def forward(self, batch: Batch, *, at_once: bool = False) -> Tensor:
        """Return hidden states `[rows, hidden]` of a batch; they stand until the next pass.

        Args:
            batch: the rows.
            at_once: whether to record the first pass of its kind already.
        """
        rows, blocks = batch.tokens.shape[0], batch.view.tables.shape[1]
        if rows > MOST_ROWS or not self.usable:
            return self._eager(batch)
        key = rows, max(_LEAST_BLOCKS, 1 << (blocks - 1).bit_length())
        graph = self._graphs.get(key)
        if graph is None:
            self.unsettled += 1
            self._passes[key] += 1
            if self._passes[key] <= OFTEN and not at_once:
                return self._eager(batch)
            self.recordings += 1
            return self._record(batch, *key)
        copy_batch(batch, graph.inputs)
        graph.run()
        self.tapped = graph.tapped
        return graph.hidden

    def forward_here(self, batch: Batch) -> Tensor:
        """Return hidden states of a batch of few rows, computed on its own tensors, within another recording."""
        buffers = Buffers(len(batch.tokens), self._model.dtype, self._buffers)
        return self._model.forward(batch.tokens, self._context(batch, buffers))

    def _eager(self, batch: Batch) -> Tensor:
        buffers = Buffers(len(batch.tokens), self._model.dtype)
        hidden = self._model.forward(batch.tokens, self._context(batch, buffers))
        self.tapped = self._tapped(buffers)
        return hidden

    def _context(self, batch: Batch, buffers: Buffers) -> ForwardContext:
        return ForwardContext(
            self._kernels, batch.positions, batch.slots, batch.view, self._cache, buffers, self.taps
        )

    def _tapped(self, buffers: Buffers) -> tuple[Tensor, ...]:
        return tuple(buffers(tap_role(layers), self._model.config.hidden_size) for layers in self.taps)

    def _record(self, batch: Batch, rows: int, blocks: int) -> Tensor:
        """Record a pass and try it on `batch`, whose hidden states it returns; keep it if it was good."""
        inputs = empty_batch(rows, blocks)
        buffers = Buffers(rows, self._model.dtype, self._buffers)
        context = self._context(inputs, buffers)
        hidden: list[Tensor] = []
        # Recorded with other tokens at other positions. What they leave in the cache is overwritten right away.
        copy_batch(batch, inputs)
        inputs.tokens.copy_((batch.tokens == 0).long().clamp(max=self._model.config.vocab_size - 1))
        inputs.positions.zero_()
        run = self._kernels.record(lambda: hidden.append(self._model.forward(inputs.tokens, context)))
        if run is None:
            self.usable = False
            return self._eager(batch)
        copy_batch(batch, inputs)
        run()
        # A family that computes outside the kernels would replay stale values.
        expected = self._eager(batch)
        if not torch.equal(hidden[0].view(torch.uint8), expected.view(torch.uint8)):
            logger.warning(
                "%s: its forward pass cannot be recorded; small batches run slower", self._model.config.path
            )
            self.usable = False
            return expected
        self.tapped = self._tapped(buffers)
        self._graphs[rows, blocks] = _Graph(inputs, hidden[0], self.tapped, run)
        return hidden[0]


def empty_batch(rows: int, blocks: int) -> Batch:
    """Return the memory that a recorded pass of so many rows and blocks reads."""
    view = AttentionView(
        tables=torch.zeros((rows, blocks), dtype=torch.int32),
        row_request=torch.zeros(rows, dtype=torch.int32),
        first=torch.zeros(rows, dtype=torch.int32),
        last=torch.zeros(rows, dtype=torch.int32),
        extra_offsets=torch.zeros(rows + 1, dtype=torch.int32),
        extra_slots=torch.zeros(rows * rows, dtype=torch.int32),
    )
    return Batch(
        tokens=torch.zeros(rows, dtype=torch.int64),
        positions=torch.zeros(rows, dtype=torch.int32),
        slots=torch.zeros(rows, dtype=torch.int64),
        view=view,
        offsets=(),
    )


def copy_batch(batch: Batch, to: Batch) -> None:
    """Copy a batch to where a recorded pass reads it."""
    requests, blocks = batch.view.tables.shape
    to.tokens.copy_(batch.tokens)
    to.positions.copy_(batch.positions)
    to.slots.copy_(batch.slots)
    to.view.tables[:requests, :blocks] = batch.view.tables
    to.view.row_request.copy_(batch.view.row_request)
    to.view.first.copy_(batch.view.first)
    to.view.last.copy_(batch.view.last)
    to.view.extra_offsets.copy_(batch.view.extra_offsets)
    if batch.view.extra_slots.numel():
        to.view.extra_slots[: batch.view.extra_slots.numel()] = batch.view.extra_slots
