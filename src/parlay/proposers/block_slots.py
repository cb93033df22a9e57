"""Positions, slots and views of the rows of blocks, for proposers that draft a whole block in one pass.

Rows of a block stand behind the known tokens and lie in scratch slots behind the pool, one range for each request of
a pass. Each row lists those of its own block that it sees: all of them, or those up to itself. So a block may be
longer than what is left of the request's blocks, and the pool holds what follows from known tokens alone.

As everywhere in `feature_head`, what the head keeps of a state lies in the slot of the token after it: a row's
position is one before its place.
"""

from collections.abc import Sequence

import numpy as np
import torch

from parlay.kernels.base import AttentionMetadata
from parlay.kernels.uploads import Uploads
from parlay.proposers.block_config import AttentionPattern
from parlay.proposers.device_verdict import Shift
from parlay.proposers.draft_head import Start
from parlay.runner.batch import Batch, table_array
from parlay.runner.graphs import MOST_ROWS


class BlockSlots:
    """The rows of the blocks of at most `MOST_ROWS // block` requests, in memory that recordings may keep."""

    def __init__(
        self,
        patterns: Sequence[AttentionPattern],
        block: int,
        mask: int,
        longest: int,
        num_blocks: int,
        block_size: int,
        uploads: Uploads,
        *,
        newest: bool = True,
    ) -> None:
        """Allocate.

        Args:
            patterns: attention patterns of the layers.
            block: number of rows of a block.
            mask: token id of all rows, but of the first row if `newest`.
            longest: number of positions; rows beyond them stand at the last one.
            num_blocks: number of blocks in the pool; scratch slots come after them.
            block_size: tokens per block of the pool.
            uploads: writer of host values into the rows.
            newest: whether the first row of a block has the newest known token.
        """
        requests = MOST_ROWS // block
        rows = requests * block
        self._block, self._longest, self._newest, self._uploads = block, longest, newest, uploads
        self._tokens = torch.full((rows,), mask)
        self._positions, self._last = torch.zeros((2, rows), dtype=torch.int32)
        self._slots = num_blocks * block_size + torch.arange(rows)
        self._tables = torch.empty((requests, num_blocks), dtype=torch.int32)  # most of it is never touched
        self._owner = torch.arange(requests, dtype=torch.int32).repeat_interleave(block)
        self._least = torch.zeros(rows, dtype=torch.int32)
        self._within = torch.arange(block, dtype=torch.int32).repeat(requests)
        self._first = {pattern.window: torch.zeros(rows, dtype=torch.int32) for pattern in patterns}
        own = self._slots.int().view(requests, 1, block).expand(-1, block, -1)
        seen = torch.ones(block, block, dtype=torch.bool)
        self._extra = {}
        for causal in {pattern.causal for pattern in patterns}:
            shown = (seen.tril() if causal else seen).expand(requests, -1, -1)
            offsets = torch.zeros(rows + 1, dtype=torch.int32)
            offsets[1:] = shown.sum(-1).view(-1).cumsum(0)
            self._extra[causal] = offsets, own[shown].contiguous(), int(offsets[block])

    def prepare(self, starts: Sequence[Start]) -> None:
        """Set which requests draft."""
        rows, block = len(starts) * self._block, self._block
        tables = table_array([start.span.blocks for start in starts])
        write = self._uploads.write
        write(self._tables[: len(starts), : tables.shape[1]], tables)
        known = np.array([start.position for start in starts]).repeat(block)
        places = known + np.tile(np.arange(block), len(starts))
        if self._newest:
            write(self._tokens[:rows:block], np.array([start.emitted[-1] for start in starts]))
        write(self._positions[:rows], np.minimum(places - 1, self._longest - 1))
        write(self._last[:rows], known)
        least = np.array([start.first for start in starts]).repeat(block)
        write(self._least[:rows], least)
        for window, first in self._first.items():
            seen = np.maximum(places + 1 - window, least) if window else least
            write(first[:rows], seen)

    def shift(self, shift: Shift) -> None:
        """Have the requests that were prepared start later, by operations where kernels read."""
        block, rows = self._block, len(shift.ahead) * self._block
        known = self._last[:rows]
        known += shift.ahead.int().repeat_interleave(block)
        places = known + self._within[:rows]
        self._positions[:rows] = (places - 1).clamp(max=self._longest - 1)
        if self._newest:
            self._tokens[:rows:block] = shift.newest
        for window, first in self._first.items():
            if window:
                first[:rows] = torch.maximum(places + 1 - window, self._least[:rows])

    def batch(self, pattern: AttentionPattern, requests: int) -> Batch:
        """Return the rows of the leading requests, as layers of one kind see them."""
        rows = requests * self._block
        offsets, slots, each = self._extra[pattern.causal]
        view = AttentionMetadata(
            tables=self._tables[:requests],
            row_request=self._owner[:rows],
            first=self._first[pattern.window][:rows],
            last=self._last[:rows],
            extra_offsets=offsets[: rows + 1],
            extra_slots=slots[: requests * each],
        )
        return Batch(self._tokens[:rows], self._positions[:rows], self._slots[:rows], view, ())
