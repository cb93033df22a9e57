"""Forward passes of few rows, recorded once and replayed.

A pass of a small model is dozens of calls of a few microseconds each, and the Python code around them takes as long
again. With few rows a pass is therefore recorded: the same operations on the same memory, into which each batch is
copied. There is one recording for every number of rows, made at the first such pass.

A family that computes outside the kernels would replay stale values. So a recording is checked with another batch
than it was made from, unless recordings of slightly fewer and slightly more rows were: chosen draft lengths lead to
many numbers of rows, and a check takes as long as two passes.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from parlay.kernels.base import AttentionView, Kernels, StateView
from parlay.log import logger
from parlay.models.context import Buffers, CacheLayers, ForwardContext, handed_states
from parlay.models.select import CausalModel
from parlay.runner.batch import Batch

MOST_ROWS = 64  # of a recorded pass; beyond, arithmetic outweighs calls
_STATES = tuple(field.name for field in fields(StateView))
_NEAR = 2  # factor in rows within which checks vouch for a recording


@dataclass(frozen=True, slots=True)
class _Graph:
    inputs: Batch
    hidden: Tensor
    handed: Tensor
    run: Callable[[], None]


class Graphs:
    """The forward passes of one model on one cache.

    Attributes:
        taps: after how many layers the residual stream is wanted; to be set before the first pass.
        unsettled: how many passes took longer than usual because they were recorded.
        usable: whether passes are recorded: as long as no check has failed.
        handed: of the last pass, see `handed_states`, where there are taps or stages; valid until the next one.
    """

    def __init__(
        self,
        model: CausalModel,
        kernels: Kernels,
        cache: CacheLayers,
        blocks: int,
        places: int | None = None,
        *,
        recordable: bool = True,
        alone: bool = True,
        further: int = 0,
    ) -> None:
        """Begin with no recordings, and make none of passes that are not `recordable`.

        Args:
            model: to run.
            kernels: the operations to run with.
            cache: of the model's layers.
            blocks: most that a table has.
            places: of draft nodes, for a model with recurrent layers.
            recordable: whether all that a pass computes is kernels'.
            alone: whether there is no other stage.
            further: states that stages hand on besides, see `handed_states`.
        """
        self._model, self._alone, self._further = model, alone, further
        self._kernels = kernels
        self._cache = cache
        self._graphs: dict[int, _Graph] = {}  # by rows
        self._tried: list[int] = []  # rows of those that were checked
        # Memory of all recordings, of which one runs at a time; of the tables little is ever touched.
        self._inputs = empty_batch(MOST_ROWS, max(blocks, 1), places)
        self._buffers = Buffers(MOST_ROWS, model.dtype)
        # What another library computes, or sends to other ranks, cannot be recorded.
        self.usable = recordable and model.config.foreign is None
        self.unsettled = 0
        self.taps: tuple[int, ...] = ()
        self.handed = torch.empty(0)

    def forward(self, batch: Batch, arrived: Tensor | None = None) -> Tensor:
        """Return hidden states `[rows, hidden]` of a batch, valid until the next pass.

        Args:
            batch: of rows.
            arrived: what the stage before has handed on, see `handed_states`; None for the first stage.
        """
        rows = len(batch.tokens)
        if rows > MOST_ROWS or not self.usable:
            return self._eager(batch, arrived)
        graph = self._graphs.get(rows)
        if graph is None:
            self.unsettled += 1
            return self._record(batch, arrived, rows)
        copy_batch(batch, graph.inputs)
        if arrived is not None:
            graph.handed.copy_(arrived)
        graph.run()
        self.handed = graph.handed
        return graph.hidden

    def forward_here(self, batch: Batch) -> Tensor:
        """Return hidden states of a batch of few rows, computed on its own tensors, within another recording."""
        buffers = Buffers(len(batch.tokens), self._model.dtype, self._buffers)
        return self._model.forward(batch.tokens, self._context(batch, buffers))

    def _eager(self, batch: Batch, arrived: Tensor | None) -> Tensor:
        buffers = Buffers(len(batch.tokens), self._model.dtype)
        self.handed = self._handed(buffers, arrived)
        return self._model.forward(batch.tokens, self._context(batch, buffers))

    def _context(self, batch: Batch, buffers: Buffers) -> ForwardContext:
        return ForwardContext(
            self._kernels, batch.positions, batch.slots, batch.view, self._cache, buffers, self.taps, batch.states
        )

    def _handed(self, buffers: Buffers, arrived: Tensor | None) -> Tensor:
        """Return where a pass leaves its results, with what has arrived in it."""
        if not self.taps and self._alone:
            return self.handed
        states = handed_states(buffers, self.taps, self._further, self._model.config.hidden_size)
        return states if arrived is None else states.copy_(arrived)

    def _vouched(self, rows: int) -> bool:
        """Whether recordings of as many rows or slightly fewer, and of as many or slightly more, were checked."""
        tried = self._tried
        return any(rows <= _NEAR * own <= _NEAR * rows for own in tried) and any(
            rows <= own <= _NEAR * rows for own in tried
        )

    def _record(self, batch: Batch, arrived: Tensor | None, rows: int) -> Tensor:
        """Record a pass and return its hidden states; keep it if it passes its check."""
        inputs, vouched = _first(self._inputs, rows), self._vouched(rows)
        buffers = Buffers(rows, self._model.dtype, self._buffers)
        context = self._context(inputs, buffers)
        handed = self._handed(buffers, arrived)
        hidden: list[Tensor] = []
        copy_batch(batch, inputs)
        if not vouched:  # other tokens at other positions; what they leave in the cache is overwritten right away
            inputs.tokens.copy_((batch.tokens == 0).long().clamp(max=self._model.config.vocab_size - 1))
            inputs.positions.zero_()
        run = self._kernels.record(lambda: hidden.append(self._model.forward(inputs.tokens, context)))
        if run is None:
            self.usable = False
            return self._eager(batch, arrived)
        if not vouched:
            copy_batch(batch, inputs)
            if arrived is not None:
                handed.copy_(arrived)
            run()
            self._tried.append(rows)
            if not torch.equal(hidden[-1].view(torch.uint8), self._eager(batch, arrived).view(torch.uint8)):
                logger.warning(
                    "%s: its forward pass cannot be recorded; small batches run slower", self._model.config.path
                )
                self.usable = False
                return self._eager(batch, arrived)
        self.handed = handed
        self._graphs[rows] = _Graph(inputs, hidden[-1], handed, run)
        return hidden[-1]


def _first(batch: Batch, rows: int) -> Batch:
    """Return the memory of the first rows of a batch, whose tables stay as wide as they are."""
    view = AttentionView(
        tables=batch.view.tables[:rows],
        row_request=batch.view.row_request[:rows],
        first=batch.view.first[:rows],
        last=batch.view.last[:rows],
        extra_offsets=batch.view.extra_offsets[: rows + 1],
        extra_slots=batch.view.extra_slots[: rows * rows],
    )
    tokens, positions, slots = batch.tokens[:rows], batch.positions[:rows], batch.slots[:rows]
    states = batch.states
    if states is not None:
        states = StateView(states.sequences[:rows], states.rows[:rows], states.replayed)
    return replace(batch, tokens=tokens, positions=positions, slots=slots, view=view, states=states)


def empty_batch(rows: int, blocks: int, places: int | None = None) -> Batch:
    """Return the memory that recorded passes of so many rows and blocks read.

    Args:
        rows, blocks: of the passes.
        places: of draft nodes, for a model with recurrent layers.
    """
    view = AttentionView(
        tables=torch.empty((rows, blocks), dtype=torch.int32),
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
        states=None
        if places is None
        else StateView(*(torch.zeros((n, m), dtype=torch.int32) for n, m in ((rows, 5), (rows, 4), (places, 2)))),
    )


def copy_batch(batch: Batch, to: Batch) -> None:
    """Copy a batch to where a recorded pass reads it."""
    requests, blocks = batch.view.tables.shape
    if batch.states is not None and to.states is not None:
        to.states.sequences.zero_()
        for source, target in ((getattr(one.states, name) for one in (batch, to)) for name in _STATES):
            target[: len(source)] = source
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
