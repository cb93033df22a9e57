"""Steps without drafts, from which is learnt what plain decoding costs."""

from itertools import pairwise

import pytest

from parlay.drafting.controller import Controller
from parlay.drafting.cost import StepCost
from parlay.drafting.looks import Looks

PLAIN, DRAFTING = 0.010, 0.001


def pauses(control: Controller, steps: int) -> list[tuple[int, bool]]:
    """Return of each step how many nodes a device proposer was asked for, and whether it tells of plain steps."""
    found, pending = [], 0
    for _ in range(steps):
        control.asks(1, 1, 0)
        if pending:
            control.choose([[0.9] * pending], 1, 1, 0, from_device=True)
            control.judged([True] * pending, pending, pending)
        looks = control.looks
        length = control.next_length(4, 1, 1, 0)
        control.timed(1 + pending, 0, PLAIN, [length], DRAFTING * length)
        pending = length
        found.append((length, looks))
    return found


def test_a_device_proposer_pauses_for_several_steps_of_which_the_first_does_not_count() -> None:
    cost = StepCost(64)
    cost.learn([(rows, PLAIN) for rows in (1, 2, 4, 8)])
    steps = pauses(Controller(cost, 4, drafting={1: DRAFTING, 4: 4 * DRAFTING}, chances=[0.9] * 4), 60)
    lengths = [length for length, _ in steps]
    first = lengths.index(0)
    # The step in which it stops has drafts still; then follow four without, and in the last it drafts again.
    assert lengths[first : first + 5] == [0, 0, 0, 0, lengths[first + 4]]
    assert lengths[first + 4] > 0
    assert [looks for _, looks in steps[first : first + 6]] == [False, False, True, True, True, False]
    assert 1 <= lengths[first + 4 :].count(0) // 4 <= 2, "they become rare"


def test_what_plain_steps_really_cost_ends_drafting_that_only_seemed_to_pay() -> None:
    """Beside a plain step that is thought to take three times what it takes, a useless draft seems a bargain."""
    cost = StepCost(64)
    cost.learn([(1, 3 * PLAIN), (2, 3 * PLAIN), (4, 3 * PLAIN), (8, 3 * PLAIN)])
    control, pending, drafted = Controller(cost, 4, drafting={1: PLAIN, 4: PLAIN}, chances=[0.5, 0.5]), 0, []
    for _ in range(200):
        control.asks(1, 1, 0)
        if pending:
            control.choose([[0.5] * pending], 1, 1, 0, from_device=True)
            control.judged([len(drafted) % 2 == 0], pending, pending)
        length = control.next_length(4, 1, 1, 0)
        # Rows cost far more than was thought, but those of drafts are only ever seen together with their own.
        control.timed(1 + pending, 0, PLAIN if not pending else 3 * PLAIN, [length], PLAIN * bool(length))
        pending = length
        drafted.append(length > 0)
    assert any(drafted[:20])
    assert sum(drafted[-100:]) < 10


@pytest.mark.parametrize("length", [1, 4])
def test_looks_become_rare_until_a_surprise(length: int) -> None:
    looks, begun = Looks(length, 64), []
    for step in range(400):
        looks.step(drafted=not looks.left)
        if not looks.left and looks.begin():
            begun.append(step)
    gaps = [after - before for before, after in pairwise(begun)]
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 64
    looks.surprise()
    assert any(looks.begin() for _ in range(8) if looks.step(drafted=True) is None)
