"""Positions, slots and tables of the rows of a draft's levels, for proposers with cache layers.

Level i runs the nodes of level i - 1. Their tokens are not known before, but their places are: so positions, slots
and tables of all levels are written before the first one runs.

A chain's node has the slot of its place, where the next step's tokens will lie. Several nodes of a level would need
the same slot, so theirs are scratch slots behind the pool, and each row lists its path's.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parlay.config.speculative import MOST_DEPTH
from parlay.kernels.base import AttentionMetadata
from parlay.kernels.uploads import Uploads
from parlay.proposers.device_verdict import Shift
from parlay.proposers.draft_head import Start
from parlay.runner.batch import Batch, table_array
from parlay.runner.graphs import MOST_ROWS


def scratch_blocks(block_size: int) -> int:
    """Return how many blocks behind the pool drafts with branches need: a slot for each row of each level."""
    return -(-MOST_DEPTH * MOST_ROWS // block_size)


class DraftSlots:
    """The rows of all levels, of the first only where it has any, in memory that recordings may keep."""

    def __init__(
        self,
        tokens: Tensor,
        num_blocks: int,
        block_size: int,
        uploads: Uploads,
        *,
        pairs: bool = False,
        newest: bool = False,
    ) -> None:
        """Allocate.

        Args:
            tokens: `[levels + 1, rows]` int64, what each level runs.
            num_blocks: number of blocks in the pool; no table is longer, and scratch slots come after them.
            block_size: tokens per block.
            uploads: writer of host values into the rows.
            pairs: whether a row is a pair of its token and the state before it: its position is then one before its
                slot's, and the first slot is unused.
            newest: whether the first level has rows too, which run the newest token that is known.
        """
        levels, rows = tokens.shape
        self._tokens, self._block_size, self._pairs = tokens, block_size, int(pairs)
        self._before = 0 if newest else 1  # the first level that has rows
        self._positions, self._last = torch.zeros((2, levels, rows), dtype=torch.int32)
        self._slots = torch.zeros((levels, rows), dtype=torch.int64)
        self._tables = torch.empty((rows, num_blocks), dtype=torch.int32)  # most of it is never touched
        self._each = torch.arange(rows, dtype=torch.int32)
        self.first = torch.zeros(rows, dtype=torch.int32)
        self._none = torch.zeros(rows + 1, dtype=torch.int32)
        # The same memory for NumPy, which writes a few numbers in a tenth of the time; of a GPU's, a copy.
        self._uploads = uploads
        own = self._positions, self._last, self._slots
        self._written = tuple(tensor.cpu().numpy() for tensor in own)
        self._table_rows, self._first_seen = self._tables.cpu().numpy(), self.first.cpu().numpy()
        # Of drafts with branches: each row's request, its scratch slot, and those of its path, its own last.
        deep = min(levels, MOST_DEPTH)
        self._owner = torch.zeros(rows, dtype=torch.int32)
        self._behind = num_blocks * block_size  # the first slot behind the pool
        self._scratch = self._behind + torch.arange(deep * rows).view(deep, rows)
        self._narrow = self._scratch.int()
        self._paths = [torch.zeros((rows, depth), dtype=torch.int32) for depth in range(deep)]
        self._offsets = [depth * torch.arange(rows + 1, dtype=torch.int32) for depth in range(deep)]

    def prepare(self, starts: Sequence[Start], width: int = 1) -> None:
        """Set which requests draft, longest first, and how many rows each has at a level."""
        levels, rows = starts[0].length, len(starts)
        begin = self._before
        if levels <= begin:
            return
        tables = table_array([start.span.blocks if start.blocks is None else start.blocks for start in starts])
        self._table_rows[:rows, : tables.shape[1]] = tables
        first = np.array([start.position if start.place is None else start.place for start in starts])
        self._first_seen[: rows * width] = np.array([start.first for start in starts]).repeat(width)
        if width > 1:
            self._place_rows(begin, 1, first, tables)
            owner, wide = np.arange(rows).repeat(width), rows * width
            places = first[owner][None] + np.arange(levels - 1)[:, None]
            self._uploads.write(self._owner[:wide], owner)
            positions, last, _ = self._written
            positions[1:levels, :wide] = places - self._pairs
            last[1:levels, :wide] = first[owner]  # end of the known tokens
        else:
            self._place_rows(begin, levels, first, tables)
        if self._uploads.apart:
            self._send(levels, rows * width, rows, tables.shape[1])

    def shift(self, shift: Shift) -> None:
        """Have the requests that were prepared start later, by operations where kernels read."""
        rows, levels, begin, width = len(shift.ahead), shift.levels, self._before, shift.width
        if levels <= begin:
            return
        size, limits = self._block_size, shift.limits
        same = slice(begin, 1 if width > 1 else levels)  # levels with the slots of their places
        places = self._positions[same, :rows] + self._pairs + shift.ahead
        within = torch.minimum(places, limits - 1)
        blocks = self._tables[:rows].gather(1, (within // size).T).T.long()
        self._positions[same, :rows] = (within - self._pairs).int()
        self._last[same, :rows] = (within + 1).int()
        self._slots[same, :rows] = torch.where(places < limits, blocks * size + within % size, -1)
        if width > 1:
            ahead, limits = (one.repeat_interleave(width) for one in (shift.ahead, limits))
            positions, last = self._positions[1:levels, : rows * width], self._last[1:levels, : rows * width]
            positions.copy_(torch.minimum(positions + ahead, limits - 1 - self._pairs))
            last += ahead.int()

    def _send(self, levels: int, rows: int, requests: int, blocks: int) -> None:
        """Have what NumPy has written in a GPU's memory too."""
        write = self._uploads.write
        for tensor, written in zip((self._positions, self._last, self._slots), self._written, strict=True):
            write(tensor[:levels, :rows], written[:levels, :rows])
        write(self.first[:rows], self._first_seen[:rows])
        write(self._tables[:requests, :blocks], self._table_rows[:requests, :blocks])

    def _place_rows(self, begin: int, end: int, first: NDArray[np.int64], tables: NDArray[np.int32]) -> None:
        """Set a row of each request at levels `begin` to `end`, whose tokens have the slots of their places.

        Args:
            begin, end: the levels.
            first: `[requests]`, the place of the first node, which is run at level 1.
            tables: block tables `[requests, blocks]`.
        """
        rows, size = len(first), self._block_size
        positions, last, slots = (written[begin:end, :rows] for written in self._written)
        places = first[None] + np.arange(begin - 1, end - 1)[:, None]
        positions[:] = places - self._pairs
        last[:] = places + 1
        block, within = np.divmod(np.minimum(places, tables.shape[1] * size - 1), size)  # shorter drafts end before
        slots[:] = tables[np.arange(rows), block] * np.int64(size) + within

    def paths(self, level: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return where the paths of level `level` are to be written, as `DraftHead.paths` does."""
        return self._narrow[level, :rows], self._paths[level - 1], self._paths[level][:rows]

    def nodes(self, level: int, rows: int) -> Tensor:
        """Return the paths of a level's rows, see `DraftRecurrentStates.view`."""
        return self._paths[level][:rows] - self._behind

    def batch(self, level: int, rows: int, width: int = 1) -> Batch:
        """Return what level `level` runs of the leading requests."""
        wide = width > 1
        view = AttentionMetadata(
            tables=self._tables[: rows // width],
            row_request=self._owner[:rows] if wide else self._each[:rows],
            first=self.first[:rows],
            last=self._last[level, :rows],
            extra_offsets=self._offsets[level][: rows + 1] if wide else self._none[: rows + 1],
            extra_slots=self._paths[level].view(-1)[: rows * level] if wide else self._none[:0],
        )
        slots = self._scratch[level, :rows] if wide else self._slots[level, :rows]
        return Batch(self._tokens[level, :rows], self._positions[level, :rows], slots, view, ())
