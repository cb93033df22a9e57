"""Block drafters whose tokens are chosen one after another, though the states of their rows are computed at once.

The logits of all rows are computed with the block. At each level they are then revised by the token before, so that
drafts branch as those of other heads do: a node's children follow from the node.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from parlay.checkpoints.loader import Checkpoint
from parlay.proposers.base import Runtime
from parlay.proposers.block_head import BlockHead
from parlay.proposers.draft_head import Start
from parlay.runner.graphs import MOST_ROWS


class BlockWalk(BlockHead):
    """A proposer with such a head."""

    recordable = False  # the part that follows the pass over the block
    logit_rows = 3 * MOST_ROWS

    @abstractmethod
    def revise(self, before: Tensor, hidden: Tensor, base: Tensor, out: Tensor) -> None:
        """Write the logits of rows.

        Args:
            before: int64 `[rows]`, the tokens before those that they predict.
            hidden: normed states of the rows, `[rows, d]`.
            base: float32 `[rows, D]`, their logits by these alone.
            out: float32 `[rows, D]`, written.
        """

    def enter_blocks(self, requests: int, before: Tensor) -> None:
        """Prepare what is kept along drafts of so many requests, which follow tokens `[requests]`."""

    def read(self, weights: Checkpoint, runtime: Runtime) -> None:  # noqa: D102
        super().read(weights, runtime)
        self._base, self._logits = torch.zeros((2, MOST_ROWS, self.columns))

    def place(self, starts: Sequence[Start], width: int = 1) -> None:  # noqa: D102
        super().place(starts, width)
        self._width, self._levels = width, starts[0].length

    def gather(self, level: int, origin: Tensor) -> None:
        """Rearrange what is kept along drafts, if anything is."""

    def score(self, level: int, rows: int) -> Tensor:  # noqa: D102
        request = torch.arange(rows) // (self._width if level else 1)
        before = self._expander.tokens[level, :rows]
        if level == 0:
            levels = torch.arange(self._levels)[None] * MOST_ROWS
            places = (levels + request[:, None]).view(-1)
            self._base[: len(places)] = self.logits(self._block_states[self.rows_at(places)])
            self.enter_blocks(rows, before)
        hidden = self._block_states[self.rows_at(level * MOST_ROWS + request)]
        logits: Tensor = self._logits[:rows]
        self.revise(before, hidden, self._base[request * self._levels + level], logits)
        return logits
