"""A smaller model drafts token by token, in a chain or along a tree's likeliest branches.

Idea: Leviathan, Kalman, Matias 2023 (arXiv 2211.17192) and Chen et al. 2023 (arXiv 2302.01318). Here the draft model
samples with the target's own noise (Daliri, Musco, Suresh 2024, arXiv 2408.07978), so that it drafts the token that
the target is about to sample instead of drawing an independent one.

Its layers keep their keys and values on the same block ids as the target's and count their computed tokens
themselves: after full acceptance, a prefix hit or a pause there is a gap to close before it drafts again. Recurrent
layers keep no state of a node: the tokens that a step has emitted are run as known ones.

It may have another vocabulary than the target's (`choice.py`). Its layers then hold the text in its own tokens
(`other_vocabulary.py`).

Loses when a draft step is not much cheaper than a target step, or when the two models disagree.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor

from parlay.errors import ConfigError
from parlay.kv.pool import BlockPool
from parlay.models.config import ModelConfig
from parlay.models.decoder import Decoder
from parlay.models.select import (
    cache_spec,
    check_ranks,
    check_weights,
    describe_model,
    stored_kinds,
)
from parlay.proposers.base import Runtime, TargetInfo, draft_length
from parlay.proposers.draft_head import DraftWork, Start
from parlay.proposers.draft_output import DraftOutput, OutputOptions, ReducedOutput
from parlay.proposers.draft_recurrent_states import DRAFT_PLACES
from parlay.proposers.draft_slots import scratch_blocks
from parlay.proposers.expander import MOST_LEVELS
from parlay.proposers.heads import shape_of, share_of, storage_of
from parlay.proposers.methods.draft_model.choice import Vocabulary, choose
from parlay.proposers.methods.draft_model.other_vocabulary import OtherVocabulary
from parlay.proposers.methods.draft_model.progress import Gap, Gaps, SameVocabulary, last_slot
from parlay.proposers.methods.draft_model.translation import Translator
from parlay.proposers.model_head import ModelHead
from parlay.runner.batch import Batch, Segment, flatten
from parlay.runner.footprint import weight_bytes
from parlay.runner.graphs import padded
from parlay.types.cache import StateCapacity
from parlay.types.draft import Draft
from parlay.types.plan import NO_PROPOSAL, Proposal, Span, StateUse, Verdict
from parlay.types.storage import Storage

__all__ = ["EMBEDDED", "Options", "Proposer"]

EMBEDDED: Mapping[str, Any] = {"model": "tiny-code-draft", "vocabulary": "same"}
_OWN_TOKENS = 2  # room for tokens of another vocabulary, per token of the target


@dataclass(frozen=True, slots=True)
class Options(OutputOptions):
    """Options of a draft model.

    Attributes:
        vocabulary: what to do where the target has another one. "intersection": draft the tokens that both have.
            "text": draft any, and let the target's tokenizer make its tokens of the text. "auto": one of these, by
            how many tokens both have. "same": refuse it.
    """

    vocabulary: Vocabulary = "auto"


@dataclass(slots=True)
class _GapWork(DraftWork):
    """What is to be done, with each request's gap and how many of its tokens are run."""

    gaps: dict[int, tuple[Gap, int]] = field(default_factory=dict)


class Proposer(ModelHead):
    """Drafts with a smaller model."""

    source = "draft_model"
    default_length = 4
    same: ClassVar[type[SameVocabulary]] = SameVocabulary  # what its layers lack, with the target's vocabulary

    def __init__(self, options: Options, target: TargetInfo) -> None:
        self._target = target
        config = describe_model(options.model, replace(target.hub, revision=options.revision))
        storage: Storage = "stored" if stored_kinds(config) else storage_of(options, target)
        vocabulary, self._translator = self.resolve_vocabulary(options, config)
        self.own_blocks = vocabulary != "same"
        self.draws = vocabulary != "text"  # several draws may make one token of the target's
        size = target.config.vocab_size
        most = size if config.vocab_size > size and not self.own_blocks else None
        self._config = replace(config, storage=storage, most_tokens=most)
        check_weights(self._config)
        self.share = share_of(self.source, replace(options, vocabulary=vocabulary), self._config.path, target)
        check_ranks(self._config, options.draft_tensor_parallel_size)
        self._room = _OWN_TOKENS if self.own_blocks else 1
        self.cache = replace(cache_spec(self._config, target.dtype), slots=self._room)
        self.recurrent = config.style.recurrent is not None
        self.follows_verdict = not (self.own_blocks or self.recurrent)  # places are the target's, there are no states
        self.weight_bytes = weight_bytes(self._config, target.dtype)
        rows = None if self._translator is None else self._translator.rows
        self._own_rows: ReducedOutput | None = None  # of the tokens that both have, unless these are all
        if rows is not None and len(rows) < config.vocab_size:
            self._own_rows = ReducedOutput(self._config, target.dtype, rows)
            self.weight_bytes += self._own_rows.bytes
        self.output: DraftOutput | None = None
        if vocabulary != "same" or config.library_model is not None:
            if options.draft_vocab_size is not None:
                raise ConfigError(
                    f"draft_vocab_size is for draft models of parlay's own families with the target's vocabulary, "
                    f"which {config.path} is not; leave it out"
                )
        else:
            self.output = DraftOutput(target, self._config, options.draft_vocab_size, self._config)
            self.weight_bytes += self.output.bytes

    def resolve_vocabulary(self, options: Options, config: ModelConfig) -> tuple[Vocabulary, Translator | None]:
        """Return what `choose` does of a draft model.

        Raises:
            ConfigError: an option does not fit it.
            ModelError: it cannot draft for the target.
        """
        return choose(config, self._target, options.vocabulary)

    def load(self, runtime: Runtime) -> None:
        """Read the draft model's weights and allocate its cache layers."""
        self._max_rows = runtime.max_rows
        self._gap: Gaps = self.same.of
        self._other: OtherVocabulary | None = None
        self._some: Callable[[Tensor], Tensor] | None = None  # its output layer, with the rows of some tokens alone
        own = replace(runtime, num_blocks=runtime.num_blocks * self._room)
        longest = self._target.max_model_len
        if self.own_blocks:
            longest = min(longest * self._room, self._config.max_position)
        blocks = own.num_blocks + scratch_blocks(runtime.block_size)
        target, translator = replace(self._target, max_model_len=longest), self._translator
        if translator is None:
            room = StateCapacity(runtime.room.slots, DRAFT_PLACES)
            self.load_model(self._config, blocks, target, own, room)
            if self.output is not None:
                self.output.load(runtime, self._own_logits)
                if not runtime.group.rank:  # the others do not draft
                    self._choose_ids(self.output)
            return
        pool = BlockPool(own.num_blocks, runtime.block_size)
        self._other = OtherVocabulary(translator, pool, longest)
        self._gap = self._other.gap
        if not self.draws:
            own = replace(own, processors={})  # they know the target's tokens alone
        self.load_model(self._config, blocks, target, own, ids=translator.ids, to_own=translator.to_own)
        if self._own_rows is None:
            return
        if isinstance(self._runner.model, Decoder):
            self._own_rows.load(self._runner.kernels)
            self._some = self._own_rows
        else:
            assert translator.rows is not None
            rows = runtime.kernels.to_device(translator.rows)
            self._some = lambda states: self._own_logits(states)[:, rows].contiguous()

    def base(self, start: Start) -> StateUse:  # noqa: D102
        return StateUse(last_slot(start.span.catch_up.states))

    def forget(self, requests: Sequence[int] | None) -> None:  # noqa: D102
        if self._other is not None:
            self._other.forget(requests)

    def observe(self, spans: Sequence[Span], verdicts: Sequence[Verdict]) -> None:  # noqa: D102
        if self._other is not None:
            self._other.begin_step()
        if self.output is not None:
            self.output.observe(spans, verdicts)
            self._choose_ids(self.output)

    def _choose_ids(self, output: DraftOutput) -> None:
        self.ids = self._all if output.ids is None else output.ids

    def plan(self, spans: Sequence[Span], verdicts: Sequence[Verdict]) -> DraftWork:
        """Close each request's gap as far as the row limit allows, and draft where it is closed."""
        work = _GapWork([NO_PROPOSAL] * len(spans), [])
        rows_left = self._max_rows
        for i, (span, verdict) in enumerate(zip(spans, verdicts, strict=True)):
            if not span.catch_up.budget:
                continue
            length = draft_length(span, verdict)
            gap = self._gap(span, verdict, length)
            run = gap.tokens[: 0 if span.sample and length < 1 else rows_left]
            work.gaps[i] = gap, len(run)
            rows_left -= len(run)
            work.proposals[i] = Proposal(state=gap.state(len(run)))
            if not run:
                continue
            drafts = span.sample and len(run) == len(gap.tokens)
            levels, width, nodes = shape_of(span.catch_up, min(length, self.max_depth or MOST_LEVELS))
            masks = self.masks(levels, rows_left) if drafts else ()
            levels = self.levels_of(levels, masks)
            # Behind tokens that might be emitted there are fewer places, and fewer are needed.
            places = min(len(gap.blocks) * self._runner.block_size, self._target.max_model_len) - gap.begin
            masks = masks[: max(places - len(run), 0)]
            rows_left -= len(masks)
            work.whole &= len(run) == len(gap.tokens) and rows_left > 0
            end = self._max_rows - rows_left - len(masks)  # of the rows of the gap
            work.segments.append(
                Segment((*self._readable(run), *masks), gap.begin, gap.blocks, states=gap.states(len(run)))
            )
            if drafts:
                emitted = verdict.tokens
                work.emitted.append((i, end - len(emitted), len(emitted)))
                position, place = span.end + len(emitted), gap.begin + len(run)
                work.starts.append(
                    Start(i, span, end - 1, emitted, position, levels, width, nodes, place=place, blocks=gap.blocks)
                )
        return work

    def flatten(self, segments: Sequence[Segment]) -> Batch:
        """Return the rows, as many as a recorded pass has where these are padded."""
        batch = flatten(segments, self._runner.block_size, recurrent=self.recurrent)
        return padded(batch) if self._uploads.apart else batch

    def run_known(  # noqa: D102
        self, work: DraftWork, batch: Batch | None, sources: Tensor, hidden: Tensor, tapped: Tensor | None
    ) -> Tensor:
        assert batch is not None
        assert isinstance(work, _GapWork)
        states = self.run(batch)
        for gap, count in work.gaps.values():
            gap.close(count)
        return states

    def proposal(self, work: DraftWork, start: Start, draft: Draft) -> Proposal:  # noqa: D102
        assert isinstance(work, _GapWork)
        return work.gaps[start.index][0].proposal(start, draft)

    def masks(self, levels: int, rows: int) -> tuple[int, ...]:
        """Return tokens that are run behind known ones, at most `rows`, for a draft of so many levels."""
        return ()

    def levels_of(self, levels: int, masks: Sequence[int]) -> int:
        """Return how many levels are drafted with these."""
        return levels

    def _readable(self, run: Sequence[int]) -> Sequence[int]:
        return run if self._other is not None else self.embeddable(tuple(run))

    def begin(self, states: Tensor, rows: Tensor) -> None:  # noqa: D102
        self._runner.kernels.embed(states, rows, self._state[: len(rows)])

    def advance(self, level: int, rows: int, width: int = 1) -> None:  # noqa: D102
        if level:  # the first follows from known tokens
            self.run_level(level, rows, width)

    def score(self, level: int, rows: int) -> Tensor:  # noqa: D102
        return self.logits(self._state[:rows])

    def logits(self, states: Tensor) -> Tensor:
        """Return float32 logits `[rows, D]` of states `[rows, d]`."""
        if self.output is not None:
            return self.output(states)
        return self._own_logits(states) if self._some is None else self._some(states)
