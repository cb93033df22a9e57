"""P-EAGLE: an EAGLE-3 head that drafts all tokens in one pass.

Idea: P-EAGLE (2026), as the `speculators` library and vLLM implement it. The last pair with a state of the target's
predicts the first token, as in EAGLE-3. Behind it stand pairs of a mask's token and of states that the head has
learnt in place of the target's; each sees all pairs before it and predicts the next token.

Loses where a token depends on the one before it, and further along than it was trained.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from parlay.checkpoints.loader import Checkpoint
from parlay.proposers.base import Runtime
from parlay.proposers.block_config import AttentionPattern
from parlay.proposers.block_slots import BlockSlots
from parlay.proposers.device_verdict import Shift
from parlay.proposers.draft_head import DraftHead, Start
from parlay.proposers.heads import CheckpointOptions as Options
from parlay.proposers.masks import mask_of
from parlay.proposers.methods.eagle3.proposer import Proposer as EagleProposer
from parlay.proposers.methods.peagle import format as form
from parlay.proposers.shared_passes import shared
from parlay.runner.batch import Batch
from parlay.runner.graphs import MOST_ROWS

__all__ = ["Options", "Proposer"]

_DEPTHS = 8  # depths that the library trains by default
_PATTERN = AttentionPattern(causal=True)


class Proposer(EagleProposer):
    """Drafts from the last pair and masked ones behind it."""

    source = "peagle"
    path_free = True
    at_once = True
    in_one_pass = True

    def describe(self, weights: Checkpoint) -> None:  # noqa: D102
        super().describe(weights)
        self.max_draft_tokens = self.max_depth = min(max(self.default_length, _DEPTHS), MOST_ROWS)
        self.default_length = min(self.default_length, self.max_draft_tokens)
        self.rows = self.max_draft_tokens - 1
        self._mask = mask_of(self.head, form.MASKS, self._target.config.tokens)

    def _shapes(self, weights: Checkpoint) -> dict[str, tuple[int, ...]]:
        states = len(self.taps) * self._target.config.hidden_size
        return {**super()._shapes(weights), form.MASKED: (1, 1, states)}

    def read(self, weights: Checkpoint, runtime: Runtime) -> None:  # noqa: D102
        super().read(weights, runtime)
        self._masked = weights.read(form.MASKED, self._target.dtype).view(len(self.taps), 1, -1)

    def load(self, runtime: Runtime) -> None:  # noqa: D102
        super().load(runtime)
        longest, sizes = self._target.max_model_len, (runtime.num_blocks, runtime.block_size)
        self._masks = BlockSlots([_PATTERN], self.rows, self._mask, longest, *sizes, runtime.uploads, newest=False)
        # States of the last pairs, and of the masked ones.
        self._states = torch.zeros((2 * MOST_ROWS, self.config.hidden_size), dtype=self._target.dtype)
        self._state, self._of_masks = self._states[:MOST_ROWS], self._states[MOST_ROWS:]
        context = replace(self._context(self._masks.batch(_PATTERN, 1)), buffers=self._buffers(1))
        self._absent = torch.zeros((1, self.config.hidden_size), dtype=self._target.dtype)
        self.combine_states(self._masked.clone(), self._absent, context)

    def place(self, starts: Sequence[Start], width: int = 1) -> None:  # noqa: D102
        self._masks.prepare(starts)

    def shift(self, shift: Shift) -> None:  # noqa: D102
        self._masks.shift(shift)

    paths = DraftHead.paths  # draft tokens have no keys and values of their own

    def advance(self, level: int, rows: int, width: int = 1) -> None:
        """Run the masked pairs of so many requests at level 0; the others are computed with it."""
        if level == 0:
            batch = self._masks.batch(_PATTERN, rows)
            self._run_masks(self.read_by(batch, self._block_size, recorded=self._recorded))

    @shared
    def _run_masks(self, batch: Batch) -> None:
        rows = len(batch.tokens)
        state = self._of_masks[:rows]
        self._kernels.embed(self._absent, torch.zeros(rows, dtype=torch.int64), state)
        self.run_pairs(batch.tokens, state, self._context(batch))

    def score(self, level: int, rows: int) -> Tensor:  # noqa: D102
        return self.score_at(level * MOST_ROWS + torch.arange(rows))

    def score_at(self, places: Tensor) -> Tensor:  # noqa: D102
        level, request = places // MOST_ROWS, places % MOST_ROWS
        masked = MOST_ROWS + request * self.rows + level - 1
        return self.logits(self._states.index_select(0, torch.where(level == 0, request, masked)))
