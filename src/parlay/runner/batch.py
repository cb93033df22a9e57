"""Flattening: the one place where requests become rows."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parlay.kernels.base import AttentionMetadata, Kernels, StateMetadata
from parlay.kernels.uploads import sent
from parlay.types.draft import NO_DRAFT, Draft
from parlay.types.draft_tree import depths, paths
from parlay.types.plan import NO_STATES, StateUse


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one request, and below the last of them a draft.

    Attributes:
        tokens: token ids at positions `start`, `start + 1`, ...
        start: number of tokens that the layers have computed before.
        blocks: the request's block table.
        draft: nodes below the last token; node i takes the slot of logical index `start + len(tokens) + i`.
        stored: whether keys and values are stored; False for tokens that run once more for their states alone.
        states: states that recurrent layers read and store.
        first: the first token whose keys are seen.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    draft: Draft = NO_DRAFT
    stored: bool = True
    states: StateUse = NO_STATES
    first: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of several requests, one after another, without padding.

    Attributes:
        tokens: `[rows]` int64.
        positions: `[rows]` int32, rotary positions.
        slots: `[rows]` int64, where each row's keys and values go; nowhere if negative.
        view: attention metadata: the keys that each row sees.
        offsets: first row of each segment, and the number of rows at the end.
        states: states that rows of recurrent layers continue from; None for a model without them.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    view: AttentionMetadata
    offsets: tuple[int, ...]
    states: StateMetadata | None = None


def flatten(segments: Sequence[Segment], block_size: int, *, recurrent: bool = False) -> Batch:
    """Return the rows of `segments`: of each its tokens, then its nodes.

    Args:
        segments: tokens and drafts of requests.
        block_size: tokens per block.
        recurrent: whether the model has recurrent layers.
    """
    tokens, slots, offsets = list[int](), list[int](), [0]
    owner, positions, first, last = list[int](), list[int](), list[int](), list[int]()
    for number, segment in enumerate(segments):
        start, before = segment.start, len(tokens)
        tokens += segment.tokens
        tokens += segment.draft.tokens
        rows = len(tokens) - before
        owner += [number] * rows
        positions += range(start, start + rows)
        first += [segment.first] * rows
        last += range(start + 1, start + rows + 1)
        slots += _slots(segment.blocks, start, rows, block_size) if segment.stored else [-1] * rows
        offsets.append(len(tokens))
    extra_offsets, extra_slots = [0] * (len(tokens) + 1), list[int]()
    if not all(s.draft.is_chain for s in segments):
        extra_slots = _branch(segments, offsets, slots, positions, last, extra_offsets)
    # An operation on arrays of few rows takes longer to call than to run, so there are few.
    token_ids, targets = _arrays(np.int64, tokens, slots)
    rotary, *seen = _arrays(np.int32, positions, owner, first, last, extra_offsets, extra_slots)
    view = AttentionMetadata(torch.from_numpy(table_array([s.blocks for s in segments])), *seen)
    states = _states(segments, offsets) if recurrent else None
    return Batch(token_ids, rotary, targets, view, tuple(offsets), states)


def _arrays(dtype: type[np.signedinteger[Any]], *lists: Sequence[int]) -> Sequence[Tensor]:
    """Return lists of integers as arrays, which share memory."""
    together = np.array([*chain.from_iterable(lists)], dtype=dtype)
    return torch.from_numpy(together).split_with_sizes([len(own) for own in lists])


def _slots(blocks: Sequence[int], start: int, rows: int, block_size: int) -> Sequence[int]:
    """Return the slots of `rows` logical indices from `start` on."""
    block, within = divmod(start, block_size)
    if rows == 1:
        return (blocks[block] * block_size + within,)
    slots: list[int] = []
    while len(slots) < rows:
        here = min(block_size - within, rows - len(slots))
        slots += range(blocks[block] * block_size + within, blocks[block] * block_size + within + here)
        block, within = block + 1, 0
    return slots


def _branch(
    segments: Sequence[Segment],
    offsets: Sequence[int],
    slots: Sequence[int],
    positions: list[int],
    last: list[int],
    extra_offsets: list[int],
) -> list[int]:
    """Set what nodes of drafts with branches see: the tokens before the draft, and one by one those of their paths.

    Args:
        segments: tokens and drafts of requests.
        offsets: first row of each segment.
        slots: cache slot of each row.
        positions, last: rotary position, and end of the keys seen, of each row; changed.
        extra_offsets: offset of each row in the returned slots, and their number at the end; changed.

    Returns:
        The slots of the nodes' ancestors, each node's own last.
    """
    extra_slots: list[int] = []
    counts = [0] * len(slots)
    for segment, begin in zip(segments, offsets, strict=False):
        if not segment.draft.is_chain:
            root, end = begin + len(segment.tokens), segment.start + len(segment.tokens)
            own = paths(segment.draft)
            nodes = slice(root, root + len(own))
            positions[nodes] = [depth + end - 1 for depth in depths(segment.draft)]
            last[nodes] = [end] * len(own)
            counts[nodes] = [len(path) for path in own]
            extra_slots.extend(slots[root + node] for path in own for node in path)
    extra_offsets[1:] = accumulate(counts)
    return extra_slots


def _states(segments: Sequence[Segment], offsets: Sequence[int]) -> StateMetadata:
    """Return the states that the rows of recurrent layers continue from."""
    sequences: list[tuple[int, ...]] = []
    rows: list[tuple[int, ...]] = []
    replayed: list[tuple[int, int]] = []
    for number, (segment, begin) in enumerate(zip(segments, offsets, strict=False)):
        states, known = segment.states, len(segment.tokens)
        stores, before, root = dict(states.stores), len(states.accepted), begin + known - 1
        first = len(replayed)
        replayed.extend((place, stores.get(i + 1, -1)) for i, place in enumerate(states.accepted))
        sequences.append((states.source, first, len(replayed), begin, begin + known + len(segment.draft)))
        rows.extend((number, begin + i - 1 if i else -1, stores.get(before + i + 1, -1), -1) for i in range(known))
        nodes = zip(segment.draft.parents, states.places, strict=True)
        rows.extend((number, root if parent < 0 else root + 1 + parent, -1, place) for parent, place in nodes)
    return StateMetadata(_table(sequences, 5), _table(rows, 4), _table(replayed, 2))


def _table(values: Sequence[Sequence[int]], columns: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cpu").view(-1, columns)


def first_rows(batch: Batch, rows: int) -> Batch:
    """Return the memory of the first rows of a batch, whose tables stay as wide as they are."""
    view = AttentionMetadata(
        tables=batch.view.tables[:rows],
        row_request=batch.view.row_request[:rows],
        first=batch.view.first[:rows],
        last=batch.view.last[:rows],
        extra_offsets=batch.view.extra_offsets[: rows + 1],
        extra_slots=batch.view.extra_slots[: rows * rows],
    )
    tokens, positions, slots = batch.tokens[:rows], batch.positions[:rows], batch.slots[:rows]
    states = batch.states
    if states is not None:
        states = StateMetadata(states.sequences[:rows], states.rows[:rows], states.replayed)
    return replace(batch, tokens=tokens, positions=positions, slots=slots, view=view, states=states)


def copy_batch(batch: Batch, to: Batch) -> None:
    """Copy a batch to where a recorded pass reads it."""
    requests, blocks = batch.view.tables.shape
    if batch.states is not None and to.states is not None:
        to.states.sequences.zero_()
        for source, target in ((getattr(one.states, name) for one in (batch, to)) for name in _tensors(batch.states)):
            target[: len(source)] = source
    view, there, extra = batch.view, to.view, batch.view.extra_slots.shape[0]
    sources = [batch.tokens, batch.positions, batch.slots, view.tables, view.row_request, view.first, view.last]
    sources += [view.extra_offsets, view.extra_slots] if extra else [view.extra_offsets]
    targets = [to.tokens, to.positions, to.slots, there.tables[:requests, :blocks], there.row_request, there.first]
    targets += [there.last, there.extra_offsets, *([there.extra_slots[:extra]] if extra else [])]
    torch._foreach_copy_(targets, sources)


def placed(batch: Batch, kernels: Kernels, *further: Tensor) -> tuple[Batch, list[Tensor]]:
    """Return a batch, and further tensors, where kernels read them: all go there in one copy, unless they are there.

    Args:
        batch: batch in host memory, as `flatten` makes it, or where kernels read it.
        kernels: operations that are to read it.
        further: further tensors in host memory.
    """
    if kernels.is_on_device(batch.tokens):
        return batch, [*further]
    own = arrays_of(batch)
    arrays = sent(kernels, [*own, *further])
    return with_arrays(batch, arrays[: len(own)]), arrays[len(own) :]


def arrays_of(batch: Batch) -> list[Tensor]:
    """Return the arrays of a batch."""
    owners = [one for one in (batch, batch.view, batch.states) if one is not None]
    return [getattr(owner, name) for owner in owners for name in _tensors(owner)]


def with_arrays(batch: Batch, arrays: Sequence[Tensor]) -> Batch:
    """Return a batch with other arrays, such as copies of its own elsewhere, in the order of `arrays_of`."""
    there = iter(arrays)
    tokens, positions, slots = (next(there) for _ in range(3))
    view = AttentionMetadata(*(next(there) for _ in fields(AttentionMetadata)))
    states = None if batch.states is None else StateMetadata(*(next(there) for _ in fields(StateMetadata)))
    return Batch(tokens, positions, slots, view, batch.offsets, states)


def state_arrays(states: StateMetadata) -> list[Tensor]:
    """Return the arrays of a view of states, in the order of its fields."""
    return [getattr(states, name) for name in _tensors(states)]


def _tensors(owner: Batch | AttentionMetadata | StateMetadata) -> list[str]:
    """Return the names of what is sent, in the order of the fields."""
    names = [field.name for field in fields(owner)]
    return [name for name in names if isinstance(getattr(owner, name), Tensor)]


def trimmed(batch: Batch, block_size: int) -> Batch:
    """Return a batch without the columns of its tables that no row reads."""
    blocks = -(-int(batch.view.last.max()) // block_size)
    return replace(batch, view=replace(batch.view, tables=batch.view.tables[:, :blocks].contiguous()))


def table_array(blocks: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    """Return block tables as one array `[requests, longest]`, padded with block 0, which is never read there."""
    tables = np.zeros((len(blocks), max(map(len, blocks))), dtype=np.int32)
    for row, own in zip(tables, blocks, strict=True):
        row[: len(own)] = own
    return tables
