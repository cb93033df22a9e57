"""DFlash: a block of tokens in one pass, from the target's states after several of its layers.

Idea: Chen et al. 2026 (arXiv 2602.06036). A draft of fifteen tokens costs one pass of a small model over sixteen rows
and the target's output layer, so that it may be longer and the head deeper than where tokens are drafted one by one.
Drafts are chains, or the likeliest paths of a tree in which any token of a place may follow any of the one
before.

Reads its authors' layout, that of the `speculators` library, and transformers' assistants. Loses where a token
depends on the one before it, since the two are drafted apart.
"""

import torch
from torch import Tensor

from parlay.proposers.block_head import BlockHead
from parlay.proposers.heads import CheckpointOptions as Options
from parlay.runner.graphs import MOST_ROWS

__all__ = ["Options", "Proposer"]


class Proposer(BlockHead):
    """Drafts every token of a block on its own."""

    source = "dflash"
    path_free = True
    at_once = True

    def score(self, level: int, rows: int) -> Tensor:  # noqa: D102
        return self.score_at(level * MOST_ROWS + torch.arange(rows))

    def score_at(self, places: Tensor) -> Tensor:  # noqa: D102
        return self.logits(self._block_states.index_select(0, self.rows_at(places)))
