"""The target's states that a head holds beside its cache layers while it is off.

They lie in one buffer, in the order in which they came, whoever they belong to: a step's states are one copy, however
many requests hold some of them. Which rows are a request's is a list of numbers. Rows of those that are gone are
reclaimed when the buffer is full.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

_ROOM = 256  # rows, at first


class HeldStates:
    """The states of all requests."""

    def __init__(self) -> None:
        self._rows: dict[int, list[int]] = {}  # of the buffer, by request
        self._buffer, self._end = torch.empty((0, 0, 0)), 0

    @property
    def counts(self) -> dict[int, int]:
        """Number of states that are held, by request."""
        return {request_id: len(rows) for request_id, rows in self._rows.items()}

    @property
    def rows(self) -> int:
        """Number of states for which there is memory."""
        return self._buffer.shape[1]

    def add(self, more: Sequence[tuple[int, Sequence[int]]], states: Tensor) -> None:
        """Hold rows of a step's states `[n, rows, H]`: of each request these rows, behind those that it has."""
        # Plain loops, because this runs in every step without drafts.
        if not self._rows:
            self._end = 0
        end = first = self._end
        chosen: list[int] = []
        for request_id, rows in more:
            chosen += rows
            own, begin = self._rows.setdefault(request_id, []), end
            end += len(rows)
            own += range(begin, end)
        if not chosen:
            return
        if end > self._buffer.shape[1]:
            end = self._make_room(states, first, end)
            first = end - len(chosen)
        gapless = chosen[-1] - chosen[0] == len(chosen) - 1  # a step's rows ascend
        part = states[:, chosen[0] : chosen[-1] + 1] if gapless else states[:, torch.tensor(chosen)]
        self._buffer[:, first:end] = part
        self._end = end

    def take(self, request_id: int) -> Tensor:
        """Return the states of a request, `[n, rows, H]`, none if it is unknown; and hold them no longer."""
        return self._buffer[:, torch.tensor(self._rows.pop(request_id, []), dtype=torch.int64)]

    def drop(self, request_ids: Iterable[int]) -> None:
        """Hold nothing of some requests; unknown ones are ignored."""
        for request_id in request_ids:
            self._rows.pop(request_id, None)

    def _make_room(self, states: Tensor, first: int, end: int) -> int:
        """Move what is held to the front of a buffer that is at most half full; rows from `first` on are yet to come.

        Returns:
            The new number of `end`.
        """
        kept = sorted(row for rows in self._rows.values() for row in rows)
        places = {row: place for place, row in enumerate(kept)}
        self._rows = {request_id: [places[row] for row in rows] for request_id, rows in self._rows.items()}
        room = max(_ROOM, 1 << (2 * len(kept) - 1).bit_length())
        buffer = states.new_empty((states.shape[0], room, states.shape[2]))
        old = [row for row in kept if row < first]
        if old:
            buffer[:, : len(old)] = self._buffer[:, torch.tensor(old)]
        self._buffer = buffer
        return len(kept)
