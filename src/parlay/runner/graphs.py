"""Forward passes of few rows, recorded once and replayed.

A pass of a small model is dozens of calls of a few microseconds each, and the Python code around them takes as long
again. With few rows a pass is therefore recorded: the same operations on the same memory, into which each batch is
copied. There is one recording for every number of rows, made at the first such pass. On a GPU, where recording takes
longer and a few rows more cost nothing, there are fewer, which are padded; rows arrive in one copy, and tokens that
kernels alone decide are drawn within the pass.

A family that computes outside the kernels would replay stale values. So a recording is checked when it is used
again, unless recordings of slightly fewer and slightly more rows were: chosen draft lengths lead to many numbers of
rows, many of them run once, and a check takes as long as a pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parlay.kernels.base import AttentionMetadata, Kernels, StateMetadata
from parlay.kernels.uploads import fetched
from parlay.log import logger
from parlay.models.context import Buffers, CacheLayers, ForwardContext, intermediate_states
from parlay.models.select import CausalModel, records_logits
from parlay.runner.batch import Batch, copy_batch, first_rows, placed
from parlay.runner.graph_inputs import GraphInputBuffers
from parlay.sampling.sampler import SamplingMetadata

MOST_ROWS = 64  # of a recorded pass; with more, arithmetic outweighs calls
_MOST_ON_GPU = 512  # the same on a GPU
_MOST_SAMPLED = 256  # of those that sample, on a GPU: all of their rows have logits
_SLOTS = 2  # index of the slots among a batch's inputs
_NEAR = 2  # factor in rows within which checks of other recordings suffice for one


@dataclass(frozen=True, slots=True)
class _UncheckedInputs:
    """Inputs whose values a recording may have frozen: no check has shown yet that it reads them anew.

    Attributes:
        made_from: the inputs that the recording was made from.
        left: indices of the inputs that were not checked with other values yet.
    """

    made_from: list[list[int]]
    left: set[int]

    def differing(self, kernels: Kernels, batch: Batch) -> set[int]:
        """Return the indices of a batch's inputs that differ from those of the recording."""
        inputs = _inputs(kernels, batch)
        return {place for place, made_from in enumerate(self.made_from) if inputs[place] != made_from}


@dataclass(frozen=True, slots=True)
class _Graph:
    inputs: Batch
    hidden: Tensor
    intermediates: Tensor
    sampled: "SampledPass | None"
    run: Callable[[], None]


@dataclass(frozen=True, slots=True)
class SampledPass:
    """Results of a pass that samples, besides its hidden states.

    Attributes:
        logits: `[rows, vocab]` float32.
        tokens: `[rows]` int64.
    """

    logits: Tensor
    tokens: Tensor


class Graphs:
    """The forward passes of one model on one cache.

    Attributes:
        taps: layer counts after which the residual stream is kept; to be set before the first pass.
        recordings: number of passes that took longer because they were recorded, or a recording was checked.
        usable: whether passes are recorded, which ends when a check fails.
        intermediates: states between layers of the last pass, if there are taps or stages; valid until the next one.
        sampled: logits and tokens of the last pass, if it sampled; valid until the next one.
        further: further arrays that went with the batch of a pass that samples; valid until the next one.
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
        """Start without recordings; passes that are not `recordable` are never recorded.

        Args:
            model: the model to run.
            kernels: the operations to run with.
            cache: cache of each of the model's layers.
            blocks: most blocks of a request.
            places: number of places for draft nodes; None for a model without recurrent layers.
            recordable: whether a pass computes with kernels alone.
            alone: whether this is the only pipeline stage.
            further: number of further states that stages hand on, see `intermediate_states`.
        """
        self._model, self._alone, self._more_states = model, alone, further
        self._kernels = kernels
        self._cache = cache
        self._graphs: dict[tuple[int, int], _Graph] = {}  # by rows, and by how many arrays tokens are drawn with
        self._tried: list[int] = []  # rows of those that were checked
        self._unchecked = dict[tuple[int, int], _UncheckedInputs]()
        # Memory that all recordings share, since one runs at a time; most of the tables is never touched.
        self._apart = kernels.host is not kernels
        self._most = _MOST_ON_GPU if self._apart else MOST_ROWS
        self._sizes = self._most, max(blocks, 1), places
        self._inbox: GraphInputBuffers | None = None
        self._logits: dict[int, Tensor] = {}  # by rows
        if not self._apart:
            self._inputs = empty_batch(*self._sizes)
        self._buffers = Buffers(self._most, model.dtype)
        # What another library computes, or sends to other ranks, cannot be recorded.
        self.usable = recordable and model.config.library_model is None
        self.recordings = 0
        self.taps: tuple[int, ...] = ()
        self.intermediates = torch.empty(0)
        self.sampled: SampledPass | None = None
        self.further: list[Tensor] = []

    def draws(self, rows: int) -> bool:
        """Whether passes of so many rows can draw, where that saves copies between two memories."""
        able = self._apart and self._alone and self.usable and records_logits(self._model)
        return able and rows <= _MOST_SAMPLED

    def forward(
        self,
        batch: Batch,
        received: Tensor | None = None,
        draws: SamplingMetadata | None = None,
        further: Sequence[Tensor] = (),
    ) -> Tensor:
        """Return hidden states `[rows, hidden]` of a batch, valid until the next pass.

        Args:
            batch: rows to run, in host memory or where kernels read them.
            received: states that the stage before has sent, see `intermediate_states`; None for the first stage.
            draws: sampling parameters of each row, in host memory; used in the same pass if it can be recorded.
            further: further arrays in host memory, which go with the batch of a pass that samples.
        """
        rows, self.sampled, self.further = batch.tokens.shape[0], None, []
        if rows > self._most or not self.usable:
            with self._kernels.device_context():
                return self._eager(placed(batch, self._kernels)[0], received)
        if not self.draws(rows):
            draws = None
        here = not self._apart or self._kernels.is_on_device(batch.tokens)
        size = rows if here else padded_rows(rows)
        key = _key(size, draws)
        graph = self._graphs.get(key)
        if graph is None:
            self.recordings += 1
            with self._kernels.device_context():
                return self._record(batch, received, draws, size, further)
        self._fill(batch, graph.inputs, draws, further)
        if received is not None:
            graph.intermediates.copy_(received)
        graph.run()
        return self._checked(key, graph, batch, received) if key in self._unchecked else self._result(graph, rows)

    def _result(self, graph: _Graph, rows: int) -> Tensor:
        """Keep a recording's results of its first rows, and return their hidden states."""
        self.intermediates, self.sampled, sampled = graph.intermediates, graph.sampled, graph.sampled
        if graph.hidden.shape[0] == rows:
            return graph.hidden
        if self.intermediates.numel():
            self.intermediates = self.intermediates[:, :rows].contiguous()
        self.sampled = sampled and SampledPass(sampled.logits[:rows], sampled.tokens[:rows])
        return graph.hidden[:rows]

    def _fill(self, batch: Batch, inputs: Batch, draws: SamplingMetadata | None, further: Sequence[Tensor]) -> None:
        """Copy a batch to where a recorded pass reads it, with what its tokens are drawn with."""
        if self._inbox is not None and not self._kernels.is_on_device(batch.tokens):
            self.further = self._inbox.fill(batch, draws, len(inputs.tokens), () if draws is None else further)
        else:
            copy_batch(batch, inputs)

    def forward_inline(self, batch: Batch) -> Tensor:
        """Return hidden states of a batch of few rows, computed on its own tensors, within another recording."""
        buffers = Buffers(len(batch.tokens), self._model.dtype, self._buffers)
        return self._model.forward(batch.tokens, self._context(batch, buffers))

    def _eager(self, batch: Batch, received: Tensor | None) -> Tensor:
        buffers = Buffers(len(batch.tokens), self._model.dtype)
        self.intermediates = self._intermediates(buffers, received)
        return self._model.forward(batch.tokens, self._context(batch, buffers))

    def _context(self, batch: Batch, buffers: Buffers) -> ForwardContext:
        return ForwardContext(
            self._kernels, batch.positions, batch.slots, batch.view, self._cache, buffers, self.taps, batch.states
        )

    def _intermediates(self, buffers: Buffers, received: Tensor | None) -> Tensor:
        """Return where a pass leaves its results, with what was received in it."""
        if not self.taps and self._alone:
            return self.intermediates
        states = intermediate_states(buffers, self.taps, self._more_states, self._model.config.hidden_size)
        return states if received is None else states.copy_(received)

    def _checked_nearby(self, rows: int) -> bool:
        """Whether recordings of as many rows or slightly fewer, and of as many or slightly more, were checked."""
        tried = self._tried
        return any(rows <= _NEAR * own <= _NEAR * rows for own in tried) and any(
            rows <= own <= _NEAR * rows for own in tried
        )

    def _memory(self, rows: int) -> tuple[Batch, SamplingMetadata | None]:
        """Return what recorded passes of so many rows read."""
        if not self._apart:
            return first_rows(self._inputs, rows), None
        if self._inbox is None:
            self._inbox = GraphInputBuffers(self._kernels, *self._sizes)
        inputs = self._inbox.inputs(rows)
        return inputs.batch, inputs.draws

    def _record(
        self,
        batch: Batch,
        received: Tensor | None,
        draws: SamplingMetadata | None,
        rows: int,
        further: Sequence[Tensor],
    ) -> Tensor:
        """Record a pass of so many rows and return its hidden states."""
        inputs, drawn_with = self._memory(rows)
        buffers = Buffers(rows, self._model.dtype, self._buffers)
        context = self._context(inputs, buffers)
        intermediates = self._intermediates(buffers, received)
        sampled = self._sampling_memory(rows) if draws is not None else None
        filters = None if draws is None or draws.filters is None or drawn_with is None else drawn_with.filters
        hidden: list[Tensor] = []

        def work() -> None:
            hidden.append(self._model.forward(inputs.tokens, context))
            if sampled is not None and drawn_with is not None:
                own, kernels = drawn_with, self._kernels
                assert records_logits(self._model)
                self._model.logits(hidden[-1], sampled.logits)
                kernels.draw(sampled.logits, own.temperatures, own.seeds, own.positions, sampled.tokens, filters)

        self._fill(batch, inputs, draws, further)
        run = self._kernels.record(work)
        if run is None:
            self.usable = False
            return self._eager(placed(batch, self._kernels)[0], received)
        key = _key(rows, draws)
        graph = self._graphs[key] = _Graph(inputs, hidden[-1], intermediates, sampled, run)
        if not self._checked_nearby(rows):
            made_from = _inputs(self._kernels, batch)
            self._unchecked[key] = _UncheckedInputs(made_from, set(range(len(made_from))))
        return self._result(graph, len(batch.tokens))

    def _checked(self, key: tuple[int, int], graph: _Graph, batch: Batch, received: Tensor | None) -> Tensor:
        """Return the hidden states of a pass that was replayed, or of one that was not if they differ.

        No check is needed while all inputs in doubt are those that it was made from. The same slots may have been
        filled by another context, so a batch that is the same altogether is checked until slots are not in doubt.
        """
        rows, unchecked = key[0], self._unchecked[key]
        others = unchecked.differing(self._kernels, batch)
        if self._checked_nearby(rows):
            del self._unchecked[key]
        if key not in self._unchecked or not (others or {_SLOTS}) & unchecked.left:
            return self._result(graph, len(batch.tokens))
        self.recordings += 1
        with self._kernels.device_context():
            found = self._eager(placed(batch, self._kernels)[0], received)
        replayed = graph.hidden[: len(batch.tokens)]
        if not torch.equal(replayed.view(torch.uint8), found.view(torch.uint8)):
            path = self._model.config.path
            logger.warning("%s: its forward pass cannot be recorded; small batches run slower", path)
            self.usable = False
            return found
        unchecked.left.difference_update(others)
        if not unchecked.left:
            del self._unchecked[key]
            self._tried.append(rows)
        return self._result(graph, len(batch.tokens))

    def _sampling_memory(self, rows: int) -> SampledPass:
        """Return where a pass leaves its logits, which passes of so few or so many rows share, and its tokens."""
        most = MOST_ROWS if rows <= MOST_ROWS else _MOST_SAMPLED
        if most not in self._logits:
            self._logits[most] = torch.empty((most, self._model.config.tokens), dtype=torch.float32)
        return SampledPass(self._logits[most][:rows], torch.empty(rows, dtype=torch.int64))


def padded_rows(rows: int) -> int:
    """Return the rows of the recording that runs so many on a GPU: a power of two, or half as many more."""
    power = 1 << (rows - 1).bit_length()
    return 3 * power // 4 if rows <= 3 * power // 4 else power


def padded(batch: Batch) -> Batch:
    """Return a batch of the host with as many rows as the recording that runs it on a GPU.

    Further rows see no keys, and what they leave goes nowhere.
    """
    rows, view, states = len(batch.tokens), batch.view, batch.states
    more = padded_rows(rows) - rows
    if not more or rows > _MOST_ON_GPU:
        return batch

    def pad(tensor: Tensor, value: int = 0) -> Tensor:
        return torch.cat((tensor, tensor.new_full((more, *tensor.shape[1:]), value)))

    owner, first, last = pad(view.row_request), pad(view.first), pad(view.last)
    offsets = pad(view.extra_offsets, int(view.extra_offsets[-1]))
    view = AttentionMetadata(view.tables, owner, first, last, offsets, view.extra_slots)
    states = states and StateMetadata(states.sequences, pad(states.rows, -1), states.replayed)
    return replace(
        batch, tokens=pad(batch.tokens), positions=pad(batch.positions), slots=pad(batch.slots, -1), view=view,
        states=states,
    )  # fmt: skip


def _inputs(kernels: Kernels, batch: Batch) -> list[list[int]]:
    """Return the inputs by which batches differ; other slots mean another context."""
    inputs: Sequence[Tensor] = batch.tokens, batch.positions, batch.slots
    if kernels.is_on_device(batch.tokens):
        inputs = fetched(kernels, inputs)
    return [one.tolist() for one in inputs]


def _key(rows: int, draws: SamplingMetadata | None) -> tuple[int, int]:
    return rows, 0 if draws is None else len(draws.tensors)


def empty_batch(rows: int, blocks: int, places: int | None = None) -> Batch:
    """Return the memory that recorded passes of so many rows and blocks read.

    Args:
        rows, blocks: number of rows, and of blocks per request.
        places: number of places for draft nodes; None for a model without recurrent layers.
    """
    view = AttentionMetadata(
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
        else StateMetadata(*(torch.zeros((n, m), dtype=torch.int32) for n, m in ((rows, 5), (rows, 4), (places, 2)))),
    )
