"""The target's keys and values as a draft reads them: positions of its rows, and the keys that they see.

A head whose layers have queries alone reads in its target's cache what the target has processed. It writes nothing
there, so it needs no slots, lags behind nothing, and leaves nothing to undo. All nodes of a draft stand where the
newest token does, whose own keys are not there yet, and see the same keys.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from parlay.kernels.base import AttentionMetadata
from parlay.kernels.uploads import Uploads
from parlay.models.config import ModelConfig
from parlay.models.select import exposes_hidden_states, layer_cache_kinds
from parlay.proposers.device_verdict import Shift
from parlay.proposers.draft_head import Start
from parlay.runner.batch import Batch, table_array


def kv_source_layer(target: ModelConfig, *, window: bool) -> int | None:
    """Return the last of a target's layers that keep heads' keys and have a window, or none; None if none does."""
    if not exposes_hidden_states(target) or target.style.latent is not None:
        return None
    windows = target.style.windows or (0,) * target.num_layers
    pairs = enumerate(zip(layer_cache_kinds(target), windows, strict=True))
    return max((i for i, (kept, own) in pairs if kept in ("keys", "both") and bool(own) == window), default=None)


class TargetKeys:
    """The rows of all levels, in memory that recordings may keep."""

    def __init__(self, tokens: Tensor, num_blocks: int, uploads: Uploads) -> None:
        """Allocate.

        Args:
            tokens: `[levels, rows]` int64, what each level runs.
            num_blocks: number of blocks in the pool; no table is longer.
            uploads: writer of host values into the rows.
        """
        rows = tokens.shape[1]
        self._tokens, self._uploads = tokens, uploads
        self._tables = torch.empty((rows, num_blocks), dtype=torch.int32)  # most of it is never touched
        # Of the first level, which has a row of each request, and of later ones.
        self._owner = torch.arange(rows, dtype=torch.int32).repeat(2, 1)
        self._known = torch.zeros((2, rows), dtype=torch.int32)
        self._first, self._none = torch.zeros(rows, dtype=torch.int32), torch.zeros(rows + 1, dtype=torch.int32)
        self._nowhere = torch.full((rows,), -1, dtype=torch.int64)

    def prepare(self, starts: Sequence[Start], width: int = 1) -> None:
        """Set which requests draft, longest first, and how many rows each has from level 1 on."""
        rows = len(starts)
        tables = table_array([start.span.blocks for start in starts])
        write = self._uploads.write
        write(self._tables[:rows, : tables.shape[1]], tables)
        known = np.array([start.position - 1 for start in starts], dtype=np.int32)
        for level, count in enumerate((1, width)):
            write(self._known[level, : rows * count], known.repeat(count))
            write(self._owner[level, : rows * count], np.arange(rows, dtype=np.int32).repeat(count))

    def shift(self, shift: Shift) -> None:
        """Have the requests that were prepared start later, by operations where kernels read."""
        for known, count in zip(self._known, (1, shift.width), strict=True):
            known[: len(shift.ahead) * count] += shift.ahead.int().repeat_interleave(count)

    def batch(self, level: int, rows: int, width: int = 1) -> Batch:
        """Return what level `level` runs of the leading requests."""
        later = min(level, 1)
        known = self._known[later, :rows]
        view = AttentionMetadata(
            tables=self._tables[: rows // width if later else rows],
            row_request=self._owner[later, :rows],
            first=self._first[:rows],
            last=known,
            extra_offsets=self._none[: rows + 1],
            extra_slots=self._none[:0],
        )
        return Batch(self._tokens[level, :rows], known, self._nowhere[:rows], view, ())
