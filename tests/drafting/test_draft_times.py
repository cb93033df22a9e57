"""What a device proposer's drafts take: by length, by number of requests, and without what the first ones add."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlay.drafting.device_lengths import DeviceLengths, Step
from parlay.drafting.times import DraftTimes


def seconds_of(length: int, count: int) -> float:
    return (0.0005 + 0.0004 * length) * (1 + count / 8)


def teach(times: DraftTimes, count: int, *lengths: int, drafts: int = 4, slower: float = 1.0) -> None:
    for length in lengths:
        for _ in range(drafts):
            times.observe([length] * count, slower * seconds_of(length, count), count)


def taught(*counts: int) -> DraftTimes:
    times = DraftTimes()
    for count in counts:
        for length in (1, 4):
            times.observe([length] * count, 5 * seconds_of(length, count), count)  # records its passes
        teach(times, count, 1, 4)
    return times


def test_each_number_of_requests_has_its_own() -> None:
    """Or a large batch would believe a small one for as many drafts as it takes to unlearn that."""
    times = taught(1, 32)
    for count in (1, 32, 1):
        expected = [seconds_of(length, count) for length in range(1, 5)]
        assert times.by_length(4, count) == pytest.approx([0, *expected])
        teach(times, count, 1, 4, drafts=500)
    assert times.known == pytest.approx({1: seconds_of(1, 1), 4: seconds_of(4, 1)})


@pytest.mark.parametrize(("known", "new"), [(1, 32), (32, 1)])
@pytest.mark.parametrize("length", [1, 2, 4])
def test_one_draft_says_what_a_new_number_of_requests_takes_at_every_length(
    known: int, new: int, length: int
) -> None:
    times = taught(known)
    before = times.of(length, new)
    teach(times, new, length, drafts=1, slower=9)
    assert times.of(length, new) == before, "the first records its passes"
    teach(times, new, length, drafts=1)
    for count in (known, new):
        assert times.by_length(4, count)[1:] == pytest.approx([seconds_of(k, count) for k in range(1, 5)])


def test_numbers_that_are_new_are_taken_to_be_cheap() -> None:
    times = taught(4, 32)
    assert times.of(4, 4) < times.of(4, 8) < times.of(4, 16) < times.of(4, 32) == times.of(4, 40) == times.of(4, 500)
    assert times.of(4, 4) / 2.1 < times.of(4, 1) < times.of(4, 4) / 1.9
    assert times.of(8, 4) == pytest.approx(2 * times.of(4, 4))  # beyond what is known in proportion
    assert DraftTimes().by_length(3, 1) == [0, 0, 0, 0]


def test_what_one_number_of_requests_says_corrects_the_others() -> None:
    times = taught(1, 32)
    teach(times, 1, 1, drafts=100, slower=1.6)
    assert times.of(1, 1) == pytest.approx(1.6 * seconds_of(1, 1), rel=0.01)
    assert times.of(1, 32) == pytest.approx(1.6**0.5 * seconds_of(1, 32), rel=0.01)
    teach(times, 1, 1, drafts=40)
    assert times.of(1, 32) == pytest.approx(seconds_of(1, 32), rel=0.01)


@pytest.mark.parametrize("slower", [2.0, 4.0])
@pytest.mark.parametrize("before", [(), (1,)])
def test_what_a_burst_made_look_expensive_is_corrected_by_tries(before: tuple[int, ...], slower: float) -> None:
    """Drafts for eight are made only where they seem to pay; else one request is tried, and that knows no more."""
    times, pays = taught(*before), 1.3 * seconds_of(1, 8)
    teach(times, 8, 1, drafts=2, slower=slower)
    assert times.of(1, 8) > pays
    for _ in range(40):
        if times.of(1, 8) < pays:
            teach(times, 8, 1, drafts=1)
        else:
            times.observe([1] + 7 * [0], seconds_of(1, 1), 8)
    assert times.of(1, 8) == pytest.approx(seconds_of(1, 8), rel=0.02)
    assert times.of(1, 1) == pytest.approx(seconds_of(1, 1), rel=0.2)


def test_one_draft_is_enough_to_see_that_they_were_expensive_indeed() -> None:
    times = taught(1, 8)
    for length in (1, 4):
        for _ in range(20):
            times.observe([length] + 7 * [0], seconds_of(length, 1), 8)
    assert times.of(1, 8) < 1.05 * seconds_of(1, 1)
    teach(times, 8, 1, drafts=1)
    for length in (1, 4):
        assert times.of(length, 8) == pytest.approx(seconds_of(length, 8))
        assert times.of(length, 1) == pytest.approx(seconds_of(length, 1))
    times.observe([1] + 7 * [0], seconds_of(1, 1), 8)
    times.observe([8] * 8, 9.0, 8)
    times.observe([8] * 8, seconds_of(8, 8), 8)
    assert times.of(4, 8) == pytest.approx(seconds_of(4, 8)), "a length that is new says nothing of others"


def test_lengths_are_chosen_by_what_drafts_for_as_many_requests_take() -> None:
    """And a draft for one request among eight is a try, that leaves those for eight in doubt."""
    ahead = DeviceLengths(4, {1: 0.001}, [0.9])
    table = [0.010] * 100
    assert ahead.next_length(1, 1, Step(1, table, 0.0, 1.0, 1.0)) == 1
    assert ahead.next_length(1, 8, Step(8, table, 0.0, 1.0, 1.0)) == 1
    for _ in range(2):
        ahead.timed([1] * 8, 0.020)
    assert ahead.next_length(1, 8, Step(8, table, 0.0, 1.0, 1.0)) == 0
    assert ahead.next_length(1, 1, Step(1, table, 0.0, 1.0, 1.0)) == 1
    for _ in range(20):
        ahead.timed([1], 0.001)
    assert ahead.next_length(1, 8, Step(8, table, 0.0, 1.0, 1.0)) == 0, "what one request takes is no news of eight"
    for _ in range(20):
        ahead.timed([1] + 7 * [0], 0.001)
    assert ahead.next_length(1, 8, Step(8, table, 0.0, 1.0, 1.0)) == 1


def test_noise_leaves_it_near_what_drafts_take() -> None:
    times, rng = DraftTimes(), random.Random(5)
    for _ in range(2000):
        count, length = rng.choice((1, 8, 32)), rng.choice((1, 2, 4))
        times.observe([length] * count, rng.uniform(0.85, 1.15) * seconds_of(length, count), count)
    for count in (1, 8, 32):
        for length in (1, 2, 4):
            assert times.of(length, count) == pytest.approx(seconds_of(length, count), rel=0.12)


def test_a_burst_counts_for_little_and_what_was_remembered_gives_way() -> None:
    times = DraftTimes({1: 0.004})
    for _ in range(12):
        times.observe([1], 0.002)
    assert times.of(1, 1) == pytest.approx(0.002, rel=0.05)
    times.observe([1], 1.0)
    assert times.of(1, 1) < 0.0023


DRAFT = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 20), st.floats(0, 60) | st.floats(0.001, 0.01))


@settings(max_examples=200)
@given(st.lists(DRAFT, min_size=20, max_size=50))
def test_longer_drafts_or_more_requests_never_take_less(seen: list[tuple[int, int, int, float]]) -> None:
    times = DraftTimes()
    for length, size, asked, seconds in seen:
        times.observe([length] * 2**size, seconds, asked)
    found = [times.by_length(5, count) for count in range(1, 20)]
    for fewer, more in pairwise(found):
        assert all(a <= b * (1 + 1e-9) for a, b in zip(fewer, more, strict=True))
    for row in found:
        assert all(a <= b * (1 + 1e-9) for a, b in pairwise(row))


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e9, float("nan")])
def test_times_that_cannot_be_are_ignored(seconds: float) -> None:
    times = DraftTimes({2: 0.004})
    times.observe([2], seconds)
    times.observe([], 0.001)
    times.observe([0, 0], 0.001)
    assert times.known == {2: 0.004}


def test_beside_a_new_pass_only_what_is_unknown_is_learnt() -> None:
    times = DraftTimes()
    for _ in range(2):
        times.observe([2] * 8, 0.006, settled=False)
    assert times.of(2, 8) == pytest.approx(0.006)
    times.observe([2] * 8, 0.012, settled=False)
    times.observe([2] * 8, 0.001, settled=False)
    assert times.of(2, 8) == pytest.approx(0.006)
