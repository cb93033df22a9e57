"""What EAGLE-type heads share: their own decoder layer, which reads tokens together with the target's states.

Such a head consumes pairs: a token, and the target's state at the position before it. From both it predicts the state
at the token's own position, and with that the next token. Its keys and values of a pair lie in the slot of the pair's
token. So, like the target's, they depend on the tokens up to there, and prefixes are shared as usual; the first token
has no pair, and its slot stays unused. The pair's rotary position is the state's.

Only pairs with the target's own states are kept. Beyond these, the head continues alone: each node is paired with the
state that predicted it, in slots that the next step's pairs overwrite.

A target with recurrent layers cannot run a token again for its state. There the state before a step's first row is
kept as those layers keep theirs (`_Before`), checkpoints included; if older ones are lacking, the head starts over.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from parlay.checkpoints.loader import Checkpoint
from parlay.errors import ModelError
from parlay.kernels.base import Kernels, StateMetadata
from parlay.kv.cache_tensors import allocate, allocate_states
from parlay.models.config import ModelConfig
from parlay.models.context import Buffers, CacheLayers, ForwardContext, StateCache
from parlay.models.decoder import Decoder
from parlay.models.layers import Embedding
from parlay.models.select import cache_spec, exposes_hidden_states
from parlay.proposers.base import Runtime, TargetInfo, draft_length, draft_room
from parlay.proposers.device_verdict import Shift
from parlay.proposers.draft_head import DraftWork, Start
from parlay.proposers.draft_output import DraftOutput
from parlay.proposers.draft_slots import DraftSlots, scratch_blocks
from parlay.proposers.expander import MOST_LEVELS, Expander
from parlay.proposers.heads import CheckpointHead, CheckpointOptions, shape_of
from parlay.proposers.shared_passes import shared
from parlay.proposers.target_layers import TargetEmbedding
from parlay.proposers.vocabulary import fitted
from parlay.runner.batch import Batch, Segment, copy_batch, flatten
from parlay.runner.graphs import MOST_ROWS, empty_batch
from parlay.types.cache import CacheKind, RecurrentSpec
from parlay.types.plan import NO_PROPOSAL, Proposal, ProposerState, Span, Verdict

_LEAST_BLOCKS = 16
_EMBEDDING = "embed_tokens.weight"  # in every format


@dataclass(frozen=True, slots=True)
class _PairRun:
    """Pairs of one request with the target's states.

    Attributes:
        segment: the pairs' tokens, slots and blocks.
        rows: rows of the target's states.
        length: number of tokens to draft after them; 0 where none are wanted, or some pairs are still missing.
        since: first token that the head has seen, see `ProposerState`.
    """

    segment: Segment
    rows: Sequence[int]
    length: int
    since: int

    @property
    def state(self) -> ProposerState:
        """How far the head's layers have come with them."""
        return ProposerState(self.known, since=self.since)

    @property
    def known(self) -> int:
        """Tokens up to and including the last pair's."""
        return self.segment.start + len(self.segment.tokens)


@dataclass(frozen=True, slots=True)
class _RecordedPass:
    """A pass over pairs with the target's states.

    Attributes:
        inputs: tokens, places and views, written before it runs.
        parts: the target's states `[n, rows, H]`, written before it runs too.
        state: the predicted states `[rows, d]`.
        work: function that runs the pass.
    """

    inputs: Batch
    parts: Tensor
    state: Tensor
    work: Callable[[], object]


class _Before:
    """The target's state before each row, which is kept like the rows of a short convolution with two taps."""

    def __init__(self, kernels: Kernels, caches: Sequence[StateCache], width: int, dtype: torch.dtype) -> None:
        self._kernels, self._caches = kernels, caches
        self._taps = torch.tensor([[1.0], [0.0]]).expand(2, width).contiguous().to(dtype)
        self._rows = torch.empty(0)

    def save_states(self, states: StateMetadata, sources: Tensor) -> None:
        """Take the target's states of a step's rows, `[n, rows, H]`."""
        self._rows = torch.empty_like(sources)
        for source, cache, out in zip(sources, self._caches, self._rows, strict=True):
            self._kernels.causal_conv(source, self._taps, None, False, states, cache.tails, cache.kept_rows, out)

    def append_previous(self, sources: Tensor) -> Tensor:
        """Return the states of a step's rows, and behind them those of the rows before each: `[n, 2 rows, H]`."""
        return torch.cat((sources, self._rows), dim=1)


class FeatureHead(CheckpointHead):
    """A proposer with such a head.

    A subclass says which of the target's states a pair has, and how a node is made from a predicted state; its
    `describe` also sets `config` and `taps`. Passes of few rows over known pairs are recorded too, one for each
    number of rows and each power of two of blocks.

    Ranks that share it split its layers, its cache and, if it has them, its own embedding and output layer; the
    target's embedding and output layer stay on rank 0 (`TargetEmbedding`).

    Attributes:
        config: config of the head's layers.
        depth: number of states that follow from a pair one after another, see `LayeredHead`.
        output: the target's output layer, for a head without one.
        records: whether its layers compute with kernels alone.
    """

    pairs = True
    follows_verdict = True
    records: ClassVar[bool] = True
    config: ModelConfig
    depth: int = 1
    output: DraftOutput | None = None

    def __init__(self, options: CheckpointOptions, target: TargetInfo) -> None:
        super().__init__(options, target)
        self.reruns = not target.config.recurrent
        self.cache = cache_spec(self.config, target.dtype)
        self.keeps_states = not self.reruns
        if not self.reruns:
            layers: list[CacheKind] = ["keys"] * self.config.num_layers
            kept: list[CacheKind] = ["states"] * max(len(self.taps), 1)
            self.cache = replace(
                self.cache, recurrent=RecurrentSpec(target.config.hidden_size, 2), pattern=(*layers, *kept)
            )

    def combine_states(self, parts: Tensor, state: Tensor, context: ForwardContext) -> None:
        """Write a pair's input from the target's states, `[rows, d]`; `parts` `[n, rows, H]` may be overwritten.

        Unless a subclass says otherwise, it is the first of them.
        """
        context.kernels.embed(parts[0], torch.arange(len(state)), state)

    @abstractmethod
    def run_pairs(self, tokens: Tensor, state: Tensor, context: ForwardContext) -> None:
        """Run the layers on tokens `[rows]` with `state` `[rows, d]`, which is replaced by the predicted state."""

    def run_pairs_in(self, layer: int, tokens: Tensor, state: Tensor, context: ForwardContext) -> None:
        """As `run_pairs`, by the layer that predicts state number `layer`, below `depth`."""
        self.run_pairs(tokens, state, context)

    @abstractmethod
    def logits(self, state: Tensor) -> Tensor:
        """Return float32 logits `[rows, D]` of predicted states `[rows, d]`, at most `MOST_ROWS`."""

    def sources(self, hidden: Tensor, tapped: Tensor | None) -> Tensor:
        """Return the target's states that a pair has, `[n, rows, H]`: those of its taps, or else the last ones."""
        return hidden[None] if tapped is None or not self.taps else tapped

    def needs_embedding(self, weights: Checkpoint) -> bool:
        """Whether the head needs the target's embedding.

        Raises:
            ModelError: the target cannot share its own.
        """
        if _EMBEDDING in weights.names:
            return False
        if not exposes_hidden_states(self._target.config):
            raise ModelError(
                f"the draft head {self.head.path} has no {_EMBEDDING}, and the architecture of the target "
                f"{self._target.config.path} cannot share its own; give a head that has an embedding"
            )
        return True

    def read_embedding(self, weights: Checkpoint, runtime: Runtime) -> Embedding | TargetEmbedding:
        """Return the target's embedding unless the head has another: its own is usually a copy, and a large one.

        Where ranks share the head they share its own too, since only one of them could compare the two.
        """
        dtype, target, group = self._target.dtype, runtime.target, runtime.group
        if _EMBEDDING not in weights.names:
            return TargetEmbedding(target, group)
        shared = target.embedding if group.size == 1 and isinstance(target, Decoder) else None
        if shared is not None and torch.equal(weights.read(_EMBEDDING, dtype), shared.numbers(dtype)):
            return shared
        own = fitted(weights.read_weight(_EMBEDDING, dtype), self._target.config.vocab_size)
        return Embedding(runtime.kernels, own, group)

    def load(self, runtime: Runtime) -> None:
        """Read the head's weights and allocate its cache layers and what its passes write to."""
        dtype, group, self._block_size = self._target.dtype, runtime.group, runtime.block_size
        blocks, own = runtime.num_blocks + scratch_blocks(runtime.block_size), cache_spec(self.config, dtype, group)
        self._layer_caches: CacheLayers = allocate(own, blocks, runtime.block_size, dtype, kernels=runtime.kernels)
        super().load(runtime)
        self._before: _Before | None = None
        if self.cache is not None and self.cache.recurrent is not None and not group.rank:
            spec, count = self.cache.recurrent, self.cache.pattern.count("states")
            before = [allocate_states(spec, runtime.room, dtype, runtime.kernels) for _ in range(count)]
            self._before = _Before(runtime.kernels, before, spec.channels, dtype)
        self._memory = Buffers(MOST_ROWS, dtype)  # shared by all recordings, of which one runs at a time
        self._recorded = group.size == 1 and self.records
        if group.rank:  # only rank 0 drafts
            return
        self._passes: dict[tuple[int, int, int], _RecordedPass] = {}
        self._state = torch.zeros((MOST_ROWS, self.config.hidden_size), dtype=dtype)  # of the drafting requests
        self._spare, self._every = torch.zeros_like(self._state), torch.arange(MOST_ROWS)
        vocab_size = self._target.config.vocab_size
        self._expander = Expander(self, runtime, MOST_LEVELS, vocab_size, records=self.records)
        self._uploads, sizes = runtime.uploads, (runtime.num_blocks, runtime.block_size)
        self._slots = DraftSlots(self._expander.tokens, *sizes, runtime.uploads, pairs=True)

    # ------------------------------------------------------------------------------------------------- proposing

    def save_states(self, states: StateMetadata, hidden: Tensor, tapped: Tensor | None = None) -> None:  # noqa: D102
        if self._before is not None:
            self._before.save_states(states, self.sources(hidden, tapped))

    def observe(self, spans: Sequence[Span], verdicts: Sequence[Verdict]) -> None:  # noqa: D102
        if self.output is not None:
            self.output.observe(spans, verdicts)
            self.ids = self.output.ids

    def plan(self, spans: Sequence[Span], verdicts: Sequence[Verdict]) -> DraftWork:
        """Keep the pairs that the step has made known, and draft for each request that lacks none."""
        work, held = DraftWork([NO_PROPOSAL] * len(spans), []), self._before is not None
        work.previous = held and any(map(_lacks_one, spans))
        for i, rows, ready in _fresh(spans, verdicts, held=held):
            span, emitted = spans[i], verdicts[i].tokens
            run = _run(span, verdicts[i], rows, ready=ready)
            if run is None:
                continue
            work.segments.append(run.segment)
            work.sources += run.rows
            work.proposals[i] = Proposal(state=run.state)
            end = len(work.sources)
            if ready and emitted:
                work.emitted.append((i, end - len(emitted), len(emitted)))
            if run.length and run.known >= run.segment.first + self.depth - 1:
                shape = shape_of(span.catch_up, run.length)
                work.starts.append(Start(i, span, end - 1, emitted, run.known, *shape, run.segment.first))
        return work

    def flatten(self, segments: Sequence[Segment]) -> Batch:  # noqa: D102
        return flatten(segments, self._block_size)

    def run_known(  # noqa: D102
        self, work: DraftWork, batch: Batch | None, sources: Tensor, hidden: Tensor, tapped: Tensor | None
    ) -> Tensor:
        assert batch is not None
        states, before = self.sources(hidden, tapped), self._before
        if before is not None and work.previous:
            states = before.append_previous(states)
        return self._predict(batch, states, sources)

    def _predict(self, batch: Batch, sources: Tensor, chosen: Tensor) -> Tensor:
        """Run pairs with rows `chosen` of the target's states; return what `begin` is given of them."""
        return self._run_known_pairs(batch, sources, chosen)

    def _run_known_pairs(self, batch: Batch, sources: Tensor, chosen: Tensor, layer: int = 0) -> Tensor:
        """Run pairs with rows `chosen` of states; return the predicted states `[rows, d]`, valid until the next."""
        count, blocks = len(chosen), batch.view.tables.shape[1]
        if count > MOST_ROWS or not self._recorded:
            parts = torch.empty((len(sources), count, sources.shape[2]), dtype=sources.dtype)
            self._gather_parts(sources, chosen, parts)
            return self._complete(_shifted(batch), parts, layer)
        blocks = _rounded(blocks)
        key = (count, blocks, layer)
        recorded = self._passes.get(key)
        if recorded is None:
            recorded = self._passes[key] = self._prepare(empty_batch(count, blocks), len(sources), layer)
        copy_batch(batch, recorded.inputs)
        recorded.inputs.positions.sub_(1)
        self._gather_parts(sources, chosen, recorded.parts)
        self._expander.recorder.run([(("keep", *key), recorded.work)])
        return recorded.state

    def _gather_parts(self, sources: Tensor, chosen: Tensor, parts: Tensor) -> None:
        for source, part in zip(sources, parts, strict=True):
            self._kernels.embed(source, chosen, part)

    def _prepare(self, inputs: Batch, parts: int, layer: int) -> _RecordedPass:
        count, width = len(inputs.tokens), self._target.config.hidden_size
        buffers = self._buffers(count)
        given = buffers("parts", parts * width).view(parts, count, width)
        state = buffers("state", self.config.hidden_size)
        return _RecordedPass(inputs, given, state, partial(self._complete, inputs, given, layer))

    @shared
    def _complete(self, inputs: Batch, parts: Tensor, layer: int) -> Tensor:
        """Run pairs with states `[n, rows, H]` that are kept; return the predicted states `[rows, d]`."""
        context = self._context(inputs)
        state = context.buffers("state", self.config.hidden_size)
        self.combine_states(parts, state, context)
        self.run_pairs_in(layer, inputs.tokens, state, context)
        return state

    # --------------------------------------------------------------------------------------------------- drafting

    def place(self, starts: Sequence[Start], width: int = 1) -> None:  # noqa: D102
        self._slots.prepare(starts, width)

    def shift(self, shift: Shift) -> None:  # noqa: D102
        self._slots.shift(shift)

    def begin(self, states: Tensor, rows: Tensor) -> None:  # noqa: D102
        self._kernels.embed(states, rows, self._state[: len(rows)])

    def paths(self, level: int, rows: int) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # noqa: D102
        return self._slots.paths(level, rows)

    def gather(self, level: int, origin: Tensor) -> None:  # noqa: D102
        rows = len(origin)
        self._kernels.embed(self._state, origin, self._spare[:rows])
        self._kernels.embed(self._spare, self._every[:rows], self._state[:rows])

    def advance(self, level: int, rows: int, width: int = 1) -> None:  # noqa: D102
        if level:  # the first follows from pairs with the target's own states
            inputs = self.read_by(self._slots.batch(level, rows, width), self._block_size, recorded=self._recorded)
            self._continue(inputs, self._state[:rows], 0)

    @shared
    def _continue(self, inputs: Batch, state: Tensor, layer: int) -> None:
        """Run nodes paired with the states `[rows, d]` that predicted them, which are replaced by their own."""
        self.run_pairs_in(layer, inputs.tokens, state, self._context(inputs))

    def score(self, level: int, rows: int) -> Tensor:  # noqa: D102
        return self.logits(self._state[:rows])

    def _context(self, batch: Batch) -> ForwardContext:
        caches, buffers = self._layer_caches, self._buffers(len(batch.tokens))
        return ForwardContext(self._kernels, batch.positions, batch.slots, batch.view, caches, buffers)

    def _buffers(self, rows: int) -> Buffers:
        return Buffers(rows, self._target.dtype, self._memory if rows <= MOST_ROWS else None)


def _fresh(
    spans: Sequence[Span], verdicts: Sequence[Verdict], *, held: bool
) -> Iterator[tuple[int, Sequence[int], bool]]:
    """Yield the spans that follow and complete pairs in this step, and the rows of the states that these need.

    The third value is whether no state is missing then. Rows that run once more come first. Where the states before
    rows are `held`, behind theirs by as many rows as there are, that before the span's own may come first. If some
    states are still missing, the span's own are of no use yet.
    """
    row, again = 0, sum(len(span.tokens) + len(span.draft.tokens) for span in spans)
    count = again
    for i, (span, verdict) in enumerate(zip(spans, verdicts, strict=True)):
        first, node = row, row + len(span.tokens)
        row, ask = node + len(span.draft.tokens), span.catch_up
        rows: Sequence[int] = range(again, again + len(ask.rerun))
        again += len(rows)
        before = held and _lacks_one(span)
        if before:
            rows = [count + first]
        ready = before or ask.rerun_start + len(ask.rerun) == span.start
        if not ask.follow or (span.sample and draft_room(span, verdict) < 1):
            continue
        if ready:
            own = range(first, node)
            rows = [*rows, *own, *(node + n for n in verdict.path)] if rows or verdict.path else own
        if rows:
            yield i, rows, ready


def _lacks_one(span: Span) -> bool:
    """Whether the head follows a request and has not seen the state before the span's own."""
    return span.catch_up.follow and span.catch_up.rerun_start == span.start - 1


def _run(span: Span, verdict: Verdict, rows: Sequence[int], *, ready: bool) -> _PairRun | None:
    """Return the pairs of rows; `ready`: whether no others are missing."""
    state = span.catch_up.state
    tokens = (span.catch_up.unseen + verdict.tokens)[state.next_pair - state.computed :][: len(rows)]
    if not tokens:
        return None
    assert len(tokens) == len(rows)
    length = min(max(draft_length(span, verdict), 0), MOST_LEVELS) if ready else 0
    first = max(state.since, 1)
    return _PairRun(Segment(tokens, state.next_pair, span.blocks, first=first), rows, length, state.since)


def _shifted(batch: Batch) -> Batch:
    """Return a batch of pairs: each has the position before its slot's."""
    return replace(batch, positions=batch.positions - 1)


def _rounded(blocks: int) -> int:
    return max(_LEAST_BLOCKS, 1 << (blocks - 1).bit_length())
