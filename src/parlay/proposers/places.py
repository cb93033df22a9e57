"""Where the rows of a draft's levels stand, for proposers with cache layers of their own.

Level i runs the tokens that level i - 1 has guessed, one a request. Which these are is not known before, but where
they stand is: so positions, slots and tables of all levels are written before the first one runs.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from parlay.kernels.base import AttentionView
from parlay.proposers.expander import Start
from parlay.runner.batch import Batch, table_array


class Places:
    """The rows of all levels but the first, in memory that recordings may keep."""

    def __init__(self, tokens: Tensor, num_blocks: int, block_size: int, *, pairs: bool = False) -> None:
        """Allocate.

        Args:
            tokens: `[levels + 1, rows]` int64, what each level runs.
            num_blocks: of the pool; no table is longer.
            block_size: tokens a block.
            pairs: whether a row is a pair of its token and the state before it: it then stands one position before
                its slot, and nothing is in the first slot.
        """
        levels, rows = tokens.shape
        self._tokens, self._block_size, self._pairs = tokens, block_size, int(pairs)
        self._positions, self._last = torch.zeros((2, levels, rows), dtype=torch.int32)
        self._slots = torch.zeros((levels, rows), dtype=torch.int64)
        self._tables = torch.empty((rows, num_blocks), dtype=torch.int32)  # of which little is ever touched
        self._each = torch.arange(rows, dtype=torch.int32)
        self._first = torch.full((rows,), self._pairs, dtype=torch.int32)
        self._none = torch.zeros(rows + 1, dtype=torch.int32)

    def prepare(self, turn: Sequence[Start]) -> None:
        """Take note of who drafts, longest first."""
        levels, rows, size = turn[0].length, len(turn), self._block_size
        if levels < 2:
            return
        tables = table_array([start.span.blocks for start in turn])
        self._tables[:rows, : tables.shape[1]] = torch.from_numpy(tables)
        places = np.array([start.position for start in turn])[None] + np.arange(levels - 1)[:, None]
        self._positions[1:levels, :rows] = torch.from_numpy(places - self._pairs)
        self._last[1:levels, :rows] = torch.from_numpy(places + 1)
        places = np.minimum(places, tables.shape[1] * size - 1)  # shorter drafts end before
        slots = tables[np.arange(rows), places // size].astype(np.int64) * size + places % size
        self._slots[1:levels, :rows] = torch.from_numpy(slots)

    def batch(self, level: int, rows: int) -> Batch:
        """Return what level `level`, not the first, runs of the leading requests."""
        view = AttentionView(
            tables=self._tables[:rows],
            row_request=self._each[:rows],
            first=self._first[:rows],
            last=self._last[level, :rows],
            extra_offsets=self._none[: rows + 1],
            extra_slots=self._none[:0],
        )
        return Batch(self._tokens[level, :rows], self._positions[level, :rows], self._slots[level, :rows], view, ())
