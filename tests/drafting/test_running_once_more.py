"""A head that lacks a request's states has the target run its tokens once more only where its drafts save as much."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from parlay.drafting.controller import Controller
from parlay.drafting.cost import StepCost
from parlay.drafting.device import Device
from parlay.drafting.goodput import best_draft
from parlay.drafting.hosts import Faults, Method
from parlay.drafting.state import DraftState
from parlay.proposers.base import DeviceProposer
from parlay.types.plan import Proposal, ProposerState, Span, Verdict

BATCH, LACKING, LEFT = 32, 100, 250


class Pairs(DeviceProposer):
    """Wants to have seen the target's states."""

    pairs = True

    def __init__(self) -> None:
        pass

    def propose(
        self, spans: Sequence[Span], verdicts: Sequence[Verdict], hidden: Tensor, tapped: Tensor | None = None
    ) -> list[Proposal]:
        raise NotImplementedError


def taught(drafting: float) -> Controller:
    """Return a controller that knows what steps and drafts of one token cost, of which 40 % are right."""
    cost = StepCost(512)
    cost.learn([(rows, 0.010 + 0.0001 * rows) for rows in (1, 16, 32, 64, 256)])
    control = Controller(cost, 1)
    for _ in range(40):
        control.asks(BATCH, BATCH, 0)
        control.next_length(1, BATCH, BATCH, 0)
        control.timed(BATCH, 0, cost.table[BATCH], [1] * BATCH, drafting)
        for right in (True, False, False, True, False):
            control.judged([right], 1, 1)
    control.next_length(1, BATCH, BATCH, 0)
    return control


def rerun(control: Controller, left: int = LEFT) -> int:
    method = Method("pairs", Pairs(), 1)
    device = Device(method, control, Faults(), share_prefixes=False, vocab_size=None)
    state = DraftState(device=True)
    state.layers = ProposerState(0)
    tokens = range(LACKING + 1)
    request: Any = SimpleNamespace(request_id=1, tokens=tokens, computed=LACKING, remaining=left, drafting=state)
    device.choose([request] * BATCH, [1] * BATCH, BATCH, 0)
    return device.states(request)


def test_what_saves_little_is_not_worth_the_rows() -> None:
    much, little = taught(0.0001), taught(0.0015)
    assert 0 < little.saving(1, BATCH, BATCH, 0) < 0.06 < much.saving(1, BATCH, BATCH, 0)
    # A hundred rows take as long as 24 tokens, of 250 that are left.
    assert much.lost(LACKING, 0) == little.lost(LACKING, 0) == pytest.approx(24, rel=0.1)
    assert rerun(much) == LACKING
    assert rerun(little) == 0


def test_the_saving_is_that_of_the_best_length() -> None:
    table = [0.0, *(0.010 + 0.0001 * rows for rows in range(1, 64))]
    length, saving = best_draft([0.5, 0.1], 1, 1, table, [0.0, 0.001, 0.01])
    assert length == 1
    assert saving == pytest.approx(1 - (table[2] + 0.001) / 1.5 / table[1])
    assert best_draft([0.5, 0.1], 1, 1, table, [0.0, 0.1, 0.2]) == (0, 0.0)


def test_answers_are_not_counted_on_to_be_as_long_as_they_may() -> None:
    little = taught(0.0015)
    assert rerun(little, left=100_000) == 0
