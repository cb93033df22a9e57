"""What is believed of guesses by their depth: quick to follow the text, slow to forget what has long been true."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.drafting.acceptance import Acceptance


def taught(acceptance: Acceptance, alpha: float, drafts: int, seed: int = 0, length: int = 3) -> Acceptance:
    """Return it after so many drafts whose nodes are right with probability `alpha`."""
    rng = random.Random(seed)
    for _ in range(drafts):
        levels: list[bool] = []
        while len(levels) < length and all(levels):
            levels.append(rng.random() < alpha)
        acceptance.judged(levels, pays=True)
    return acceptance


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.9])
def test_it_comes_near_what_is_true(alpha: float) -> None:
    assert taught(Acceptance(3), alpha, 2000).believed() == pytest.approx([alpha] * 3, abs=0.12)


def test_a_change_is_followed_within_a_hundred_drafts() -> None:
    acceptance = taught(Acceptance(3), 0.9, 2000)
    assert taught(acceptance, 0.1, 100, seed=1).believed()[0] < 0.45


def test_a_few_unlucky_guesses_do_not_undo_thousands() -> None:
    long, short = taught(Acceptance(1), 0.7, 2000, length=1), taught(Acceptance(1), 0.7, 16, length=1)
    for acceptance in (long, short):
        before = acceptance.believed()[0]
        acceptance.doubt()
        for _ in range(4):
            acceptance.judged([False], pays=False)
        assert acceptance.believed()[0] < before
    assert long.believed()[0] > 0.6 > short.believed()[0]


def test_what_an_earlier_run_has_known_holds_at_first() -> None:
    known = taught(Acceptance(3), 0.8, 2000).known
    assert known == pytest.approx([0.8] * 3, abs=0.08)
    later = Acceptance(3, known)
    assert later.enough
    assert later.believed() == pytest.approx(known)
    later.judged([False] * 1, pays=False)
    assert later.believed()[0] > 0.75
    assert taught(later, 0.1, 300).believed()[0] < 0.3


def test_nothing_is_remembered_of_what_was_hardly_seen() -> None:
    assert taught(Acceptance(3), 0.5, 3).known == []
    assert not Acceptance(3).enough


def test_a_depth_that_was_never_reached_follows_its_parent() -> None:
    acceptance = Acceptance(3)
    for _ in range(50):
        acceptance.judged([True], pays=True)
    first, second, third = acceptance.believed()
    assert first > second > third > 0.8


@given(
    levels=st.lists(st.tuples(st.lists(st.booleans(), max_size=5), st.booleans()), max_size=60),
    known=st.lists(st.floats(0, 1), max_size=5),
)
def test_all_are_probabilities(levels: list[tuple[list[bool], bool]], known: list[float]) -> None:
    acceptance = Acceptance(4, known)
    for right, pays in levels:
        acceptance.judged(right, pays=pays)
        if not pays:
            acceptance.doubt()
        for low, high in zip(acceptance.believed(), acceptance.at_best(), strict=True):
            assert 0 <= low <= high <= 1


def test_what_is_enough_to_give_up_is_enough_to_tell_the_next_run() -> None:
    acceptance = Acceptance(2)
    while not acceptance.enough:
        acceptance.judged([False], pays=False)
    [known] = acceptance.known
    later = Acceptance(2, [known])
    assert later.enough
    assert later.believed()[0] < 0.1
