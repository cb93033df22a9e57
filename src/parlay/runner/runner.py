"""A model with its cache layers: runs batches, moves keys and values."""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from parlay.kernels.base import Kernels
from parlay.kv.cache_tensors import allocate
from parlay.models.context import CacheLayers, keys_of
from parlay.models.select import CausalModel, cache_spec
from parlay.parallel.group import ALONE, Group
from parlay.runner.batch import Batch, Segment, flatten
from parlay.runner.graphs import Graphs
from parlay.runner.orders import Broadcast, Collect, Forward, Logits, Move, no_broadcast, slots_of
from parlay.sampling.sampler import SamplingMetadata
from parlay.types.cache import NO_CAPACITY, StateCapacity
from parlay.types.plan import Span, Verdict


class ModelRunner:
    """Runs one model over batches of rows. A target has one; so has a draft model, on the same block ids.

    Attributes:
        cache: keys and values, or states, of each layer.
        recurrent: whether the model has recurrent layers.
        room: capacity for states of recurrent layers.
        pipeline: stage of the model that it runs; as many passes may be under way as there are stages.
        tapped: the residual streams of the last pass, see `tap`: `[taps, rows, hidden]`, valid until the next one.
    """

    def __init__(
        self,
        model: CausalModel,
        kernels: Kernels,
        blocks: int | CacheLayers,
        block_size: int,
        group: Group = ALONE,
        broadcast: Broadcast = no_broadcast,
        room: StateCapacity = NO_CAPACITY,
    ) -> None:
        """Allocate the cache.

        Args:
            model: the model to run.
            kernels: the operations to run with.
            blocks: number of blocks of its cache layers, or another model's layers of the same shape.
            block_size: tokens per block.
            group: the ranks that share the model's layers, of which each keeps the keys of its own heads.
            broadcast: function called with each order to the other ranks; this rank carries it out in its context.
            room: capacity for states of recurrent layers, if there are any.
        """
        self.model = model
        self.kernels = kernels
        self.block_size = block_size
        spec = cache_spec(model.config, model.dtype, group)
        self.recurrent, self.room = model.config.recurrent, room
        if isinstance(blocks, int):
            longest, blocks = blocks, allocate(spec, blocks, block_size, model.dtype, room, kernels)
        else:
            longest = max(len(keys.key) for keys in map(keys_of, blocks) if keys is not None)
        self.cache = blocks
        self._broadcast, self.pipeline = broadcast, group.pipeline
        places = room.places if self.recurrent else None
        alone = group.pipeline.stages == 1
        self._further = 0 if alone else model.config.extra_intermediates
        with kernels.device_context():
            self._graphs = Graphs(
                *(model, kernels, blocks, longest, places),
                recordable=group.recordable,
                alone=alone,
                further=self._further,
            )
            self._hidden = self.tapped = torch.empty(0)
        self._under_way = deque[int]()  # rows of each pass that is not finished

    def forward(self, batch: Batch, draws: SamplingMetadata | None = None) -> Tensor:
        """Run a batch through the layers; return hidden states `[rows, hidden]`, valid until the next pass.

        Args:
            batch: rows to run.
            draws: sampling parameters of each row, see `start`.

        Raises:
            RankError: a rank that shares the layers is lost.
        """
        self.start(batch, draws)
        return self.finish()

    def start(self, batch: Batch, draws: SamplingMetadata | None = None, further: Sequence[Tensor] = ()) -> None:
        """Run a batch through the layers of this rank's stage.

        As many passes may be under way as there are stages.

        Args:
            batch: rows to run.
            draws: sampling parameters of each row, see `drawn`.
            further: further arrays in host memory, which go with the batch; see `sampled`.

        Raises:
            RankError: a rank that shares the layers is lost.
        """
        if self._broadcast is no_broadcast:
            self._start(batch, draws, further)
        else:
            with self._broadcast(Forward.of(batch)):
                self._start(batch, draws)

    def _start(self, batch: Batch, draws: SamplingMetadata | None, further: Sequence[Tensor] = ()) -> None:
        pipeline, received = self.pipeline, None
        if not pipeline.first:
            received = self._receive(2 + self._further, len(batch.tokens))
        self._hidden = self._graphs.forward(batch, received, draws, further)
        if pipeline.channel is not None:
            states = self._graphs.intermediates
            pipeline.channel.send(states[1 : len(states) - self._further] if pipeline.last else states)
            if pipeline.first:
                self._under_way.append(len(batch.tokens))

    def finish(self) -> Tensor:
        """Return the hidden states `[rows, hidden]` of the pass that was started first, valid until the next one.

        Only the first of several stages can.

        Raises:
            RankError: a rank that shares the layers is lost.
        """
        if self.pipeline.channel is None:
            self.tapped = self._graphs.intermediates[2:]
            return self._hidden
        with self._broadcast(Collect()):
            states = self._receive(1, self._under_way.popleft())
        self.tapped = states[1:]
        return states[0]

    def discard(self) -> None:
        """Finish all passes that are under way, and drop their results.

        Raises:
            RankError: a rank is lost.
        """
        while self._under_way:
            self.finish()

    def _receive(self, further: int, rows: int) -> Tensor:
        """Return what the stage before has sent of a pass: the states of all taps and so many further ones."""
        assert self.pipeline.channel is not None
        shape = further + len(self._graphs.taps), rows, self.model.config.hidden_size
        states = torch.empty(shape, dtype=self.model.dtype)
        self.pipeline.channel.receive(states)
        return states

    def forward_inline(self, batch: Batch) -> Tensor:
        """Run a batch of at most 64 rows on its own tensors, as a part of what the caller may record.

        No other rank takes part.

        Returns:
            Hidden states `[rows, hidden]`, valid until the next pass.
        """
        return self._graphs.forward_inline(batch)

    @property
    def recordings(self) -> int:
        """How many passes so far took longer than usual because they were recorded."""
        return self._graphs.recordings

    def recordable(self) -> bool:
        """Check whether passes can be recorded; to be called while the cache is empty."""
        blocks = range(-(-3 // self.block_size))
        for at in (0, 1):  # a recording is checked with other tokens at other positions
            self.forward(flatten([Segment((at, at), at, blocks)], self.block_size, recurrent=self.recurrent))
        return self._graphs.usable

    def tap(self, layers: tuple[int, ...]) -> None:
        """Have every pass from now on return the residual stream after so many layers; before the first pass."""
        self._graphs.taps = layers

    def draws(self, rows: int) -> bool:
        """Whether passes of so many rows can sample tokens too, see `start`."""
        return self._graphs.draws(rows)

    @property
    def sampled(self) -> tuple[Tensor, list[Tensor]] | None:
        """The tokens that the last pass drew, int64 `[rows]`, and the further arrays that went with its batch.

        Both where kernels read them; None if it drew none.
        """
        sampled = self._graphs.sampled
        return None if sampled is None else (sampled.tokens, self._graphs.further)

    def drawn(self, rows: Sequence[int], tokens: Sequence[int] | None = None) -> tuple[Tensor, list[int]] | None:
        """Return logits `[len(rows), vocab]` and tokens of some rows of the last pass; None if it drew none.

        Args:
            rows: the rows.
            tokens: tokens of all rows, where the host has them already.
        """
        sampled = self._graphs.sampled
        if sampled is None:
            return None
        if tokens is None:
            tokens = sampled.tokens.tolist()
        with self.kernels.device_context():
            return _chosen(sampled.logits, rows), [tokens[row] for row in rows]

    def logits(self, hidden: Tensor, rows: Sequence[int]) -> Tensor:
        """Return float32 logits `[len(rows), vocab]` of some rows of `hidden`, which the last pass returned.

        Raises:
            RankError: a rank that shares the head is lost.
        """
        if self._broadcast is no_broadcast:
            with self.kernels.device_context():
                return self._logits(hidden, rows)
        with self._broadcast(Logits(tuple(rows))), self.kernels.device_context():
            return self._logits(hidden, rows)

    def _logits(self, hidden: Tensor, rows: Sequence[int]) -> Tensor:
        return self.model.logits(_chosen(hidden, rows))

    def move_accepted(self, spans: Sequence[Span], verdicts: Sequence[Verdict]) -> None:
        """Move the keys and values of accepted nodes to the slots of the tokens they have become.

        A node on the path at depth d belongs at the d-th slot after the root's; since nodes are numbered best path
        first, the usual accepted path is there already.
        """
        sources: list[int] = []
        targets: list[int] = []
        for span, verdict in zip(spans, verdicts, strict=True):
            for depth, node in enumerate(verdict.path):
                if node != depth:
                    sources.append(self._slot(span, span.end + node))
                    targets.append(self._slot(span, span.end + depth))
        if sources:
            order = Move(tuple(sources), tuple(targets))
            with self._broadcast(order):
                self.move(order)

    def move(self, order: Move) -> None:
        """Copy keys and values from slots to slots, in every layer."""
        with self.kernels.device_context():
            sources, targets = slots_of(order)
        self.move_slots(sources, targets)

    def move_slots(self, sources: Tensor, targets: Tensor) -> None:
        """Copy keys and values from slots to slots, int64 `[n]` where kernels read, in every layer of this rank."""
        for layer in {id(layer): layer for layer in self.cache}.values():  # some layers share another's cache
            keys = keys_of(layer)
            if keys is not None and keys.key.numel():  # a rank may have no head
                self.kernels.copy_slots(sources, targets, keys.key, keys.value)

    def _slot(self, span: Span, index: int) -> int:
        return span.blocks[index // self.block_size] * self.block_size + index % self.block_size


def _chosen(x: Tensor, rows: Sequence[int]) -> Tensor:
    """Return some rows of `x`."""
    return x if list(rows) == list(range(len(x))) else x.index_select(0, torch.tensor(rows))
