"""Tries of what does not seem to pay cost half a per cent of the time; after a lucky one the next comes at once."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.drafting.tries import Tries

SHARE = 0.005


@given(
    steps=st.lists(
        st.tuples(st.floats(0.1, 2.0), st.floats(0.0, 30.0), st.floats(0.5, 20.0), st.booleans(), st.booleans()),
        min_size=1,
        max_size=400,
    )
)
def test_no_more_is_lost_than_a_share_of_the_time(
    steps: list[tuple[float, float, float, bool, bool]],
) -> None:
    tries, lost, passed, first = Tries(), 0.0, 0.0, None
    for price, catching_up, seconds, idle, right in steps:
        if idle:
            tries.save(seconds)
        else:
            first = price + catching_up if first is None else first
            if tries.take(price, catching_up, seconds):
                lost += price + catching_up
                tries.judged(right=right)
        passed += seconds
        assert lost <= SHARE * passed + (first or 0.0) + 1e-9


def tried(tries: Tries, price: float, catching_up: float, steps: int, *, right: bool = False) -> list[int]:
    """Return in which steps of one second it was tried; after the first of a run it has caught up."""
    found: list[int] = []
    for step in range(steps):
        behind = catching_up if not found or found[-1] != step - 1 else 0.0
        if tries.take(price, behind, 1.0):
            found.append(step)
            tries.judged(right=right)
    return found


def test_catching_up_is_worth_as_many_tries_as_it_has_cost() -> None:
    found = tried(Tries(), 0.1, 1.5, 2000)
    run = next(i for i, step in enumerate(found) if step != found[0] + i)
    assert run >= 7, "the first try was hardly worth it"
    assert len(found) >= 20


def test_what_goes_right_is_tried_again_at_once() -> None:
    wrong, right = tried(Tries(), 0.1, 0.0, 1000), tried(Tries(), 0.1, 0.0, 1000, right=True)
    for found in (wrong, right):
        assert len(found) == pytest.approx(SHARE * 1000 / 0.1, abs=6)
    runs = [sum(after == before + 1 for before, after in pairwise(found)) for found in (wrong, right)]
    assert runs[0] == 0 < runs[1]


def test_time_in_which_there_is_nothing_to_try_counts_too() -> None:
    tries = Tries()
    assert not tries.affordable
    tries.take(0.1, 0.0, 0.0)
    assert not all(tries.take(0.1, 0.0, 0.0) for _ in range(20))
    assert not tries.affordable
    tries.save(1000.0)
    assert tries.affordable
    assert tries.take(0.1, 0.0, 0.0)
