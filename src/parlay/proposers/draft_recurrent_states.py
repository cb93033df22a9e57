"""The recurrent states that the rows of a draft's levels continue from.

A state cannot be rolled back, so drafting stores none. Each row of a level begins with the state of the known tokens
and applies what the layers kept of the nodes on its path; its own inputs are kept for the levels below. See
`StateMetadata`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from parlay.kernels.base import StateMetadata
from parlay.proposers.expander import MOST_LEVELS
from parlay.runner.graphs import MOST_ROWS
from parlay.types.plan import StateUse

DRAFT_PLACES = MOST_LEVELS * MOST_ROWS  # for nodes: one for each row of each level


class DraftRecurrentStates:
    """The views of all levels."""

    def __init__(self, first: int, *, newest: bool = False) -> None:
        """Start without requests.

        Args:
            first: the first of `DRAFT_PLACES` places that nothing else uses.
            newest: whether the first level has rows too, see `DraftSlots`; all nodes follow from these.
        """
        self._first, self._newest = first, newest
        self._bases: Sequence[tuple[int, tuple[int, ...]]] = ()
        self._width = 1

    def prepare(self, bases: Sequence[StateUse], width: int) -> None:
        """Set the states that the drafting requests continue from, and how many rows each has from level 1 on."""
        self._bases = [(base.source, base.accepted) for base in bases]
        self._width = width

    def view(self, level: int, rows: int, path: Tensor | None) -> StateMetadata:
        """Return the states that the rows of a level continue from.

        Args:
            level: the level, counted from 0.
            rows: number of rows, which are the leading requests'.
            path: nodes on each row's path in drafts with branches, `[rows, level]` int32: level times `MOST_ROWS`
                plus row, its own last; None for chains, in which it is the same row at every level.
        """
        width = self._width if level else 1
        first = 0 if self._newest else 1
        nodes = None if path is None else path.tolist()
        sequences, own, replayed = [], [], list[int]()
        for row in range(rows):
            source, accepted = self._bases[row // width]
            begin = len(replayed)
            replayed += accepted
            if nodes is None:
                replayed += [self._place(above, row) for above in range(first, level)]
            elif level:
                replayed += [self._place(0, row // width)] * self._newest
                replayed += [self._first + node for node in nodes[row][:-1]]
            sequences.append((source, begin, len(replayed), row, row + 1))
            own.append((row, -1, -1, self._place(level, row)))
        return StateMetadata(
            torch.tensor(sequences, dtype=torch.int32),
            torch.tensor(own, dtype=torch.int32),
            torch.tensor([(place, -1) for place in replayed], dtype=torch.int32).view(-1, 2),
        )

    def _place(self, level: int, row: int) -> int:
        return self._first + level * MOST_ROWS + row
