"""What EAGLE-type heads share: a decoder layer of their own that reads tokens beside the target's states.

Such a head consumes pairs: a token, and the target's state at the position before it. From both it foresees the state
at the token's own position, and with that the token after. Its keys and values of a pair lie in the slot of the
pair's token, so that like the target's they follow from the tokens up to there, and prefixes are shared as ever; the
first token has no pair, and its slot stays unused. The pair's rotary position is the state's.

Of what is known, only pairs with the target's own states are kept. Beyond, the head goes on alone: each guess is
paired with the state that foresaw it, in slots that the next step's pairs overwrite.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parlay.errors import ModelError
from parlay.kernels.base import AttentionView
from parlay.kv.store import allocate
from parlay.models.config import ModelConfig
from parlay.models.context import Buffers, ForwardContext, LayerCache
from parlay.models.decoder import Decoder
from parlay.models.heads import read_head
from parlay.models.loader import Checkpoint
from parlay.models.select import Model, cache_spec, lends
from parlay.proposers.base import DeviceProposer, Runtime, TargetInfo, draft_length, draft_room
from parlay.proposers.draws import Draws
from parlay.proposers.heads import MOST_ROWS, Options
from parlay.runner.batch import Batch, Stretch, flatten, table_array
from parlay.runner.graphs import copy_batch, empty_batch
from parlay.types.draft import Draft
from parlay.types.plan import Proposal, ProposerState, Span, Verdict

_LEAST_BLOCKS = 16
_MOST_STEPS = 64


@dataclass(frozen=True, slots=True)
class _Run:
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
class _Chain:
    """Where a request drafts from: its pairs, and the row of the last of them."""

    run: _Run
    row: int


@dataclass(frozen=True, slots=True)
class _Kept:
    """A pass over pairs with the target's states.

    Attributes:
        inputs: tokens, places and views, written before it runs.
        parts: the target's states `[n, rows, H]`, likewise.
        state: what it foresees `[rows, d]`.
        work: what it does.
    """

    inputs: Batch
    parts: Tensor
    state: Tensor
    work: Callable[[], None]


class PairedProposer(DeviceProposer):
    """A proposer with such a head.

    A subclass says what of the target's states a pair has, and how a guess is made of a foreseen state. Passes of few
    rows are recorded, one for each number of rows and each power of two of blocks; along a draft one for each step,
    so that nothing but kernels runs between two guesses. Requests with the longest drafts come first, so that those
    still drafting are always the leading rows of the same memory.

    Attributes:
        source: who guessed, in drafts.
        head: the checkpoint.
        config: of the head's layers; set by `describe`.
        recordable: whether all that `score` does can be recorded.
    """

    pairs = True
    source: ClassVar[str]
    config: ModelConfig
    recordable = True

    def __init__(self, options: Options, target: TargetInfo) -> None:
        self._target = target
        self.head = read_head(options.model, replace(target.hub, revision=options.revision))
        with Checkpoint(self.head.path, head=True) as weights:
            self.describe(weights)
        self.cache = cache_spec(self.config, target.dtype)

    @abstractmethod
    def describe(self, weights: Checkpoint) -> None:
        """Compare the files' headers with config and target; set `config`, `taps` and `weight_bytes`.

        Raises:
            ModelError: they do not fit.
        """

    @abstractmethod
    def read(self, weights: Checkpoint, runtime: Runtime) -> None:
        """Read the weights into the form that the kernels want."""

    @abstractmethod
    def begin(self, parts: Tensor, state: Tensor, context: ForwardContext) -> None:
        """Write `[rows, d]`, what a pair has of the target's states, of which `parts` `[n, rows, H]` may change."""

    @abstractmethod
    def foresee(self, tokens: Tensor, state: Tensor, context: ForwardContext) -> None:
        """Run the layers on tokens `[rows]` beside `state` `[rows, d]`, which becomes the one to go on with."""

    @abstractmethod
    def score(self, state: Tensor) -> Tensor:
        """Return float32 logits `[rows, D]` of foreseen states `[rows, d]`, at most `MOST_ROWS`."""

    def sources(self, hidden: Tensor, tapped: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return what of the target's states a pair has, `[rows, H]` each."""
        return tapped

    def needs_embedding(self, weights: Checkpoint) -> bool:
        """Whether the head has no embedding of its own.

        Raises:
            ModelError: the target cannot lend its own.
        """
        if "embed_tokens.weight" in weights.names:
            return False
        if not lends(self._target.config):
            raise ModelError(
                f"the draft head {self.head.path} has no embed_tokens.weight, and the architecture of the target "
                f"{self._target.config.path} does not lend its own; give a head with an embedding of its own"
            )
        return True

    def load(self, runtime: Runtime) -> None:
        """Read the head's weights and allocate its cache layers and what its passes write to."""
        assert self.cache is not None
        dtype, width = self._target.dtype, self.config.hidden_size
        self._kernels, self._block_size = runtime.kernels, runtime.block_size
        self._layer_caches: tuple[LayerCache, ...] = allocate(
            self.cache, runtime.num_blocks, runtime.block_size, dtype
        )
        with Checkpoint(self.head.path, head=True) as weights:
            self.read(weights, runtime)
        self._vocabulary = self.vocabulary()
        self._passes: dict[tuple[str, int, int], Callable[[], object]] = {}
        self._memory = Buffers(MOST_ROWS, dtype)  # of all recordings, for one runs at a time
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._tables: dict[int, Tensor] = {}
        self._state = torch.zeros((MOST_ROWS, width), dtype=dtype)  # of those who draft
        # Of each step the tokens it guesses and how likely they are to the head; of all but the first, where each
        # guess before it stands.
        shape = (_MOST_STEPS, MOST_ROWS)
        self._tokens, self._likely = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape)
        self._positions, self._last = torch.zeros(shape, dtype=torch.int32), torch.zeros(shape, dtype=torch.int32)
        self._slots = torch.zeros(shape, dtype=torch.int64)
        self._each = torch.arange(MOST_ROWS, dtype=torch.int32)
        self._ones = torch.ones(MOST_ROWS, dtype=torch.int32)
        self._none = torch.zeros(MOST_ROWS + 1, dtype=torch.int32)
        self._draws = Draws(_MOST_STEPS, MOST_ROWS)

    def vocabulary(self) -> Tensor | None:
        """Return the target's ids `[D]` of the tokens that the head can guess, or None if they are the same."""
        return None

    # ------------------------------------------------------------------------------------------------- proposing

    def propose(
        self, spans: Sequence[Span], verdicts: Sequence[Verdict], hidden: Tensor, tapped: Sequence[Tensor] = ()
    ) -> list[Proposal]:
        """Keep the pairs that the step has made known, then draft a chain for each request that lacks none."""
        proposals = [Proposal(state=span.catch_up.state) for span in spans]
        runs = _runs(spans, verdicts)
        if not runs:
            return proposals
        batch = flatten([run.stretch for run in runs], self._block_size)
        rows = [row for run in runs for row in run.rows]
        states = self._keep(batch, self.sources(hidden, tapped), torch.tensor(rows))
        chains = []
        for run, end in zip(runs, batch.offsets[1:], strict=True):
            proposals[run.index] = Proposal(state=ProposerState(run.known))
            if run.length:
                chains.append(_Chain(run, end - 1))
        chains.sort(key=lambda chain: -chain.run.length)
        for first in range(0, len(chains), MOST_ROWS):
            turn = chains[first : first + MOST_ROWS]
            self._draws.prepare([spans[c.run.index] for c in turn], [c.run.known for c in turn])
            for chain, draft in zip(turn, self._draft(turn, states), strict=True):
                proposals[chain.run.index] = Proposal(draft, ProposerState(chain.run.known))
        return proposals

    def _keep(self, batch: Batch, sources: Sequence[Tensor], chosen: Tensor) -> Tensor:
        """Run pairs with rows `chosen` of the target's states; return the states `[rows, d]` that they foresee."""
        count, blocks = len(chosen), batch.view.tables.shape[1]
        if count > MOST_ROWS:
            kept = self._prepare(_shifted(batch), len(sources), Buffers(count, self._target.dtype))
        else:
            blocks = _rounded(blocks)
            known = self._kept.get((count, blocks))
            if known is None:
                buffers = Buffers(count, self._target.dtype, self._memory)
                known = self._prepare(empty_batch(count, blocks), len(sources), buffers)
                self._kept[count, blocks] = known
            kept = known
            copy_batch(batch, kept.inputs)
            kept.inputs.positions.sub_(1)
            kept.inputs.view.first.fill_(1)
        for source, part in zip(sources, kept.parts, strict=True):
            self._kernels.embed(source, chosen, part)
        if count > MOST_ROWS:
            kept.work()
        else:
            self._run("keep", count, blocks, kept.work)
        return kept.state

    def _prepare(self, inputs: Batch, parts: int, buffers: Buffers) -> "_Kept":
        context, width = self._context(inputs, buffers), self._target.config.hidden_size
        given = buffers("parts", parts * width).view(parts, len(inputs.tokens), width)
        state = buffers("state", self.config.hidden_size)

        def work() -> None:
            self.begin(given, state, context)
            self.foresee(inputs.tokens, state, context)

        return _Kept(inputs, given, state, work)

    def _draft(self, turn: list[_Chain], states: Tensor) -> list[Draft]:
        """Guess from the last foreseen states, then go on with the head's own."""
        counts = [sum(chain.run.length > step for chain in turn) for step in range(turn[0].run.length)]
        rows, steps = len(turn), len(counts)
        self._kernels.embed(states, torch.tensor([chain.row for chain in turn]), self._state[:rows])
        blocks = 0
        if steps > 1:
            tables = table_array([chain.run.stretch.blocks for chain in turn])
            blocks = _rounded(tables.shape[1])
            self._table(blocks)[:rows, : tables.shape[1]] = torch.from_numpy(tables)
            places = np.array([chain.run.known for chain in turn])[None] + np.arange(steps - 1)[:, None]
            self._positions[1:steps, :rows] = torch.from_numpy(places - 1)
            self._last[1:steps, :rows] = torch.from_numpy(places + 1)
            self._slots[1:steps, :rows] = torch.from_numpy(_slots(tables, places, self._block_size))
        for step, count in enumerate(counts):
            if step or self.recordable:
                kind = f"guess {step}, filtered" if self._draws.filtered else f"guess {step}"
                self._run(kind, count, blocks if step else 0, partial(self._guess, step, count, blocks))
            if not self.recordable:
                self._choose(step, count)
        tokens = self._tokens[:steps, :rows].T.tolist()
        probs = self._likely[:steps, :rows].T.tolist()
        return [
            Draft.chain(own[: chain.run.length], self.source, sure[: chain.run.length])
            for chain, own, sure in zip(turn, tokens, probs, strict=True)
        ]

    def _guess(self, step: int, count: int, blocks: int) -> None:
        """Make guess `step` of the leading requests, from the guess before it unless it is the first."""
        if step:
            inputs = self._step(step, count, blocks)
            context = self._context(inputs, Buffers(count, self._target.dtype, self._memory))
            self.foresee(inputs.tokens, self._state[:count], context)
        if self.recordable:
            self._choose(step, count)

    def _choose(self, step: int, count: int) -> None:
        """Draw a token from what each of the leading states foresees."""
        tokens, likely = self._tokens[step, :count], self._likely[step, :count]
        self._draws.draw(self._kernels, step, self.score(self._state[:count]), tokens, likely, self._vocabulary)

    # ---------------------------------------------------------------------------------------------------- passes

    def _run(self, kind: str, rows: int, blocks: int, work: Callable[[], object]) -> None:
        """Run `work`, from its recording if there is one."""
        known = self._passes.get((kind, rows, blocks))
        if known is not None:
            known()
            return
        replay = self._kernels.record(work)
        if replay is None:  # nothing can be recorded here, and nothing has run
            work()
        else:
            self._passes[kind, rows, blocks] = replay

    def _context(self, batch: Batch, buffers: Buffers) -> ForwardContext:
        return ForwardContext(self._kernels, batch.positions, batch.slots, batch.view, self._layer_caches, buffers)

    def _table(self, blocks: int) -> Tensor:
        if blocks not in self._tables:
            self._tables[blocks] = torch.zeros((MOST_ROWS, blocks), dtype=torch.int32)
        return self._tables[blocks]

    def _step(self, step: int, rows: int, blocks: int) -> Batch:
        """Return what a step after the first reads: one row a request, its token the guess before."""
        view = AttentionView(
            tables=self._table(blocks)[:rows],
            row_request=self._each[:rows],
            first=self._ones[:rows],
            last=self._last[step, :rows],
            extra_offsets=self._none[: rows + 1],
            extra_slots=self._none[:0],
        )
        tokens, positions, slots = (
            self._tokens[step - 1, :rows],
            self._positions[step, :rows],
            self._slots[step, :rows],
        )
        return Batch(tokens, positions, slots, view, ())


def _runs(spans: Sequence[Span], verdicts: Sequence[Verdict]) -> list[_Run]:
    """Return the pairs of each request that the step's states complete."""
    runs: list[_Run] = []
    row, again = 0, sum(len(span.tokens) + len(span.draft) for span in spans)
    for i, (span, verdict) in enumerate(zip(spans, verdicts, strict=True)):
        first, node = row, row + len(span.tokens)
        row = node + len(span.draft)
        repeated = range(again, again + len(span.catch_up.again))
        again = repeated.stop
        if not span.catch_up.follow or (span.sample and draft_room(span, verdict) < 1):
            continue
        rows = list(repeated)
        complete = span.catch_up.again_start + len(repeated) == span.start
        if complete:
            rows += [*range(first, node), *(node + n for n in verdict.path)]
        if rows:
            slot = span.catch_up.again_start + 1
            tokens = (span.catch_up.behind + verdict.tokens)[slot - span.catch_up.state.computed :][: len(rows)]
            assert len(tokens) == len(rows)
            length = min(max(draft_length(span, verdict), 0), _MOST_STEPS) if complete else 0
            runs.append(_Run(i, Stretch(tokens, slot, span.blocks), rows, length))
    return runs


def records_logits(target: Model) -> bool:
    """Whether a target's logits are computed by kernels alone, so that they can be recorded."""
    return isinstance(target, Decoder) and target.config.style.logit_divisor == 1


def lent_logits(target: Model) -> Callable[[Tensor], Tensor]:
    """Return what makes logits of at most `MOST_ROWS` states; a target's own keep theirs in each recorded pass."""
    if not isinstance(target, Decoder):
        return target.logits
    memory = torch.zeros((MOST_ROWS, target.config.vocab_size))
    return lambda states: target.logits(states, memory[: len(states)])


def _shifted(batch: Batch) -> Batch:
    """Return a batch of pairs: each stands one position before its slot and sees none in the first."""
    view = replace(batch.view, first=torch.ones_like(batch.view.first))
    return replace(batch, positions=batch.positions - 1, view=view)


def _slots(tables: NDArray[np.int32], places: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the slots of logical indices `places` `[steps, requests]`; any for those beyond a table."""
    places = np.minimum(places, tables.shape[1] * size - 1)
    found: NDArray[np.int64] = tables[np.arange(len(tables)), places // size].astype(np.int64) * size + places % size
    return found


def _rounded(blocks: int) -> int:
    return max(_LEAST_BLOCKS, 1 << (blocks - 1).bit_length())
