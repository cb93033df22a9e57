"""What EAGLE-type heads share: their own decoder layer, which reads tokens together with the target's states.

Such a head consumes pairs: a token, and the target's state at the position before it. From both it predicts the state
at the token's own position, and with that the next token. Its keys and values of a pair lie in the slot of the pair's
token. So, like the target's, they depend on the tokens up to there, and prefixes are shared as usual; the first token
has no pair, and its slot stays unused. The pair's rotary position is the state's.

Only pairs with the target's own states are kept. Beyond these, the head continues alone: each node is paired with the
state that predicted it, in slots that the next step's pairs overwrite.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from parlay.checkpoints.loader import Checkpoint
from parlay.errors import ModelError
from parlay.kv.store import allocate
from parlay.models.config import ModelConfig
from parlay.models.context import Buffers, CacheLayers, ForwardContext
from parlay.models.decoder import Decoder
from parlay.models.layers import Embedding
from parlay.models.select import cache_spec, exposes_hidden_states, refuse_recurrent
from parlay.proposers.base import Runtime, TargetInfo, draft_length, draft_room
from parlay.proposers.draft_head import Start
from parlay.proposers.draft_slots import DraftSlots, scratch_blocks
from parlay.proposers.expander import MOST_LEVELS, Expander
from parlay.proposers.heads import CheckpointHead, CheckpointOptions, shape_of
from parlay.proposers.shared_passes import shared
from parlay.proposers.target_layers import TargetEmbedding
from parlay.proposers.vocabulary import fitted
from parlay.runner.batch import Batch, Stretch, flatten, trimmed
from parlay.runner.graphs import MOST_ROWS, copy_batch, empty_batch
from parlay.types.plan import NO_PROPOSAL, Proposal, ProposerState, Span, Verdict

_LEAST_BLOCKS = 16
_EMBEDDING = "embed_tokens.weight"  # in every format


@dataclass(frozen=True, slots=True)
class _PairRun:
    """Pairs of one request with the target's states.

    Attributes:
        index: of its span.
        stretch: their tokens, slots and blocks.
        rows: of the target's states.
        length: how many tokens to draft after them; 0 where none are wanted, or some pairs are still missing.
    """

    index: int
    stretch: Stretch
    rows: Sequence[int]
    length: int

    @property
    def known(self) -> int:
        """Tokens up to and including the last pair's."""
        return self.stretch.start + len(self.stretch.tokens)


@dataclass(frozen=True, slots=True)
class _RecordedPass:
    """A pass over pairs with the target's states.

    Attributes:
        inputs: tokens, places and views, written before it runs.
        parts: the target's states `[n, rows, H]`, likewise.
        state: the predicted states `[rows, d]`.
        work: runs the pass.
    """

    inputs: Batch
    parts: Tensor
    state: Tensor
    work: Callable[[], object]


class FeatureHead(CheckpointHead):
    """A proposer with such a head.

    A subclass says which of the target's states a pair has, and how a node is made from a predicted state; its
    `describe` also sets `config` and `taps`. Passes of few rows over known pairs are recorded too, one for each
    number of rows and each power of two of blocks.

    Ranks that share it split its layers, its cache and, if it has them, its own embedding and output layer; the
    target's embedding and output layer stay on rank 0 (`TargetEmbedding`).

    Attributes:
        config: of the head's layers.
    """

    pairs = True
    config: ModelConfig

    def __init__(self, options: CheckpointOptions, target: TargetInfo) -> None:
        refuse_recurrent(target.config, self.source)
        super().__init__(options, target)
        self.cache = cache_spec(self.config, target.dtype)

    @abstractmethod
    def enter(self, parts: Tensor, state: Tensor, context: ForwardContext) -> None:
        """Write a pair's input from the target's states, `[rows, d]`; `parts` `[n, rows, H]` may be overwritten."""

    @abstractmethod
    def foresee(self, tokens: Tensor, state: Tensor, context: ForwardContext) -> None:
        """Run the layers on tokens `[rows]` with `state` `[rows, d]`, which is replaced by the predicted state."""

    @abstractmethod
    def logits(self, state: Tensor) -> Tensor:
        """Return float32 logits `[rows, D]` of predicted states `[rows, d]`, at most `MOST_ROWS`."""

    def sources(self, hidden: Tensor, tapped: Tensor | None) -> Tensor:
        """Return the target's states that a pair has, `[n, rows, H]`."""
        assert tapped is not None
        return tapped

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
        self._layer_caches: CacheLayers = allocate(own, blocks, runtime.block_size, dtype)
        super().load(runtime)
        self._memory = Buffers(MOST_ROWS, dtype)  # shared by all recordings, of which one runs at a time
        self._recorded = group.size == 1
        if group.rank:  # which does not draft
            return
        self._passes: dict[tuple[int, int], _RecordedPass] = {}
        self._state = torch.zeros((MOST_ROWS, self.config.hidden_size), dtype=dtype)  # of the requests that draft
        self._spare, self._every = torch.zeros_like(self._state), torch.arange(MOST_ROWS)
        self._expander = Expander(self, runtime, MOST_LEVELS, self._target.config.vocab_size)
        self._slots = DraftSlots(self._expander.tokens, runtime.num_blocks, runtime.block_size, pairs=True)

    # ------------------------------------------------------------------------------------------------- proposing

    def propose(
        self, spans: Sequence[Span], verdicts: Sequence[Verdict], hidden: Tensor, tapped: Tensor | None = None
    ) -> list[Proposal]:
        """Keep the pairs that the step has made known, then draft for each request that lacks none."""
        proposals = [NO_PROPOSAL] * len(spans)
        sources = self.sources(hidden, tapped)
        found = [_run(i, spans[i], verdicts[i], rows) for i, rows in _fresh(spans, verdicts)]
        runs = [run for run in found if run is not None]
        if not runs:
            return proposals
        batch = flatten([run.stretch for run in runs], self._block_size)
        states = self._keep(batch, sources, torch.tensor([row for run in runs for row in run.rows]))
        starts = []
        for run, end in zip(runs, batch.offsets[1:], strict=True):
            proposals[run.index] = Proposal(state=ProposerState(run.known))
            if run.length:
                emitted = verdicts[run.index].tokens
                span = spans[run.index]
                shape = shape_of(span.catch_up, run.length)
                starts.append(Start(run.index, span, end - 1, emitted, run.known, *shape))
        for start, draft in self._expander.expand(starts, states):
            proposals[start.index] = Proposal(draft, ProposerState(start.position))
        return proposals

    def _keep(self, batch: Batch, sources: Tensor, chosen: Tensor) -> Tensor:
        """Run pairs with rows `chosen` of the target's states; return the predicted states `[rows, d]`."""
        count, blocks = len(chosen), batch.view.tables.shape[1]
        if count > MOST_ROWS or not self._recorded:
            parts = torch.empty((len(sources), count, sources.shape[2]), dtype=sources.dtype)
            self._gather_parts(sources, chosen, parts)
            return self._complete(_shifted(batch), parts)
        blocks = _rounded(blocks)
        recorded = self._passes.get((count, blocks))
        if recorded is None:
            recorded = self._passes[count, blocks] = self._prepare(empty_batch(count, blocks), len(sources))
        copy_batch(batch, recorded.inputs)
        recorded.inputs.positions.sub_(1)
        recorded.inputs.view.first.fill_(1)
        self._gather_parts(sources, chosen, recorded.parts)
        self._expander.recorder.run([(("keep", count, blocks), recorded.work)])
        return recorded.state

    def _gather_parts(self, sources: Tensor, chosen: Tensor, parts: Tensor) -> None:
        for source, part in zip(sources, parts, strict=True):
            self._kernels.embed(source, chosen, part)

    def _prepare(self, inputs: Batch, parts: int) -> _RecordedPass:
        count, width = len(inputs.tokens), self._target.config.hidden_size
        buffers = self._buffers(count)
        given = buffers("parts", parts * width).view(parts, count, width)
        state = buffers("state", self.config.hidden_size)
        return _RecordedPass(inputs, given, state, partial(self._complete, inputs, given))

    @shared
    def _complete(self, inputs: Batch, parts: Tensor) -> Tensor:
        """Run pairs with the target's states `[n, rows, H]`; return the predicted states `[rows, d]`."""
        context = self._context(inputs)
        state = context.buffers("state", self.config.hidden_size)
        self.enter(parts, state, context)
        self.foresee(inputs.tokens, state, context)
        return state

    # --------------------------------------------------------------------------------------------------- drafting

    def begin(self, turn: Sequence[Start], states: Tensor, width: int = 1) -> None:  # noqa: D102
        self._kernels.embed(states, torch.tensor([start.row for start in turn]), self._state[: len(turn)])
        self._slots.prepare(turn, width)

    def paths(self, level: int, rows: int) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # noqa: D102
        return self._slots.paths(level, rows)

    def gather(self, level: int, origin: Tensor) -> None:  # noqa: D102
        rows = len(origin)
        self._kernels.embed(self._state, origin, self._spare[:rows])
        self._kernels.embed(self._spare, self._every[:rows], self._state[:rows])

    def advance(self, level: int, rows: int, width: int = 1) -> None:  # noqa: D102
        if level:  # the first follows from pairs with the target's own states
            inputs = self._slots.batch(level, rows, width)
            self._continue(inputs if self._recorded else trimmed(inputs, self._block_size), self._state[:rows])

    @shared
    def _continue(self, inputs: Batch, state: Tensor) -> None:
        """Run nodes paired with the states `[rows, d]` that predicted them, which are replaced by their own."""
        self.foresee(inputs.tokens, state, self._context(inputs))

    def score(self, level: int, rows: int) -> Tensor:  # noqa: D102
        return self.logits(self._state[:rows])

    def _context(self, batch: Batch) -> ForwardContext:
        caches, buffers = self._layer_caches, self._buffers(len(batch.tokens))
        return ForwardContext(self._kernels, batch.positions, batch.slots, batch.view, caches, buffers)

    def _buffers(self, rows: int) -> Buffers:
        return Buffers(rows, self._target.dtype, self._memory if rows <= MOST_ROWS else None)


def _fresh(spans: Sequence[Span], verdicts: Sequence[Verdict]) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield the spans that follow and complete pairs in this step, and the rows of the states that these need.

    Rows that run once more come first. If some of those are still missing, the span's own are of no use yet.
    """
    row = again = 0
    for span in spans:
        again += len(span.tokens) + len(span.draft.tokens)
    for i, (span, verdict) in enumerate(zip(spans, verdicts, strict=True)):
        first, node = row, row + len(span.tokens)
        row, ask = node + len(span.draft.tokens), span.catch_up
        rows: Sequence[int] = range(again, again + len(ask.rerun))
        again += len(rows)
        if not ask.follow or (span.sample and draft_room(span, verdict) < 1):
            continue
        if _completes(span):
            own = range(first, node)
            rows = [*rows, *own, *(node + n for n in verdict.path)] if rows or verdict.path else own
        if rows:
            yield i, rows


def _completes(span: Span) -> bool:
    """Whether no state before the span's own is missing."""
    return span.catch_up.rerun_start + len(span.catch_up.rerun) == span.start


def _run(index: int, span: Span, verdict: Verdict, rows: Sequence[int]) -> _PairRun | None:
    """Return the pairs of rows."""
    state = span.catch_up.state
    tokens = (span.catch_up.unseen + verdict.tokens)[state.next_pair - state.computed :][: len(rows)]
    if not tokens:
        return None
    assert len(tokens) == len(rows)
    length = min(max(draft_length(span, verdict), 0), MOST_LEVELS) if _completes(span) else 0
    return _PairRun(index, Stretch(tokens, state.next_pair, span.blocks), rows, length)


def _shifted(batch: Batch) -> Batch:
    """Return a batch of pairs: each stands one position before its slot and sees none in the first."""
    view = replace(batch.view, first=torch.ones_like(batch.view.first))
    return replace(batch, positions=batch.positions - 1, view=view)


def _rounded(blocks: int) -> int:
    return max(_LEAST_BLOCKS, 1 << (blocks - 1).bit_length())
