"""A smaller model of the same vocabulary drafts token by token, in a chain or along a tree's likeliest branches.

Idea: Leviathan, Kalman, Matias 2023 (arXiv 2211.17192) and Chen et al. 2023 (arXiv 2302.01318). Here the draft model
samples with the target's own noise (Daliri, Musco, Suresh 2024, arXiv 2408.07978), so that it drafts the token that
the target is about to sample instead of drawing an independent one.

Its layers keep their keys and values on the same block ids as the target's and count their computed tokens
themselves: after full acceptance, a prefix hit or a pause there is a gap to close before it drafts again. Recurrent
layers keep no state of a node: the tokens that a step has emitted are run as known ones.

Loses when a draft step is not much cheaper than a target step, or when the two models disagree.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from parlay.models.select import (
    cache_spec,
    check_ranks,
    check_weights,
    describe_model,
    stored_kinds,
)
from parlay.proposers.base import Runtime, TargetInfo, draft_length
from parlay.proposers.draft_head import Start
from parlay.proposers.draft_slots import scratch_blocks
from parlay.proposers.draft_states import DRAFT_PLACES
from parlay.proposers.expander import MOST_LEVELS
from parlay.proposers.heads import CheckpointOptions as Options
from parlay.proposers.heads import shape_of, share_of, storage_of
from parlay.proposers.model_head import ModelHead
from parlay.proposers.vocabulary import check_vocabulary
from parlay.runner.batch import Stretch, flatten
from parlay.runner.footprint import weight_bytes
from parlay.types.cache import StateRoom
from parlay.types.plan import NO_PROPOSAL, NO_STATES, Proposal, ProposerState, Span, StateUse, Verdict
from parlay.types.storage import Storage

__all__ = ["EMBEDDED", "Options", "Proposer"]

EMBEDDED: Mapping[str, Any] = {"model": "tiny-code-draft"}


class Proposer(ModelHead):
    """Drafts with a smaller model."""

    source = "draft_model"
    default_length = 4

    def __init__(self, options: Options, target: TargetInfo) -> None:
        self._target = target
        config = describe_model(options.model, replace(target.hub, revision=options.revision))
        storage: Storage = "stored" if stored_kinds(config) else storage_of(options, target)
        check_vocabulary(config, target.config)
        most = target.config.vocab_size if config.vocab_size > target.config.vocab_size else None
        self._config = replace(config, storage=storage, most_tokens=most)
        check_weights(self._config)
        self.share = share_of(self.source, options, self._config.path, target)
        check_ranks(self._config, options.draft_tensor_parallel_size)
        self.cache = cache_spec(self._config, target.dtype)
        self.recurrent = config.style.recurrent is not None
        self.weight_bytes = weight_bytes(self._config, target.dtype)

    def load(self, runtime: Runtime) -> None:
        """Read the draft model's weights and allocate its cache layers."""
        self._max_rows = runtime.max_rows
        blocks = runtime.num_blocks + scratch_blocks(runtime.block_size)
        self.load_model(self._config, blocks, self._target, runtime, StateRoom(runtime.room.slots, DRAFT_PLACES))

    def base(self, start: Start) -> StateUse:  # noqa: D102
        return StateUse(_last_slot(start.span.catch_up.states))

    def propose(
        self, spans: Sequence[Span], verdicts: Sequence[Verdict], hidden: Tensor, tapped: Tensor | None = None
    ) -> list[Proposal]:
        """Close each request's gap as far as the row limit allows, then draft where it is closed."""
        proposals = [NO_PROPOSAL] * len(spans)
        stretches: list[Stretch] = []
        starts: list[Start] = []
        rows_left = self._max_rows
        for i, (span, verdict) in enumerate(zip(spans, verdicts, strict=True)):
            if not span.catch_up.budget:
                continue
            length = draft_length(span, verdict)
            valid = span.catch_up.state.computed + _confirmed(span.catch_up.state.speculated, verdict.path)
            if span.sample and length < 1:
                proposals[i] = Proposal(state=ProposerState(valid))
                continue
            gap = (span.catch_up.unseen + verdict.tokens)[valid - span.catch_up.state.computed :]
            run = gap[:rows_left]
            rows_left -= len(run)
            proposals[i] = Proposal(state=ProposerState(valid + len(run)))
            if run:
                use = _after(span.catch_up.states, len(run)) if self.recurrent else NO_STATES
                stretches.append(Stretch(self.embeddable(run), valid, span.blocks, states=use))
                if span.sample and len(run) == len(gap):
                    row = self._max_rows - rows_left - 1  # the last so far
                    shape = shape_of(span.catch_up, min(length, MOST_LEVELS))
                    starts.append(Start(i, span, row, verdict.tokens, valid + len(gap), *shape))
        if not stretches:
            return proposals
        states = self.run(flatten(stretches, self._runner.block_size, recurrent=self.recurrent))
        for start, draft in self._expander.expand(starts, states):
            # A chain's last node has not been run; a tree was run in scratch slots. No state is kept of a node.
            ahead = max(len(draft) - 1, 0) if start.width == 1 and not self.recurrent else 0
            proposals[start.index] = Proposal(draft, ProposerState(start.position, ahead))
        return proposals

    def begin(self, turn: Sequence[Start], states: Tensor, width: int = 1) -> None:  # noqa: D102
        self._runner.kernels.embed(states, torch.tensor([start.row for start in turn]), self._state[: len(turn)])
        super().begin(turn, states, width)

    def advance(self, level: int, rows: int, width: int = 1) -> None:  # noqa: D102
        if level:  # the first follows from known tokens
            self.run_level(level, rows, width)


def _last_slot(states: StateUse) -> int:
    """Return the slot of the last state that is stored."""
    return max(states.stores)[1]


def _after(states: StateUse, tokens: int) -> StateUse:
    """Return the use of states where so many tokens are run, of those that were planned."""
    earlier = tuple(store for store in states.stores if store[0] < tokens)
    return replace(states, stores=(*earlier, (tokens, _last_slot(states))))


def _confirmed(ahead: int, path: tuple[int, ...]) -> int:
    """How many of the chain's first `ahead` nodes were accepted; their keys and values stay valid."""
    count = 0
    while count < min(ahead, len(path)) and path[count] == count:
        count += 1
    return count
