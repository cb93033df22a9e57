"""Drafts that follow from a verdict before the host knows it: the verdict, and places that are set by it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from watching import start

from parlay.kernels.select import select_kernels
from parlay.kernels.uploads import Uploads
from parlay.proposers.block_config import AttentionPattern
from parlay.proposers.block_slots import BlockSlots
from parlay.proposers.device_verdict import DeviceVerdict, Shift, depth_of, draft_rows, undecided
from parlay.proposers.draft_head import Start
from parlay.proposers.draft_slots import DraftSlots
from parlay.proposers.draws import Draws
from parlay.proposers.target_keys import TargetKeys
from parlay.sampling_params import SamplingParams
from parlay.types.draft import Draft
from parlay.types.plan import CatchUp, ProposerState, Span
from parlay.verification import coupled

KERNELS = select_kernels()
UPLOADS = Uploads(KERNELS)
BLOCK, BLOCKS, ROWS, LEVELS = 4, 12, 8, 4


@st.composite
def spans(make: st.DrawFn) -> list[Span]:
    """Requests in one step: parts of prompts, last tokens with trees, children of a node with different tokens."""
    made = []
    for number in range(make(st.integers(1, 4))):
        known = make(st.integers(1, 3))
        parents, tokens = list[int](), list[int]()
        for node in range(make(st.integers(0, 6))):
            parent = make(st.integers(-1, node - 1))
            parents.append(parent)
            tokens.append(parents[:-1].count(parent))
        draft = Draft(tuple(tokens), tuple(parents), ("x",) * len(tokens), None)
        params = SamplingParams(temperature=0).draw
        sample = bool(tokens) or make(st.booleans())
        made.append(Span(number, (9,) * known, 5, (), 0, params, draft, sample, remaining=99))
    return made


@settings(max_examples=200, deadline=None)
@given(spans=spans(), data=st.data())
def test_the_host_decides_the_same(spans: list[Span], data: st.DataObject) -> None:
    rows = sum(len(span.tokens) + len(span.draft) for span in spans)
    drawn = data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows))
    chosen, roots, first = list[int](), list[int](), 0
    for span in spans:
        roots.append(first + len(span.tokens) - 1)
        first += len(span.tokens) + len(span.draft)
        chosen += drawn[roots[-1] : first] if span.sample else []
    expected = coupled.verify(KERNELS, spans, torch.zeros(len(chosen), 3), drawn=chosen)
    most = max(map(depth_of, spans))
    found = DeviceVerdict.of(KERNELS, torch.tensor(drawn), draft_rows(spans), most, filler=7)
    for i, (span, verdict) in enumerate(zip(spans, expected, strict=True)):
        count = int(found.accepted[i])
        assert count == len(verdict.path)
        path = [roots[i], *(roots[i] + 1 + node for node in verdict.path)]
        assert found.path[i].tolist() == path + path[-1:] * (most - count)
        if span.sample:
            assert found.emitted[i].tolist() == [*verdict.tokens, *[7] * (most - count)]


def test_what_is_planned_has_room_for_any_verdict() -> None:
    params = SamplingParams(temperature=0).draw
    ask = CatchUp(ProposerState(4, speculated=2), budget=3)
    tree = Draft((1, 2, 3), (-1, 0, -1), ("x",) * 3, None)
    span = Span(0, (9,), 5, (), 0, params, tree, sample=True, stop_ids=frozenset({7}), remaining=4, catch_up=ask)
    (planned, other), (verdict, none) = undecided([span, replace(span, draft=Draft.chain((), "x"), sample=False)], 7)
    assert (verdict.tokens, verdict.path, none.tokens) == ((7, 7, 7), (0, 1), ())
    assert (planned.remaining, planned.stop_ids, planned.catch_up.state) == (6, frozenset(), ProposerState(4))
    assert other.remaining == 4


def starts(ahead: int = 0) -> list[Start]:
    """Requests whose first nodes stand so much further on, longest drafts first."""
    blocks = [(3, 1, 7), (2, 5, 10), (4, 6, 8, 9)]
    return [
        replace(start(i, LEVELS - i, 5, 3 + 2 * i + (1 + i) * ahead, own), first=i) for i, own in enumerate(blocks)
    ]


def shift(width: int = 1, limits: tuple[int, ...] = (12, 12, 16)) -> Shift:
    return Shift(torch.tensor([1, 2, 3]), torch.tensor([5, 5, 5]), torch.tensor(limits), LEVELS, width)


def memory(of: object) -> dict[str, Any]:
    return {name: value for name, value in vars(of).items() if isinstance(value, Tensor | tuple | dict)}


def draft_slots(*, pairs: bool = False, newest: bool = False) -> DraftSlots:
    tokens = torch.zeros((LEVELS + 1, ROWS), dtype=torch.int64)
    made = DraftSlots(tokens, BLOCKS, BLOCK, UPLOADS, pairs=pairs, newest=newest)
    made._tables.zero_()
    return made


def block_slots() -> BlockSlots:
    patterns = [AttentionPattern(causal=True, window=3), AttentionPattern(causal=False)]
    made = BlockSlots(patterns, 8, 1, 11, BLOCKS, BLOCK, UPLOADS)
    made._tables.zero_()
    return made


def target_keys() -> TargetKeys:
    made = TargetKeys(torch.zeros((LEVELS, ROWS), dtype=torch.int64), BLOCKS, UPLOADS)
    made._tables.zero_()
    return made


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(same(one[name], other[name]) for name in one)
    return torch.equal(one, other) if isinstance(one, Tensor) else len(one) == len(other)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize(
    "make",
    [
        draft_slots,
        lambda: draft_slots(pairs=True),
        lambda: draft_slots(newest=True),
        lambda: draft_slots(pairs=True, newest=True),
        target_keys,
    ],
)
def test_places_that_are_shifted(make: Callable[[], DraftSlots | TargetKeys], width: int) -> None:
    """They are those of requests that start so much later."""
    one, other = make(), make()
    one.prepare(starts(), width)
    one.shift(shift(width))
    other.prepare(starts(1), width)
    for level in range(1 if isinstance(one, DraftSlots) and one._before else 0, LEVELS):
        rows = 3 if width == 1 or not level else 6
        if width == 1:  # those that still draft
            rows = sum(own.length > level for own in starts())
        found, expected = (own.batch(level, rows, width if level else 1) for own in (one, other))
        for name in ("positions", "slots"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name
        assert all(map(same, vars(found.view).values(), vars(expected.view).values()))


def test_blocks_that_are_shifted() -> None:
    one, other = block_slots(), block_slots()
    one.prepare(starts()[:1])
    one.shift(Shift(torch.tensor([1]), torch.tensor([5]), torch.tensor([12]), 4, 1))
    other.prepare(starts(1)[:1])
    assert same(memory(one), memory(other))
    assert len(one._first) == 2


def test_draws_that_are_shifted() -> None:
    one, other = Draws(LEVELS, ROWS, UPLOADS), Draws(LEVELS, ROWS, UPLOADS)
    one.prepare([own.span for own in starts()], [own.position for own in starts()])
    one.shift(shift().ahead)
    other.prepare([own.span for own in starts()], [own.position for own in starts(1)])
    assert same(memory(one), memory(other))


def test_nothing_is_stored_beyond_a_requests_blocks() -> None:
    """Where a draft would go on behind the last token that there can be; rows there read what they may."""
    slots = draft_slots()
    slots.prepare(starts())
    slots.shift(shift(limits=(6, 12, 16)))
    first = [slots.batch(level, 3) for level in range(1, LEVELS)]
    assert [int(one.slots[0]) for one in first] == [1 * BLOCK + 0, 1 * BLOCK + 1, -1]
    assert max(int(one.view.last[0]) for one in first) == 6
    assert max(int(one.positions[0]) for one in first) == 5
