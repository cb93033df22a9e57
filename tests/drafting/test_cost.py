"""What steps cost: learnt from steps, never falling, robust to bursts and jumps of the clock."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlay.drafting.cost import KNOTS, StepCost, isotonic
from parlay.drafting.draft_cost import DraftCost


def true_seconds(rows: int, keys: int = 0) -> float:
    """Memory bound up to a dozen rows, then arithmetic."""
    return 0.010 * max(1 + 0.01 * rows, rows / 12) + keys * 1e-7


TIMED = [(rows, true_seconds(rows)) for rows in (1, 2, 4, 8, 16, 32)]


def test_the_table_is_what_was_timed_and_linear_in_between() -> None:
    cost = StepCost(64)
    cost.learn(TIMED)
    for rows, seconds in TIMED:
        assert cost.seconds(rows) == pytest.approx(seconds)
    assert cost.seconds(24) == pytest.approx((true_seconds(16) + true_seconds(32)) / 2)
    assert cost.seconds(64) == pytest.approx(2 * true_seconds(32))
    assert cost.seconds(1000) == cost.seconds(64)


def test_nothing_known_is_the_worst_case() -> None:
    """Every row costs as much as the first, so that nothing seems worth while."""
    cost = StepCost(16)
    assert [cost.seconds(rows) / cost.seconds(1) for rows in (1, 2, 16)] == [1, 2, 16]
    cost.observe(1, 0, 0.01)
    assert [cost.seconds(rows) for rows in (1, 2, 16)] == pytest.approx([0.01, 0.02, 0.16])


def test_it_is_learnt_from_steps_alone() -> None:
    rng, cost = random.Random(1), StepCost(128, key_share=1e-5)
    for _ in range(3000):
        rows, keys = rng.choice((1, 2, 3, 5, 9, 17, 40, 100)), rng.randrange(4000)
        cost.observe(rows, keys, true_seconds(rows, keys) * rng.uniform(0.95, 1.05))
    for rows in (1, 2, 3, 5, 9, 17, 40, 100):
        assert cost.seconds(rows, 1000) == pytest.approx(true_seconds(rows, 1000), rel=0.12)


@pytest.mark.parametrize("factor", [3.0, 0.4])
def test_a_burst_moves_the_pace_and_not_the_table(factor: float) -> None:
    """What decides is how much more rows cost than none, and a neighbour slows all of them down."""
    cost = StepCost(64)
    cost.learn(TIMED)
    for rows in (1, 9) * 20:
        cost.observe(rows, 0, true_seconds(rows))
    before = cost.seconds(9) / cost.seconds(1)
    for _ in range(50):
        cost.observe(1, 0, true_seconds(1) * factor)
    assert cost.pace == pytest.approx(factor, rel=0.2)
    assert cost.seconds(9) / cost.seconds(1) == pytest.approx(before, rel=0.15)
    for _ in range(50):
        cost.observe(1, 0, true_seconds(1))
    assert cost.seconds(1) == pytest.approx(true_seconds(1), rel=0.1)
    assert cost.seconds(9) / cost.seconds(1) == pytest.approx(before, rel=0.15)


def test_what_was_timed_at_start_gives_way_to_real_steps() -> None:
    """A step is more than a pass: it draws, walks, plans."""
    cost = StepCost(64)
    cost.learn(TIMED)
    for _ in range(14):
        for rows in (1, 8):
            cost.observe(rows, 0, true_seconds(rows) + 0.004)
    assert cost.pace == 1
    for rows in (1, 8):
        assert cost.seconds(rows) == pytest.approx(true_seconds(rows) + 0.004, rel=0.05)


def test_what_steps_take_beyond_their_passes_is_known_of_rows_that_were_only_timed() -> None:
    """Or rows that no step has had yet would look cheap beside those that steps have."""
    cost = StepCost(64)
    cost.learn(TIMED)
    for _ in range(20):
        cost.observe(8, 0, true_seconds(8) + 0.004)
    for rows in (1, 2, 16, 32):
        assert cost.seconds(rows) == pytest.approx(true_seconds(rows) + 0.004, rel=0.03)
    cost.observe(16, 0, true_seconds(16) + 0.004)
    assert cost.seconds(16) == pytest.approx(true_seconds(16) + 0.004, rel=0.03)
    again = StepCost(64)
    again.recall(cost.known)
    for rows in (1, 2, 16, 32):
        assert again.seconds(rows) == pytest.approx(cost.seconds(rows), rel=0.01)


def test_a_first_step_that_records_its_pass_is_soon_forgotten() -> None:
    cost = StepCost(64)
    cost.learn(TIMED)
    cost.observe(8, 0, 5 * true_seconds(8))
    for _ in range(5):
        cost.observe(8, 0, true_seconds(8))
    assert cost.seconds(8) == pytest.approx(true_seconds(8), rel=0.01)


def test_the_first_step_of_a_number_of_rows_may_have_been_stopped() -> None:
    cost = StepCost(64)
    cost.learn([(1, 1.0), (8, 1.7)])
    cost.observe(3, 0, 50.0)
    assert cost.table[3] <= 2 * 1.2
    cost.observe(3, 0, 1.2)
    assert cost.table[3] < 1.8


def test_what_more_rows_contradict_is_learnt_anew() -> None:
    """A step of 32 rows took half of what is remembered of 4: that was no step's time."""
    cost = StepCost(64)
    cost.recall({1: (1.0, 8), 3: (9.0, 8), 4: (8.0, 8), 32: (3.0, 8)})
    assert sorted(cost.known) == [1, 32]
    assert cost.table[4] == pytest.approx(1 + 2 * 3 / 31)
    cost.observe(4, 0, 1.1)
    assert cost.table[4] == pytest.approx(1.1)


def test_what_was_not_seen_for_long_is_doubtful() -> None:
    cost = StepCost(64)
    cost.learn([(1, 1.0), (2, 1.1), (3, 1.2), (4, 8.0), (5, 8.5)])
    cost.recall({6: (9.0, 8)})
    assert cost.doubtful(1) == 6, "what was timed at start is not"
    assert cost.doubtful(6) == 7, "nor is anything known of it"
    for _ in range(256):
        cost.observe(1, 0, 1.0)
    assert cost.doubtful(3) == 4
    cost.observe(4, 0, 1.2)
    assert cost.table[4] == pytest.approx(1.2), "a step that is far quicker counts at once"
    assert cost.doubtful(3) == 5
    assert cost.doubtful(64) is None


def test_a_machine_that_has_changed_is_followed() -> None:
    """Arithmetic became three times as expensive: many rows cost more, one row does not."""
    rng, cost = random.Random(2), StepCost(64)
    cost.learn(TIMED)
    for _ in range(2000):
        rows = rng.choice((1, 16))
        cost.observe(rows, 0, true_seconds(rows) * (3 if rows == 16 else 1))
    assert cost.seconds(16) / cost.seconds(1) == pytest.approx(3 * true_seconds(16) / true_seconds(1), rel=0.1)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_times_that_cannot_be_are_ignored(seconds: float) -> None:
    cost = StepCost(8)
    cost.learn([(1, 0.01), (4, seconds)])
    before = list(cost.table)
    cost.observe(2, 0, seconds)
    cost.observe(0, 0, 1.0)
    cost.observe(9, 0, 1.0)
    assert list(cost.table) == before
    assert cost.pace == 1


def test_one_step_that_took_an_hour_is_forgotten() -> None:
    cost = StepCost(8)
    cost.learn([(1, 0.01), (4, 0.011)])
    for rows in (1, 4) * 20:
        cost.observe(rows, 0, 0.01 if rows == 1 else 0.011)
    cost.observe(1, 0, 3600.0)
    assert cost.pace < 1.2
    assert cost.seconds(4) / cost.seconds(1) == pytest.approx(1.1, rel=0.02)


@given(
    st.lists(
        st.tuples(st.integers(0, 5000), st.integers(0, 10**6), st.floats(-1, 1e6) | st.sampled_from([float("inf")])),
        max_size=60,
    ),
    st.integers(1, 600),
)
def test_more_rows_never_cost_less(steps: list[tuple[int, int, float]], most: int) -> None:
    cost = StepCost(most, key_share=1e-6)
    for rows, keys, seconds in steps:
        cost.observe(rows, keys, seconds)
    assert len(cost.table) == most + 1
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(cost.table))
    assert all(value > 0 for value in cost.table)
    assert cost.pace > 0


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 10)), min_size=1, max_size=12))
def test_isotonic_is_the_nearest(pairs: list[tuple[float, float]]) -> None:
    """By its definition: block means over minima of maxima (Barlow and Brunk)."""
    values, weights = zip(*pairs, strict=True)

    def mean(a: int, b: int) -> float:
        return sum(v * w for v, w in pairs[a : b + 1]) / sum(weights[a : b + 1])

    n = len(values)
    expected = [max(min(mean(a, b) for b in range(i, n)) for a in range(i + 1)) for i in range(n)]
    assert isotonic(values, weights) == pytest.approx(expected)


def test_knots_ascend() -> None:
    assert list(KNOTS) == sorted(set(KNOTS))


# ------------------------------------------------------------------------------------------------- a device proposer


def draft_seconds(length: int, count: int) -> float:
    return (0.0005 + 0.0004 * length) * (1 + count / 8)


def drafted(*counts: int) -> DraftCost:
    cost = DraftCost()
    for count in counts:
        for length in (1, 4):
            cost.observe(length, count, 5 * draft_seconds(length, count))  # the first records its passes
            for _ in range(8):
                cost.observe(length, count, draft_seconds(length, count))
    return cost


def test_drafts_are_a_line_in_their_length_for_each_number_of_requests() -> None:
    cost = drafted(1, 32)
    for count in (1, 32):
        assert cost.by_length(6, count)[0] == 0
        assert cost.by_length(6, count)[1:] == pytest.approx([draft_seconds(k, count) for k in range(1, 7)], rel=0.05)
    assert cost.by_length(4, 1)[4] < cost.by_length(4, 4)[4] < cost.by_length(4, 16)[4]


def test_of_one_length_the_first_token_counts_twice() -> None:
    cost = DraftCost()
    for _ in range(3):
        cost.observe(3, 1, 0.004)
    assert cost.by_length(7, 1)[1:] == pytest.approx([0.001 * (k + 1) for k in range(1, 8)])


def test_bursts_and_steps_that_record_passes_change_little() -> None:
    cost = drafted(1)
    cost.observe(1, 1, 10.0)
    assert cost.by_length(1, 1)[1] < 1.35 * draft_seconds(1, 1)
    cost.observe(1, 1, 10.0, typical=False)
    for seconds in (0.0, -1.0, math.nan, math.inf):
        cost.observe(4, 1, seconds)
    assert cost.by_length(4, 1)[4] == pytest.approx(draft_seconds(4, 1), rel=0.2)


def test_what_was_remembered_gives_way() -> None:
    cost = DraftCost(drafted(1).known)
    for _ in range(80):
        cost.observe(1, 1, draft_seconds(1, 1) / 2)
    assert cost.by_length(1, 1)[1] == pytest.approx(draft_seconds(1, 1) / 2, rel=0.1)
    assert not DraftCost({0: [1.0], 1: [0.0] * 5, 2: [1.0]}).timed


def test_what_processing_a_prompt_takes_is_measured_by_its_tokens() -> None:
    cost = DraftCost()
    assert cost.following(100) == 0, "not known"
    cost.observe_following(1000, 9.0)
    assert cost.following(100) == 0, "the first time may be that of compiling"
    cost.observe_following(1000, 0.1)
    assert cost.following(100) == pytest.approx(0.01)
    for _ in range(20):
        cost.observe_following(3, 0.001)  # a few tokens take longer each, and say little of prompts
    assert 0.01 < cost.following(100) < 0.02
    for seconds in (math.nan, math.inf):
        cost.observe_following(1000, seconds)
    assert DraftCost(cost.known).following(100) == cost.following(100)
    for _ in range(8):
        cost.observe_following(1000, 0.2)
    assert cost.following(100) == pytest.approx(0.02, rel=0.01)
    cost.observe_following(1000, 9.0, most=0.4)
    assert 0.02 < cost.following(100) < 0.04, "a process was stopped"


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40), st.floats(1e-6, 10)), min_size=2, max_size=50))
def test_longer_drafts_never_take_less(seen: list[tuple[int, int, float]]) -> None:
    cost = DraftCost()
    for length, count, seconds in seen:
        cost.observe(length, count, seconds)
    if cost.timed:
        for count in (1, 8, 100):
            times = cost.by_length(12, count)
            assert times == sorted(times)
            assert all(0 <= t < 1e4 for t in times)
